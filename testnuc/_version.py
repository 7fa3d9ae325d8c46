"""The version, where everything can read it without importing the package."""

__version__ = "0.1.0"

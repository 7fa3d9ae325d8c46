"""Benchmarks of testnuc: ``python -m bench NAME``."""

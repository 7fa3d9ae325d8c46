"""General-purpose helpers, independent of labels, models and votes."""

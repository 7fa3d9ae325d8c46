"""Methods: how one text gets its own prediction."""

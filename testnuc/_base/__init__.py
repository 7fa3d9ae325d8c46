"""Small parts that know nothing of labels, models or votes."""

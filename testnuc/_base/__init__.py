"""Small modules without knowledge of labels, models or votes."""

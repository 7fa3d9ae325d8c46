"""What all that is spoken to over HTTP has in common: endpoints, keys, and what failures mean."""

"""One run: embed, search, ask, vote."""

"""The engine behind the public classes: embed, retrieve, predict, vote."""

"""The parts of a client, and what they do: embed, retrieve, predict, vote."""

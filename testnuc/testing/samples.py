"""Stand-in until the prompt module is here."""

from __future__ import annotations

import json


def samples_in(user: str) -> list[str]:
    """Return the texts a user message asks about."""
    _, _, samples = user.partition("== Testing Samples ==\n")
    lines = (line.partition(": ") for line in samples.split("\n"))
    return [json.loads(quoted) for _, separator, quoted in lines if separator]

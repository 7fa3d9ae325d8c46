"""Prompt rendering and reply parsing.

Pure functions. The system prompt holds everything that is the same for all texts, so that providers
can cache it. In the user prompt each text is one line of JSON: its content (our own markers, JSON,
instructions, line breaks) cannot end the line, so it cannot pose as another text.
"""

from testnuc.prompts._reading import label_spans, parse_reply, without_thinking
from testnuc.prompts._writing import (
    PROMPT_VERSION,
    VERBALIZED,
    Demonstration,
    samples_in,
    system_prompt,
    text_json,
    user_prompt,
    user_prompt_start,
)

__all__ = [
    "PROMPT_VERSION",
    "VERBALIZED",
    "Demonstration",
    "label_spans",
    "parse_reply",
    "samples_in",
    "system_prompt",
    "text_json",
    "user_prompt",
    "user_prompt_start",
    "without_thinking",
]

"""The prompt and the reply: how texts are put to an LLM, and how its answers are read.

Pure functions. All that stays the same from text to text is in the system prompt, so that providers
can cache it. A text is put into the user prompt as one line of JSON: whatever it holds (our own
markers, JSON, instructions, line breaks), it cannot end its line, and so cannot pose as another
sample.
"""

from testnuc._base.checks import valid_text
from testnuc.prompts._reading import label_spans, parse_reply
from testnuc.prompts._writing import (
    PROMPT_VERSION,
    Demonstration,
    samples_in,
    system_prompt,
    text_json,
    user_prompt,
    user_prompt_start,
)

__all__ = [
    "PROMPT_VERSION",
    "Demonstration",
    "label_spans",
    "parse_reply",
    "samples_in",
    "system_prompt",
    "text_json",
    "user_prompt",
    "user_prompt_start",
    "valid_text",
]

"""Reasoning models: the least effort that each accepts, and the output tokens that it needs.

Names are all that is known before the first call. A model that rejects an effort lists those it
accepts, and the client takes the least of them; see `testnuc.providers._dialect`.
"""

import re

#: The default of `Sampling.reasoning_effort`.
LEAST = "least"
#: From the least to the most.
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")

#: Names of models that reason by default.
_THINKING = re.compile(
    r"^(o\d|gpt-(?!35)([5-9]|\d\d)|codex)(?!.{0,99}-chat)|gpt-oss|deepseek-?r\d|reason|think|qwq|magistral"
    r"|gemini-(2\.5|[3-9]|(pro|flash)(-lite)?-latest)|grok-(3-mini|[4-9]|code)|qwen3|glm-(4\.[5-9]|[5-9])|minimax-m\d|nemotron",
    re.IGNORECASE,
)
_NOT_THINKING = re.compile(r"non-?reasoning|no-?think|instruct|gemma|embed", re.IGNORECASE)

#: The least effort by name. The first match counts; "": the model accepts no effort, or only its
#: own. Sources are in docs/providers.md.
_LEAST: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), effort)
    for pattern, effort in (
        (r"^(o\d|gpt-5).{0,99}-(pro|chat|preview)|^o1-mini|deep-research", ""),
        (r"^gpt-5.{0,99}codex", "low"),
        (r"^gpt-5(-mini|-nano)?(-\d{4}|$)", "minimal"),
        (r"^gpt-5[.]\d", "none"),
        (r"^(o[1-9](?!\d)|gpt-([6-9]|\d\d)(?!\d)(?!.{0,99}-chat))|gpt-oss", "low"),
        (r"gemini-((2\.5|[3-9].{0,99})-)?flash(?!.{0,99}2\.0)", "none"),
        (r"gemini-(2\.5|[3-9]|pro-latest)", "low"),
        (r"grok-4\.3", "none"),
        (r"grok-3-mini|grok-4\.[5-9]|grok-[5-9]", "low"),
    )
)
_GROQ_QWEN = re.compile(r"qwen3", re.IGNORECASE)

#: Output tokens left for reasoning, and those that one short text typically takes, for estimates.
#: OpenAI reserves 25,000 for any effort in its guide, which no label needs; an answer that is cut
#: off lifts the limit. `bench recorded` prints medians.
_TOKENS = {"none": (0, 0), "minimal": (1_024, 0), "low": (4_096, 128), "medium": (8_192, 256)}
_MOST = (16_384, 1_024)
#: Of a model that reasons as it likes.
_OWN = (8_192, 256)

_VALUES = re.compile(r"(?:values|levels|options|one of|supported|must be)\b[^.]*", re.IGNORECASE)
_VALUE = re.compile(rf"\b({'|'.join(EFFORTS)})\b", re.IGNORECASE)


def thinks(model: str) -> bool:
    """Whether a model reasons before it answers, by its name without the provider's."""
    return _THINKING.search(model) is not None and _NOT_THINKING.search(model) is None


def least(model: str, host: str) -> str:
    """Return the least effort that a model is known to accept; "" if none is known."""
    if not thinks(model):
        return ""
    if host.endswith("groq.com") and _GROQ_QWEN.search(model):
        return "none"
    return next((effort for name, effort in _LEAST if name.search(model)), "")


def least_of(message: str, refused: str) -> str:
    """Return the least effort that a refusal of another one lists; "" if it lists none."""
    listed = " ".join(_VALUES.findall(message))
    found = {value.lower() for value in _VALUE.findall(listed)} - {refused}
    return min(found, key=EFFORTS.index) if found else ""


def tokens(effort: str, *, thinking: bool) -> tuple[int, int]:
    """Return the output tokens to leave for reasoning, and those that a label typically takes.

    `effort` is "" if none is sent.
    """
    if effort:
        return _TOKENS.get(effort, _MOST)
    return _OWN if thinking else (0, 0)

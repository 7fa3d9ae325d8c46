"""How labels were made, as a page that a methods section can quote and a reviewer can check.

Which models answered, and when, is stored (`Components.answered`). What else decides an answer is
hashed into its key, so a client that finds it knows it.
"""

from __future__ import annotations

import hashlib
import platform
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

import orjson

from testnuc._engine.components import Components, today
from testnuc._version import __version__
from testnuc.errors import InvalidInputError
from testnuc.prompts import user_prompt
from testnuc.results import Results
from testnuc.trust.joining import JoinedReview
from testnuc.trust.judgment import Judgment
from testnuc.trust.learned import Learned

#: Packages whose versions can change labels or numbers.
_PACKAGES = ("numpy", "numba", "usearch", "sentence-transformers", "torch")
#: Options of a request that are shown; others may hold names or keys.
_PLAIN = (bool, int, float, type(None))


async def describe(
    parts: Components, results: Results, learned: Learned | None, joined: JoinedReview | None
) -> str:
    """Return the page, in Markdown; it holds no text that was labeled, and no key."""
    answered = await parts.answered()
    sections = {
        "How the labels were made": _overview(parts, results, learned),
        "Model": _model(parts, answered),
        "Labels": _labels(parts, results),
        "Neighbors": _neighbors(parts, results),
        "Judgments": _judgments(learned, joined),
        "Counts": _counts(results, learned),
        "Software": _software(),
        "Prompt": _prompt(parts),
    }
    pages = (
        f"{'##' if at else '#'} {title}\n\n{chr(10).join(lines)}\n"
        for at, (title, lines) in enumerate(sections.items())
    )
    return "\n".join(pages)


def _overview(parts: Components, results: Results, learned: Learned | None) -> Iterator[str]:
    texts = {row.text for row in results}
    yield (
        f"{len(results):,} texts ({len(texts):,} distinct) were labeled by the LLM "
        f"`{parts.model}` at temperature {parts.sampling.temperature} with testnuc {__version__}, "
        f"each by {'any number' if parts.labels.multilabel else 'one'} of "
        f"{len(parts.labels.names):,} labels; {results.labels.count(None):,} have none."
    )
    if drawn := _at_random(learned):
        judges = "people" if any(one.source == "person" for one in drawn) else "another LLM"
        yield (
            f"{len(drawn):,} of them were drawn at random and judged by {judges}. Shares of labels "
            "are estimated from the labels of all texts and these judgments, with 95 % intervals "
            "(beta-binomial, in strata by the LLM's label)."
        )
    yield f"\nWritten on {today()}. This page shows none of the texts."


def _at_random(learned: Learned | None) -> list[Judgment]:
    judged = () if learned is None else learned.judged
    return [one for one in judged if one.uniform and one.source is not None]


def _model(parts: Components, answered: Mapping[str, Sequence[str]]) -> Iterator[str]:
    sampling = parts.sampling
    yield f"- Model: `{parts.model}`"
    for name, (first, last, by) in answered.items():
        served = f"the provider reported `{name}`" if name else "the provider reported no version"
        dates = first if first == last else f"{first} to {last}"
        yield f"- Answers of {dates}: {served}; testnuc {by}"
    if not answered:
        yield "- Dates and the version that the provider reported were not noted"
    options = {
        name: value if isinstance(value, _PLAIN) else ".."
        for name, value in sampling.request_options.items()
    }
    yield (
        f"- Sampling: temperature {sampling.temperature}, top_p {sampling.top_p}, confidence "
        f"{sampling.confidence}, texts in a call: {sampling.texts_per_call}, reasoning effort "
        f"{sampling.reasoning_effort}, further options {orjson.dumps(options).decode()}"
    )
    yield f"- Method: {parts.pipeline.method!r}"
    yield f"- Prompt: SHA-256 `{hashlib.sha256(prompt_of(parts).encode()).hexdigest()}`, see below"


def _labels(parts: Components, results: Results) -> Iterator[str]:
    counts = Counter(label for row in results for label in row.labels)
    yield "| label | description | texts |"
    yield "|---|---|--:|"
    for name in parts.labels.names:
        cells = name, parts.labels.descriptions.get(name, "")
        first, second = (cell.replace("|", "\\|").replace("\n", " ") for cell in cells)
        yield f"| {first} | {second} | {counts[name]:,} |"


def _neighbors(parts: Components, results: Results) -> Iterator[str]:
    sources = Counter(row.source for row in results if row.label is not None)
    yield f"- Embedder: `{parts.embedding.name}`"
    yield f"- Vote: {parts.policy!r}, at most {parts.pipeline.settings.k} neighbors"
    listed = ", ".join(f"{source or 'llm'} {n:,}" for source, n in sources.most_common())
    yield f"- What gave the labels: {listed or 'nothing'}"
    if results.diagnosis is not None:
        yield f"- {results.diagnosis.sentence()}"


def _judgments(learned: Learned | None, joined: JoinedReview | None) -> Iterator[str]:
    if learned is None:
        yield "Nobody judged a text: nothing is known of how many labels are right."
        return
    skipped = sum(one.source is None for one in learned.judged)
    yield (
        f"Texts were drawn with known probabilities: {len(_at_random(learned)):,} of "
        f"{len(learned.judged):,} at random from all; {skipped:,} were skipped."
    )
    yield f"\n{learned}"
    yield f"\nCertificate: {learned.certify()}"
    if joined is not None:
        yield f"\n{joined}"


def _counts(results: Results, learned: Learned | None) -> Iterator[str]:
    if learned is None:
        yield "No text was judged, so shares of labels are the model's alone."
        return
    try:
        yield f"```text\n{results.count_labels(learned)}\n```"
    except InvalidInputError as exc:
        yield f"Shares are the model's alone: {exc}."


def _software() -> Iterator[str]:
    yield f"- testnuc {__version__}, Python {platform.python_version()}"
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            yield f"- {name} {version(name)}"
    yield "- Draws, folds and simulated intervals have fixed seeds: a second run gives the same"


def prompt_of(parts: Components, text: str = "..") -> str:
    """Return the system prompt, and the message with a text that is asked about alone."""
    return f"{parts.predictor.steps[0].system}\n\n{user_prompt([text])}"


def _prompt(parts: Components) -> Iterator[str]:
    prompt = prompt_of(parts)
    fence = "```"
    while fence in prompt:
        fence += "`"
    yield f"{fence}text\n{prompt}\n{fence}"

"""How labels were made, as a page that a methods section can quote and a reviewer can check.

Which models answered, and when, is stored (`Components.answered`). What else decides an answer is
hashed into its key, so a client that finds it knows it.
"""

import hashlib
import platform
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

import orjson

from testnuc._engine.carried import BEFORE
from testnuc._engine.components import Components, today
from testnuc._version import __version__
from testnuc.errors import InvalidInputError
from testnuc.prompts.writing import user_prompt
from testnuc.results import Results
from testnuc.trust.joining import JoinedReview
from testnuc.trust.judgment import Judgment
from testnuc.trust.learned import Learned

#: Packages whose versions can change labels or numbers.
_PACKAGES = ("numpy", "numba", "usearch", "sentence-transformers", "torch")
#: Options of a request that are shown; others may hold names or keys.
_PLAIN = (bool, int, float, type(None))


async def describe(
    parts: Components,
    results: Results,
    learned: Learned | None,
    joined: JoinedReview | None,
    *,
    brief: bool = False,
) -> str:
    """Return the page, in Markdown; it holds no text that was labeled, and no key.

    `brief`: what is known of the labels, for those who use them.
    """
    made = {"How the labels were made": _overview(parts, results, learned)}
    known = {
        "Accuracy": _accuracy(learned),
        "Labels": _by_label(parts, results, learned),
        "Judgments": _judgments(learned, joined),
    }
    # what is asked first is first
    sections = known | made if brief else made | known
    if not brief:
        sections |= {
            "Model": _model(parts, await parts.answered()),
            "Neighbors": _neighbors(parts, results),
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
    sources = Counter(row.source or "llm" for row in results if row.label is not None)
    listed = ", ".join(f"{source} {n:,}" for source, n in sources.most_common())
    yield (
        f"{len(results):,} texts ({len(texts):,} distinct) were labeled by the LLM "
        f"`{parts.model}` at temperature {parts.sampling.temperature} with testnuc {__version__}, "
        f"each by {'any number' if parts.labels.multilabel else 'one'} of "
        f"{len(parts.labels.names):,} labels; {results.labels.count(None):,} have none. "
        f"What gave the labels: {listed or 'nothing'}."
    )
    owns = [row.prediction.said or "" for row in results if row.prediction is not None]
    if kept := sum(said.endswith(BEFORE) for said in owns):
        yield f"{kept:,} of the LLM's answers are to the labels before a change of the label set."
    if drawn := _at_random(learned):
        judges = "people" if any(one.source == "person" for one in drawn) else "another LLM"
        yield (
            f"{len(drawn):,} of them were drawn at random and judged by {judges}. Shares of labels "
            "are estimated from the labels of all texts and these judgments, with 95 % intervals "
            "(beta-binomial, in strata by the LLM's label)."
        )
    yield f"\nWritten on {today()}. This page shows none of the texts."


def _accuracy(learned: Learned | None) -> Iterator[str]:
    said = "Nobody judged a text: nothing is known of how many labels are right."
    yield from (f"- {line}" for line in str(learned or said).splitlines())


def _by_label(parts: Components, results: Results, learned: Learned | None) -> Iterator[str]:
    """Yield how many texts have each label, by the judgments too, and how many rightly."""
    counts = Counter(label for row in results for label in row.labels)
    shares: dict[str | None, str] = {}
    right: dict[str, str] = {}
    if learned is not None:
        right = {label: str(of.now) for label, of in learned.by_label().items()}
        with suppress(InvalidInputError):
            shares = {one.label: str(one.share) for one in results.count_labels(learned)}
    yield "| label | texts | share, by the judgments | right, of these texts |"
    yield "| --- | --: | --: | --: |"
    for name, number in sorted(((n, counts[n]) for n in parts.labels.names), key=lambda c: -c[1]):
        known = right.get(name, "too few judged") if number else ""
        cells = f"{number:,} | {shares.get(name, '')} | {known}"
        yield f"| {_cell(name)} | {cells} |"
    yield (
        "\nIntervals are those of 95 %, each alone. A text is right if a person who judged it said "
        "so, or would say so: shares and accuracies are estimated from the texts that were drawn "
        "at random."
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


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


def _neighbors(parts: Components, results: Results) -> Iterator[str]:
    yield f"- Embedder: `{parts.embedding.name}`"
    yield f"- Vote: {parts.policy!r}, at most {parts.pipeline.settings.k} neighbors"
    if results.diagnosis is not None:
        yield f"- {results.diagnosis.sentence()}"


def _judgments(learned: Learned | None, joined: JoinedReview | None) -> Iterator[str]:
    judged = () if learned is None else learned.judged
    yield (
        f"{len(judged):,} texts were drawn with known probabilities, {len(_at_random(learned)):,} "
        "of them at random from all.\n"
    )
    by = Counter((one.day or "before dates were noted", one.source) for one in judged)
    for (day, source), n in sorted(by.items(), key=str):
        said = f"judged by {source}" if source else "skipped, or without agreement"
        yield f"- {day}: {n:,} {said}"
    if joined is not None:
        yield f"\n{joined}"


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

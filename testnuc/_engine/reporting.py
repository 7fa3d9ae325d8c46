"""What a run reports: progress, notes, warnings, a summary in the log; and how labels were made.

The latter is a page that a methods section can quote and a reviewer can check. Which models
answered, and when, is stored (`Components.answered`). What else decides an answer is hashed into
its key, so a client that finds it knows it.
"""

import asyncio
import hashlib
import logging
import platform
import re
import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from urllib.parse import urlsplit

import orjson

from testnuc._base.checks import hash_text
from testnuc._base.display import today
from testnuc._engine.carried import is_kept
from testnuc._engine.components import Components
from testnuc._engine.run import Run
from testnuc._engine.shortlist import compare_with_full_labels
from testnuc._engine.votes import note_of_kept
from testnuc._version import __version__
from testnuc.embedders.sentence_transformers import version_of
from testnuc.errors import EmbeddingError, InvalidInputError, SmallPoolWarning
from testnuc.progress import Observer, start_progress
from testnuc.prompts.writing import user_prompt
from testnuc.results import Results, figures
from testnuc.trust.auto_policy import MIN_PREDICTIONS
from testnuc.trust.counts import CHOSEN, NONE, Counts
from testnuc.trust.joining import BY_DIFFERENCES, JoinedReview
from testnuc.trust.learned import Learned
from testnuc.trust.shares import Accuracy, LabelAccuracy, bounds_of, percent
from testnuc.types import error_text

_log = logging.getLogger("testnuc.client.runs")

#: How to draw texts to be judged, in Python and on the command line.
_JUDGING = "`await nuc.review(50)`, or `testnuc review`"
#: `stacklevel` of warnings: the code that called the client.
_CALLER = 4


@contextmanager
def shown(parts: Components, total: int, *, progress: bool | Observer) -> Iterator[Observer]:
    """Show progress; failed attempts are passed on to an observer that wants them."""
    before = parts.meter.mark()
    bar = start_progress(progress, total, lambda: parts.meter.since(before))
    try:
        with parts.transport.observed(getattr(bar, "note", None)):
            yield bar
    finally:
        bar.close()


async def compare(parts: Components, run: Run, lane: str) -> None:
    """Note what a vote would change, and how prompts that show some labels compare."""
    if parts.referee is None:
        run.notes.append(await asyncio.to_thread(note_of_kept, run.votes, run.batch.n_own))
    if parts.shortlist is not None and lane == "live":
        await compare_with_full_labels(run, parts.predictor, parts.pipeline.lanes["live"])


def summarize(parts: Components, results: Results) -> None:
    """Log a summary of a run, and record its texts in the telemetry."""
    level = logging.WARNING if results.errors or results.unmatched else logging.INFO
    _log.log(level, "%s: %s", parts.model, figures(results))
    if results.learned is None and results.diagnosis is not None:
        _log.info("%s", results.diagnosis.sentence(_JUDGING))
    if (telemetry := parts.telemetry) is not None:
        unlabeled = results.labels.count(None)
        telemetry.texts("labeled", len(results) - unlabeled)
        telemetry.texts("unlabeled", unlabeled)


def warn_of_few(parts: Components, run: Run) -> None:
    """Warn, once for each client, if few neighbors or none can vote, or if policy auto has few."""
    settings = run.votes.settings
    if run.failure is not None:
        if isinstance(run.failure, EmbeddingError):
            problem = f"no neighbor votes, as the embedder failed: {error_text(run.failure)}"
            _warn(parts, SmallPoolWarning(problem))
        return
    if run.votes.diagnosis is not None:
        _warn(parts, few_predictions(run.votes.diagnosis.predictions))
    if settings.policy is not None and not settings.needs_no_neighbors:
        most = int((run.batch.neighbors >= 0).sum(axis=1).max(initial=0))
        stored = parts.pipeline.neighbors == "stored"
        _warn(parts, few_neighbors(settings.k, len(parts.pool), most, stored=stored))


def _warn(parts: Components, warning: SmallPoolWarning | None) -> None:
    if warning is not None and not parts.warned:
        parts.warned = True
        warnings.warn(warning, stacklevel=_CALLER)


def few_predictions(found: int, more: str = "label more texts at once") -> SmallPoolWarning | None:
    """Return a warning if the auto policy has too few predictions; `more` says how to get some."""
    if found >= MIN_PREDICTIONS:
        return None
    return SmallPoolWarning(
        f"all labels are the LLM's own, no neighbor changes one: policy 'auto' has {found} "
        f"predictions and needs {MIN_PREDICTIONS} to tell whether a vote would help; {more}, or "
        "judge fifty texts (`testnuc review`), and learn from them"
    )


def few_neighbors(k: int, texts: int, found: int, *, stored: bool) -> SmallPoolWarning | None:
    """Return a warning if fewer than k neighbors can vote: `found` at most of `texts` in the pool.

    `stored`: only texts with a stored prediction vote.
    """
    if found >= k:
        return None
    voters = f"at most {found} neighbors vote" if found else "only the text itself votes"
    only = "; of stored neighbors (--neighbors stored) those with a stored answer alone vote"
    return SmallPoolWarning(
        f"k is {k}, but the pool holds {texts} texts: {voters}; label more texts at once, add "
        f"unlabeled ones to the pool, or give a smaller k (--k){only if stored else ''}"
    )


#: Packages whose versions can change labels or numbers.
_PACKAGES = ("numpy", "numba", "usearch", "sentence-transformers", "torch")
#: Hosts of providers of models.
_OWN = ("", "api.openai.com", "api.anthropic.com")
#: Who judged, and what gave a label, in words.
_JUDGES = {"referee": "another LLM", "person": "people"}
_SOURCES = _JUDGES | {
    "llm": "the LLM's answer",
    "vote": "a vote of similar texts",
    "head": "a model trained on these answers and on judgments",
}
#: What is known without judgments.
_UNKNOWN = (
    "Nobody judged a text: nothing is known of how many labels are right.\n"
    "Trust orders the texts, those to check first; it is no probability before judgments."
)
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
    made = {"How the labels were made": _overview(parts, results)}
    texts = {row.text for row in results}
    accuracy = None if learned is None else learned.accuracy(texts)
    measured = 0 if learned is None else learned.measured
    others = learned is not None and learned.mostly_later(texts, measured)
    labels = {"Labels": _by_label(parts, results, None if others else learned)}
    judges = {row.source for row in results} | {
        j.source for j in (learned.judged if learned else ())
    }
    referees = await parts.referees() if "referee" in judges else []
    if brief:
        title, *lead = _headline(parts, learned, accuracy, texts)
        found = {
            "What is proved": _proved(learned, texts) if learned else _accuracy(None),
            "Who judged, and when": _judges(learned, texts),
        }
        sections = {title: iter(lead)} | labels | found | made
    else:
        sections = made | labels
        sections |= {
            "Accuracy": _accuracy(learned, accuracy),
            "Judgments": _judgments(learned, joined, texts),
            "Model": _model(parts, await parts.answered(), referees),
            "Neighbors": _neighbors(parts, results, judged=learned is not None),
            "Software": _software(results),
            "Prompt": _prompt(parts),
        }
    about_others = {"Accuracy", "What is proved"} if others else {}
    of = f"What follows is of {measured:,} other texts. Of these here it is not known.\n"
    pages = (
        "\n".join([f"{'##' if at else '#'} {title}\n", *[of][: title in about_others], *lines, ""])
        for at, (title, lines) in enumerate(sections.items())
    )
    return "\n".join(pages)


def _headline(
    parts: Components, learned: Learned | None, accuracy: Accuracy | None, texts: Collection[str]
) -> Iterator[str]:
    """Yield how many labels of these texts are right, in plain words, and what to do next."""
    if learned is None or accuracy is None:
        yield "How many of these labels are right is not known yet"
        todo = "What to do next: judge fifty texts, which takes about three minutes."
        if learned is not None:
            later = sum(learned.later([*map(hash_text, texts)], learned.measured))
            came = f"{later:,} of them came after the draws, and what is known is of other texts"
            why = came if later else "people judged too few of these texts, drawn at random"
            todo = f"The reason: {why}. What to do next is said at the end."
        yield todo
        return
    now = accuracy.now
    right = "texts have exactly the right labels" if parts.labels.multilabel else "labels are right"
    yield (
        f"About {100 * now.value:.0f} of 100 {right} ({bounds_of(now)}), by your judgments; "
        f"{100 * accuracy.before.value:.0f} of 100 before"
    )
    certificate = learned.certify()
    n, why = certificate.judgments_needed, "a part of the labels can be proved to be right"
    if learned.wants_decisions(certificate):
        n, why = 50, "a better way to label can be proved"
    todo = f"judge {n:,} more texts, so that {why}"
    if (unfit := learned.unfit_among(texts))[0]:
        of = f"{len(unfit[0]):,} of {unfit[1]:,} texts that were drawn at random and judged"
        todo = f"add a label, as {of} fit none; how is said at the end"
    if part := certificate.coverage:
        todo = (
            f"use the labels of {part:.0%} of the texts, which are proved to be at least "
            f"{certificate.accuracy:.0%} right; correct the others, least trusted first"
        )
    least = now.allowing(accuracy.judge_error or 0.0).low
    if least >= certificate.accuracy and accuracy.texts >= len(texts) and (part or not unfit[0]):
        todo = f"use all labels, of which at least {100 * least:.0f} of 100 are right by the range"
        stricter = "a stricter proof, which holds however often one looks"
        todo += f"; {part:.0%} are also certified, {stricter}" * bool(part)
    if asked := len(learned.reopened):
        todo = f"judge {asked:,} more texts, whose judgment the new label set leaves open"
    yield f"What to do next: {todo}.\n"
    right = "the true number lies in it in 95 of 100 cases, if the judgments are right"
    if (error := accuracy.judge_error) is not None:
        range_ = bounds_of(now.allowing(error))
        right += f"; if judges err in at most {error:.1%} ({BY_DIFFERENCES}), it is {range_}"
    yield f"In brackets is a range: {right}."
    if (others := len(texts) - accuracy.texts) > 0:
        yield f"\nThe headline is not about {others:,} of these texts, which were not drawn from."


def _overview(parts: Components, results: Results) -> Iterator[str]:
    texts = {row.text for row in results}
    sources = Counter(row.source or "llm" for row in results if row.label is not None)
    listed = ", ".join(f"{_SOURCES.get(name, name)} {n:,}" for name, n in sources.most_common())
    yield (
        f"{len(results):,} texts ({len(texts):,} distinct) were labeled by the LLM "
        f"`{parts.model}` at temperature {parts.sampling.temperature} with testnuc {__version__}, "
        f"each by {'one' if parts.settings.threshold is None else 'any number'} of "
        f"{len(parts.labels.names):,} labels; {results.labels.count(None):,} have none. "
        f"The labels now are from: {listed or 'nothing'}."
    )
    if kept := sum(is_kept(row.prediction) for row in results):
        former = "their prompt is what `testnuc describe` says of the earlier file"
        yield f"{kept:,} of the LLM's answers are to the labels before a change: {former}."
    yield f"\nWritten on {today()}. This page shows none of the texts."


def _accuracy(learned: Learned | None, of_these: Accuracy | None = None) -> Iterator[str]:
    lines = str(learned or _UNKNOWN).splitlines()
    if learned is not None:
        missing = "Macro F1 is of one label for each text, by people's judgments."
        lines.append(str(learned.macro_f1() or missing))
        if of_these is not None and of_these.texts < learned.measured:
            rest = f"What follows is of {learned.measured:,} texts, not of these alone."
            lines = [f"Of these texts: {of_these}", rest, *lines]
    # who reads it did not judge
    yield from (f"- {line.replace('your ', 'the ')}" for line in lines)


def _proved(learned: Learned, texts: Collection[str]) -> Iterator[str]:
    """Yield what is proved, and what to look at, for those who use the labels."""
    certificate = learned.certify()
    if len(texts) < learned.measured and not learned.mostly_later(texts, learned.measured):
        yield f"What follows is of {learned.measured:,} texts, not of these alone.\n"
    right = f"at least {certificate.accuracy:.0%} of their labels are right"
    if part := certificate.coverage:
        by = f"{certificate.judged:,} judged texts, drawn at random"
        sure = f"with {certificate.confidence:.0%} confidence"
        yield f"- {part:.0%} of the texts are certified: {right} by the judgments, {sure} ({by})."
    else:
        yield f"- None of the texts are certified yet, which means proved: {right}."
    yield from (f"- {line}" for line in learned.cautions)


def _by_label(parts: Components, results: Results, learned: Learned | None) -> Iterator[str]:
    """Yield how many texts have each label, and how many by the judgments, and how many rightly."""
    given = Counter(label for row in results for label in row.labels)
    known = {} if learned is None else learned.by_label(row.text for row in results)
    counts = Counts([])
    with suppress(InvalidInputError):
        counts = counts if learned is None else results.count_labels(learned)
    shares = {one.label: one.shown for one in counts}
    later = len(results) - counts[0].rows if counts else 0
    of = f"share of {counts[0].rows:,} texts" if later else "share of all texts"
    by = "A text is right if a person who judged it said so, or would say so"
    if counts.judge == "referee":
        of += ", as the referee would label"
        by = "Shares are by the referee, another LLM: no person judged"
    names = ["label", "texts with it", "of these, right"]
    recalls = {n: percent(one.recall) for n, one in known.items() if one.recall is not None}
    names += [*(["of those that should have it, found"] if recalls else []), of]
    yield f"| {' | '.join(names)} |"
    yield f"| --- |{' --: |' * (len(names) - 1)}"
    rows = [*sorted(((n, given[n]) for n in parts.labels.names), key=lambda c: -c[1])]
    if learned and any(one.source and one.label is None for one in learned.judged):
        shares[NONE] = shares.pop(None, "")
        rows.append((NONE, results.labels.count(None)))
    for name, number in rows:
        right = str(known.get(name, LabelAccuracy())) if number and name != NONE else ""
        cells = [cell_in(name), f"{number:,}", right]
        cells += [*([recalls.get(name, "")] if recalls else []), shares.get(name, "")]
        yield f"| {' | '.join(cells)} |"
    if later:
        yield f"\n{later:,} texts came after the last draw and are left out of the shares."
    notes = [note for note in counts.notes if note.startswith(CHOSEN)]
    yield from (f"\n{line}." for line in (*counts.marks, *notes))
    yield (
        f"\nIn brackets are ranges that hold in 95 of 100 cases, each alone. {by}; numbers are "
        "estimated from the texts that were drawn at random and judged. A range is about half as "
        "wide with four times as many judged texts."
    )


def cell_in(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _model(
    parts: Components, answered: Mapping[str, Sequence[str]], referees: Sequence[str]
) -> Iterator[str]:
    sampling = parts.sampling
    server = urlsplit(parts.predictor.provider.identity).netloc
    whose = "" if server in _OWN else ", which is no server of OpenAI's or Anthropic's own,"
    asked = f", asked at {server}{whose} for a JSON schema with the labels, or less if it refuses"
    yield f"- Model: `{parts.model}`{server and asked}"
    for name, (first, last, by) in answered.items():
        served = f"the provider reported `{name}`" if name else "the provider reported no version"
        dates = first if first == last else f"{first} to {last}"
        yield f"- Answers of {dates}: {served}; testnuc {by}"
    if not answered:
        yield "- Dates and the version that the provider reported were not noted"
    yield from (f"- Referee, which judged or labeled some texts: `{name}`" for name in referees)
    given = sampling.request_options.items()
    options = {name: value if isinstance(value, _PLAIN) else ".." for name, value in given}
    seed = f"the LLM's seed {options.pop('seed')}" if "seed" in options else "no seed was sent"
    further = f", further options {orjson.dumps(options).decode()}" if options else ""
    yield (
        f"- Sampling: temperature {sampling.temperature}, top_p {sampling.top_p}, confidence "
        f"{sampling.confidence}, texts in a call: {sampling.texts_per_call}, reasoning effort "
        f"{sampling.reasoning_effort}, {seed}{further}"
    )
    yield f"- Method: {_plainly(parts.pipeline.method)}"
    yield f"- Prompt: SHA-256 `{prompt_hash(parts)}`, of the block below without its last newline"


def _plainly(made: object) -> str:
    """Return the name of a method or policy, and how it is set, without the signs of code."""
    return re.sub(r"[()',= ]+|(?<=[a-z])(?=[A-Z])", " ", repr(made)).strip().lower()


def _neighbors(parts: Components, results: Results, *, judged: bool) -> Iterator[str]:
    name = parts.embedding.name
    yield f"- Embedder: `{name}`, {version_of(name) or 'its version is not known'}"
    vote, k = _plainly(parts.policy), parts.pipeline.settings.k
    yield f"- Vote, where no model was learned: {vote}, at most {k} neighbors"
    if results.diagnosis is not None:
        yield f"- {results.diagnosis.sentence(None if judged else _JUDGING)}"


def _judgments(
    learned: Learned | None, joined: JoinedReview | None, texts: Collection[str]
) -> Iterator[str]:
    judged = [one for one in (learned.judged if learned else ()) if one.text in texts]
    drawn = [one for one in judged if one.probability is not None]
    ranked = sum(bool(one.ranking) for one in judged)
    uniform = sum(bool(one.uniform) for one in drawn)
    of_all = "all" if 0 < uniform == len(drawn) else f"{uniform:,}"
    alone = sum(bool(one.uniform) for one in judged) - uniform
    if told := bool(drawn) or not alone:
        yield (
            f"{len(drawn):,} texts were drawn with known probabilities, {of_all} of them at random "
            "from all texts that there were then. By those and the labels of all texts, shares "
            "of labels are estimated (beta-binomial, in strata by labels that do not depend on the "
            "text's own judgment).\n"
        )
    others = {
        "drawn at random among the most trusted texts: they prove certificates alone": ranked,
        "drawn at random among later texts, and count for these alone": alone,
    }
    chosen = len(judged) - len(drawn) - ranked - alone
    others["chosen, not drawn: they correct labels, and prove nothing"] = chosen
    yield from (f"{n:,}{' more' * told} were {said}.\n" for said, n in others.items() if n)
    yield from _judges(learned, texts)
    if joined is not None:
        missing = sum(item.text not in texts for item in joined.review.judged)
        of = f" ({missing:,} of their texts are not among these)" if missing else ""
        # what it says of judges' errors is said of all judgments where they are known
        yield f"\nIn the files of reviews named here{of}, {joined.facts if judged else joined}"


def _judges(learned: Learned | None, texts: Collection[str]) -> Iterator[str]:
    judged = () if learned is None else learned.judged
    by = Counter(
        (one.day or "before dates were noted", one.source, one.by if one.source else one.reopened)
        for one in judged
        if one.text in texts
    )
    for (day, source, who), n in sorted(by.items(), key=str):
        why = "judged before the label set changed" if who else "skipped, or judges differ"
        said = f"judged by {who or _JUDGES[source]}" if source else f"open: {why}"
        yield f"- {day}: {n:,} {said}"
    if others := len(judged) - by.total():
        yield f"- Judgments of other texts, which are not in this list: {others:,}"
    if not judged:
        yield "Nobody yet."


def _software(results: Results) -> Iterator[str]:
    yield f"- testnuc {__version__}, Python {platform.python_version()}"
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            yield f"- {name} {version(name)}"
    texts = hashlib.sha256("\n".join(sorted({row.text for row in results})).encode()).hexdigest()
    yield f"- Texts: SHA-256 `{texts}`, of the distinct ones, sorted, one newline between two"
    yield (
        "- Draws of texts to be judged have seed 0, unless `nuc.review` in Python was given "
        "another (`--seed` is the LLM's), all else fixed ones: a second run gives the same"
    )


def prompt_of(parts: Components, text: str = "..") -> str:
    """Return the system prompt, and the message with a text that is asked about alone."""
    return f"{parts.predictor.steps[0].system}\n\n{user_prompt([text])}"


def prompt_hash(parts: Components) -> str:
    """Return the SHA-256 of the prompt, in hexadecimal."""
    return hashlib.sha256(prompt_of(parts).encode()).hexdigest()


def _prompt(parts: Components) -> Iterator[str]:
    prompt = prompt_of(parts)
    fence = "```"
    while fence in prompt:
        fence += "`"
    yield f"{fence}text\n{prompt}\n{fence}"

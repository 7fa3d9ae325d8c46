"""``testnuc classify``: label the texts of a file."""

import asyncio
import sys
import time
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, Literal, NoReturn, TypeAlias, TypeVar, cast

from testnuc._base.jsonl import bytes_of, write_whole
from testnuc._base.loop_thread import run_to_end
from testnuc._engine.learning import LEAST_TEXTS, learned_in, numbered
from testnuc._engine.reporting import prompt_of
from testnuc.cli.files import check_output, free_name, write_results
from testnuc.cli.judging import better_name, what_next
from testnuc.cli.memory import AnswerStore, RunNote, about_lessons, digest
from testnuc.cli.options import OF_ANSWERS, Options
from testnuc.cli.options_of_run import client_of, command, completed, next_command
from testnuc.cli.reading import STANDARD, holds_rows, read_input, say_if_ids, to_stderr, usable
from testnuc.cli.reusing import reuse_answers
from testnuc.cli.settings import has_password
from testnuc.client import TestNUC, parts_of
from testnuc.embedders.openai import OpenAIEmbedder
from testnuc.errors import CallTimeoutError, InvalidInputError, SmallPoolWarning, StoreError
from testnuc.limits.budget import BYTES_PER_TOKEN, BudgetAccount, context_window
from testnuc.limits.policies import BatchPolicy
from testnuc.progress import LineProgress, display_of
from testnuc.results import Results, outcome, run_record
from testnuc.trust.diagnosis import FIRST_REVIEW
from testnuc.trust.label_check import MOST_CHECKED
from testnuc.trust.learned import Learned
from testnuc.types import Estimate

T = TypeVar("T")
#: Called with a client before it labels texts; returns how many of them it asked about.
Prepare: TypeAlias = Callable[..., Awaitable[int]]

#: Options that tell the runs in a store apart.
_OF_STORE = ("labels", "model", *OF_ANSWERS)


def run(given: SimpleNamespace) -> None:
    """Read, label, write; progress and summary go to stderr, so that stdout can be piped."""
    client: Options = given.client
    part = _share_of(given.escalate, given.referee, several=client.several)
    if given.referee is not None:
        client = client.but(referee=given.referee, escalate=part)
    if given.lane == "batch" and not client["store"]:
        raise InvalidInputError(
            "--lane batch needs --store PATH: batches take hours, and the store is where a later "
            "process finds them if this one ends"
        )
    output = None if given.output == STANDARD else given.output
    before = digest(str(output))
    table = read_input(given, guess=False)
    asked, (client, store) = client, completed(client, output)
    problems, valid = usable(table)
    say_if_ids(table)
    texts = [table.texts[at] for at in valid]
    # nothing is lost if a run replaces what it wrote before: the answers are stored
    asked_for = client.but(embedder=asked["embedder"])
    again = not store.new and RunNote.of(str(output)).says(str(output), asked_for, texts)
    overwrite = given.overwrite or given.dry_run or given.show_prompt or again
    check_output(output, table, overwrite=overwrite)
    if given.show_prompt:
        # nothing is sent, so no key is needed
        nuc = client_of(client, store=None, api_key="not-needed")
        print(prompt_of(parts_of(nuc), texts[0]))
        return
    own = client
    joins = given.reuse or (store.folder is not None and not store.new)
    if joins and "neighbors" not in client.named:
        # texts of earlier runs vote as far as they are answered: this run costs its own alone
        own = client.but(neighbors="stored")
    offer = partial(reuse_answers, given=texts, client=own, store=store)
    if given.dry_run:
        show_estimate(texts, own, store, offer, bound=bool(given.reuse))
        return
    batches = BatchPolicy(rest=given.rest)
    reuse = partial(offer, wanted=given.reuse, lane=given.lane)
    results, known = label_all(texts, own, store, given.lane, batches, reuse)
    labeled = dict(zip(valid, results, strict=True))
    run = run_record(results) if given.full else None
    covered = results.certified(known.certify()) if isinstance(known, Learned) else None
    try:
        certified = None if covered is None else {valid[result.index] for result in covered}
        _set_aside(output, before)
        write_results(output, table, labeled, problems, run=run, certified=certified)
    except InvalidInputError as exc:
        if store.where is None:
            raise
        kept = f"the answers are stored in {store.where}"
        if isinstance(results.stopped, StoreError):
            kept = f"not all answers are stored: {results.stopped}"
        raise InvalidInputError(f"{exc}; {kept}") from exc
    if output is not None:
        RunNote.write(output, store, table.text_column, client, results)
    end(results, store, invalid=len(problems), output=output, client=asked, known=known)


def _set_aside(output: str | None, before: str | None) -> None:
    """Keep what somebody wrote into an output during the run, under another name."""
    if output is None or digest(output) in {None, before}:
        return
    write_whole(kept := free_name(output), [bytes_of(output)])
    to_stderr(f"note: {output} was changed during the run; it is kept as {kept}")


def _share_of(escalate: str | None, referee: str | None, *, several: bool) -> float:
    """Return the fraction of the texts to escalate, of "10%" or "0.1"; by default a tenth."""
    if escalate is None:
        # several labels are not escalated: the referee judges texts drawn at random
        return 0.0 if several else 0.1
    if referee is None:
        raise InvalidInputError("--escalate needs --referee MODEL, the model that labels that part")
    given = escalate.strip()
    try:
        part = float(given.removesuffix("%")) / (100 if given.endswith("%") else 1)
    except ValueError:
        part = -1.0
    if not 0 <= part <= 1:
        raise InvalidInputError(f"--escalate is {escalate!r}; give a fraction such as 10% or 0.1")
    return part


def label_all(
    texts: list[str],
    client: Options,
    store: AnswerStore,
    lane: Literal["live", "batch"] = "live",
    batches: BatchPolicy | None = None,
    prepare: Prepare | None = None,
    account: BudgetAccount | None = None,
) -> tuple[Results, Learned | str | None]:
    """Label texts; print the warnings of the client and, after Ctrl-C, how to resume.

    Runs with one `account` have one budget. Also return what was learned by earlier runs, or the
    store of those with other options.
    """
    nuc = client_of(client, store=store.where, batches=batches)
    if account is not None:
        parts_of(nuc).transport.account.join(account)
    progress = display_of(lambda: nuc.usage)

    async def label() -> tuple[Results, Learned | str | None]:
        store.create_folder()
        async with nuc:
            for note in (_about_model(nuc, texts), await _about_embedder(nuc, texts)):
                if note is not None:
                    to_stderr(f"note: {note}")
            said, elsewhere = about_lessons(nuc, store, client) or await _learned_by(nuc, store)
            if said:
                to_stderr(said)
            began = time.monotonic()
            asked = await prepare(nuc, progress=progress) if prepare is not None else 0
            results = await nuc.classify_many(texts, progress=progress, lane=lane)
            results.seconds = time.monotonic() - began
            # what was asked about before is stored by now, too
            results.usage = replace(nuc.usage, store_hits=nuc.usage.store_hits - asked)
            return results, nuc.learned or elsewhere or None

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", SmallPoolWarning)
        try:
            results, known = run_to_end(_told(label(), nuc))
        except KeyboardInterrupt:
            _interrupted(nuc, progress, store, lane)
    for warning in caught if results.diagnosis is None else ():  # which says the same
        if isinstance(warning.message, SmallPoolWarning):
            to_stderr(f"note: {warning.message}")
    return results, known


async def _learned_by(nuc: TestNUC, store: AnswerStore) -> tuple[str, str]:
    """Return that another run of a store that the user named was learned from, and the store."""
    if store.where is None or store.folder is not None:
        return "", ""
    parts, found = parts_of(nuc), []
    scopes: dict[bytes, dict[str, Any]] = dict(await cast("Any", parts.store).scopes())
    numbers = numbered(scopes.items())
    for scope in await learned_in(parts.store, scopes):
        facts = scopes[scope]
        if scope == parts.predictor.scope:
            continue  # by another embedder
        labels, several = {*facts.get("labels", ())}, bool(facts.get("multilabel"))
        if 2 * len(labels & {*nuc.labels.names}) > len(labels) and several == nuc.labels.multilabel:
            found.append((numbers[scope], facts.get("instructions")))
    if not found:
        return "", ""
    number, instructions = max(found)
    place = "STORE" if has_password(store.where) else store.where
    said = (
        f"note: {place} has judgments of run {number}, whose answers are to another question "
        f"(testnuc store runs {place}); `testnuc learn FILE {place}` carries them over"
    )
    return said, store.where if instructions == parts.instructions else ""


async def _told(labeling: Coroutine[None, None, T], nuc: TestNUC) -> T:
    """Run a coroutine; say at once that Ctrl-C stops it, as calls in flight are waited for."""
    task = asyncio.create_task(labeling)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if task.done():
            raise
        said = f"calls in flight, {parts_of(nuc).transport.admission.in_flight:,}, may be billed"
        # on a line of its own, after the progress bar
        to_stderr(f"\ntestnuc: stopping: {said}; Ctrl-C again stops at once")
        task.cancel()
        return await task


def end(
    results: Results,
    store: AnswerStore,
    *,
    invalid: int = 0,
    output: str | None = None,
    client: Options | None = None,
    known: Learned | str | None = None,
) -> None:
    """Print what failed, a summary, and what comes next; `known` is what `label_all` returned.

    If errors left no text a label, exit with 1; if some, with 3.
    """
    said = *outcome(results, invalid=invalid, output=output), *results.notes
    for line in (*said, *_remedies(results, store), *_about_labels(results, output)):
        to_stderr(line)
    # a .txt output holds no texts
    source = None if output is None or output.endswith(".txt") else output
    if source is None and store.folder is None:
        source = store.where
    then = None if client is None else _next_step(results, source, client, known)
    # what was decided without evidence, and what judgments would bring
    advice = results.learned
    if advice is not None and client is not None and not client.get("referee"):
        # the rest was said when it was learned
        advice = advice.splitlines()[1]
    elif advice is None and results.diagnosis is not None and results.stopped is None:
        # a run without a file is judged in another one
        judging = "see below" if then else f"testnuc review {source or 'RESULTS'} -n 50"
        advice = results.diagnosis.sentence(judging) if _can_be_judged(results) else None
    for step in (advice, then):
        if step is not None:
            to_stderr(step)
    if any(result.label is None for result in results.errors):
        sys.exit(3 if any(label is not None for label in results.labels) else 1)


def _remedies(results: Results, store: AnswerStore) -> Iterator[str]:
    """Yield how to retry, what to do where the LLM named no label, and what the store is for."""
    broken = isinstance(results.stopped, StoreError)
    if results.errors and store.where is not None:
        kept = "not all of the others are" if broken else "the others are"
        yield f"to retry those, run the command again: {kept} stored in {store.where}"
    if unmatched := sum(row.label is None for row in results.unmatched):
        yield (
            f"{unmatched:,} texts with such answers have no label (nuc_error holds them): add what "
            "is missing to --labels, or judge some texts, so that `learn` labels the others"
        )
    if (late := sum(isinstance(one.error, CallTimeoutError) for one in results.errors)) > 1:
        fewer = "a lower --max-concurrency (max_concurrency in the settings file; 64 if not given)"
        yield f"{late:,} texts failed by time-out; for a slow server, give {fewer}"
    if store.folder is not None and not broken:
        yield (
            f"{store.folder} has the answers, the embeddings and what is learned: later runs with "
            "these labels use them; keep it while you label more"
        )


def _about_labels(results: Results, output: str | None) -> Iterator[str]:
    """Yield what stands out in the label set, if anything does and is known."""
    unknown = len(results) > MOST_CHECKED or results.multilabel or results.stopped is not None
    if not unknown and (notice := results.check_labels().notice):
        yield f"{notice}: {command('labels check', output or 'RESULTS', {})}"


def _can_be_judged(results: Results) -> bool:
    """Whether the LLM answered enough texts for a review; a head may have labeled the others."""
    answered = sum(result.prediction is not None for result in results)
    return answered >= min(LEAST_TEXTS, len(results))


def _next_step(
    results: Results, source: str | None, client: Options, known: Learned | str | None
) -> str | None:
    """Return a line on what to do with the results in a file or store; None: there are none."""
    if results.errors or not any(label is not None for label in results.labels):
        return None
    is_table = source is not None and holds_rows(source)
    if not _can_be_judged(results):
        looking = command("report", str(source), {})
        return f"next, look at the labels: {looking}" if is_table else None
    if source is None:
        return "next: name an output with -o (.csv, .xlsx, .jsonl) to judge some texts and learn"
    named = client.named & {*(("store",) if is_table else _OF_STORE)}
    given = SimpleNamespace(source=source, client=Options(client, named), text_column="text")
    if isinstance(known, str):
        what = "carry the judgments over"
        words = ["learn", known, "-o", better_name(source)]
    elif known is None and len(results) < LEAST_TEXTS:
        return f"next, label more texts: at least {LEAST_TEXTS} are needed to judge and to learn"
    elif known is None and len(results) < FIRST_REVIEW:
        what, words = "judge them", ["review"]
    else:
        return what_next(known, given, [row.text for row in results])
    return f"next, {what}: {next_command(words[0], given, *words[1:])}"


def _interrupted(nuc: TestNUC, progress: LineProgress, store: AnswerStore, lane: str) -> NoReturn:
    usage = nuc.usage
    # calls in flight were answered and stored, after those that were counted
    answers, packed = usage.calls + usage.store_hits, parts_of(nuc).sampling.texts_per_call
    # some are done without an answer: their calls failed, or they are copies
    done = min(max(progress.done, answers), answers * packed, progress.texts)
    least = "at least " if packed > 1 or done < progress.done else ""
    line = f"interrupted: {least}{done:,} of {progress.texts:,} texts are answered"
    if not progress.texts:
        line = "interrupted before the first call"
    elif store.where is not None:
        line += f"; answers are stored in {store.where}; to resume, run the same command again"
    elif usage.calls and not nuc.model.startswith("local/"):
        line += f"; the {usage.calls:,} answers are lost: use --store to store them"
    if lane == "batch":
        line += f"; running batches continue (testnuc batch list {store.where})"
    # on a line of its own, after the progress bar
    to_stderr(f"\ntestnuc: {line}")
    sys.exit(130)


async def estimate_of(nuc: TestNUC, texts: list[str], prepare: Prepare | None = None) -> Estimate:
    """Return the estimated usage; closes the client."""
    async with nuc:
        if prepare is not None:
            await prepare(nuc)
        return await nuc.estimate(texts)


def show_estimate(
    texts: list[str],
    client: Options,
    store: AnswerStore,
    prepare: Prepare | None = None,
    *,
    bound: bool = False,
) -> None:
    """Print the estimated cost, or a `bound` of it; sends nothing, and creates no store."""
    # nothing is sent, so no key is needed
    nuc = client_of(client, store=None if store.new else store.where, api_key="not-needed")
    found = run_to_end(estimate_of(nuc, texts, prepare))
    if (said := about_lessons(nuc, store, client)) is not None:
        to_stderr(said[0])
    distinct = len(set(texts))
    print(f"{nuc.model}: nothing was sent; {len(texts):,} texts, {distinct:,} distinct\n\n{found}")
    if bound:
        most = "--reuse asks about fewer texts: these calls and this price are the most"
        to_stderr(f"note: {most}; how many depends on how many get a new label")
    for note in (_about_model(nuc, texts), getattr(parts_of(nuc).embedder, "missing", None)):
        if note is not None:
            to_stderr(f"note: {note}")
    tokens = [found.input_tokens, found.output_tokens]
    needed = {
        "budget_usd": found.usd,
        "budget_calls": found.calls,
        "budget_tokens": None if None in tokens else sum(filter(None, tokens)),
    }
    for name, value in needed.items():
        if value is not None and client.get(name) is not None and value > client[name]:
            to_stderr(
                f"note: the run would stop early: it needs up to {value:,.6g} {name[7:]}, more "
                f"than --{name.replace('_', '-')} {client[name]}"
            )


async def _about_embedder(nuc: TestNUC, texts: Sequence[str]) -> str | None:
    """Return how many texts the embedder reads in part or rejects; loads a local model."""
    embedder = parts_of(nuc).embedder
    measure, fails = getattr(embedder, "cut", None), isinstance(embedder, OpenAIEmbedder)
    if measure is not None and not fails:
        to_stderr("loading the embedder")
    number, tokens = (0, 0) if measure is None else await measure(texts)
    if not number:
        return None
    found = "their neighbors are found by the beginning alone, while the LLM reads all"
    return (
        f"texts longer than the {tokens:,} tokens that the embedder reads: "
        f"{'about ' if fails else ''}{number:,} of {len(texts):,}; "
        f"{'they will fail' if fails else found}; shorten or split them, or choose another "
        "--embedder"
    )


def _about_model(nuc: TestNUC, texts: Sequence[str]) -> str | None:
    """Return about how many texts do not fit into one call of the LLM."""
    provider = parts_of(nuc).predictor.provider
    window = context_window(provider.name, provider.model, getattr(provider, "url", None))
    if window is None:
        return None
    most = window * BYTES_PER_TOKEN
    number = sum(len(text.encode("utf-8", "replace")) > most for text in texts)
    if not number:
        return None
    return (
        f"texts longer than the {window:,} tokens that {nuc.model} reads: about {number:,} of "
        f"{len(texts):,}, which will be refused; shorten or split them"
    )

"""What must be true after every world, whatever happened in it."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

from testnuc._base.checks import hash_text
from testnuc.errors import (
    BadRequestError,
    ConfigurationError,
    ProviderError,
    StoreError,
    TestNUCError,
)
from testnuc.types import split_labels
from tests.simulation.records import Bug, label, labels

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.process import Process
    from tests.simulation.records import Operation, Payment
    from tests.simulation.world import World

#: Seconds: a call that waits for nothing but the server; a server that is down; callers
#: of a client that was closed.
LIVE, NOBODY, AFTER_CLOSE = 3 * 3600.0, 5.0, 120.0
#: Calls in flight aside, this many requests show that a server does not know structured output.
STRUCTURED = 12
#: Paid calls for a text that the model never answers in the asked form.
UNREADABLE = 3
#: Seconds after which an answer is stored, if it is stored at all.
BEFORE = 200.0
#: Seconds for which results of a job are asked for again, as documented.
PATIENCE = 3_600.0


def violations(world: World) -> list[str]:
    """Return what was broken, in words."""
    found = list(world.complaints)
    for check in (
        endings,
        errors,
        answers,
        right,
        doubles,
        thrice,
        unreadable,
        structure,
        jobs,
        limits,
        leftovers,
    ):
        found += check(world)
    return found


def endings(world: World) -> Iterator[str]:
    """Every run has ended, and in a time that can be explained."""
    for operation in world.operations:
        process = operation.process
        if operation.ended is None:
            if not process.died:
                yield f"{operation} never ended"
            continue
        seconds = operation.ended - operation.started
        seconds -= sum(end - begin for begin, end in process.sleeps)
        if operation.lane == "live" and seconds > LIVE:
            yield f"{operation} took {seconds:.0f} s in the live lane"
        if (
            world.server.fate == "absent"
            and process.wire
            and operation.lane == "live"
            and not world.store_faults.rate
            and process.rpm is None
            # it may wait for a key
            and process.keys.failed_at is None
            # it may wait for the lease of another process
            and not (world.leases and len(world.processes) > 1)
            and seconds > NOBODY
            and operation.kind in {"many", "one", "pool"}
        ):
            yield f"{operation} took {seconds:.1f} s to notice that the server is down"
        # a run may be at the first of three reads of a store that takes over a minute for each
        reads = 3 if process.store.trouble else 1
        if (
            process.closed_at is not None
            and operation.ended > process.closed_at + reads * AFTER_CLOSE
            and not process.sleeps
        ):
            yield f"{operation} ended {operation.ended - process.closed_at:.0f} s after aclose"


def errors(world: World) -> Iterator[str]:
    """A caller gets the error it can expect, and is not denied what was answered."""
    for operation in world.operations:
        error, process = operation.error, operation.process
        if error is None:
            yield from _complete(operation)
        elif operation.left or process.died:
            continue
        elif isinstance(error, Bug):
            if not (operation.observed or process.own == "raises" or _breaks(process)):
                yield f"{operation} raised {error!r}, of another caller"
        elif isinstance(error, ConfigurationError):
            yield from _key(operation, error)
        elif isinstance(error, OSError) and process.store.trouble:
            continue  # of the user's own store
        elif isinstance(error, TypeError) and process.own == "label":
            continue  # of the user's own provider
        elif not isinstance(error, TestNUCError):
            cancelled = type(error).__name__ == "CancelledError"
            if not (cancelled and _closing(operation)):
                yield f"{operation} raised {error!r}"
        elif isinstance(error, (ProviderError, StoreError)) and operation.kind == "many":
            yield from _denied(world, operation)


def _key(operation: Operation, error: ConfigurationError) -> Iterator[str]:
    """No key: its function has failed, and the last one has expired."""
    keys = operation.process.keys
    if any(end - 30.0 >= operation.started for _, end in operation.process.sleeps):
        return  # the function had its 30 s while the computer slept
    # a key is not used in its last seconds
    valid = any(a <= operation.started and b > operation.ended + 6.0 for a, b in keys.tokens)
    if keys.failed_at is None or valid:
        yield f"{operation} raised {error!r} with a valid key"


def _breaks(process: Process) -> bool:
    method = process.client._parts.pipeline.method
    return type(method).__name__ == "BrokenMethod"


def _closing(operation: Operation) -> bool:
    """Whether the client was closed before the operation ended."""
    at = operation.process.closing_at
    return at is not None and at <= operation.ended


def _complete(operation: Operation) -> Iterator[str]:
    if operation.left or operation.kind not in {"many", "one", "stream"}:
        return
    if len(operation.results) != len(operation.texts):
        yield f"{operation} gave {len(operation.results)} results"
    for result in operation.results:
        if result.prediction is None and result.error is None:
            yield f"{operation}: neither a prediction nor an error for {result.text!r}"
            return


def _denied(world: World, operation: Operation) -> Iterator[str]:
    """An exception ended a run although some of its texts were answered."""
    process, error = operation.process, operation.error
    if process.died or _closing(operation):
        return
    if (process.store.trouble or process.client._parts.pipeline.method.context) and any(
        other.process is process
        and other is not operation
        and (other.ended is None or other.ended > operation.started)
        and other.started < operation.ended
        for other in world.operations
    ):
        # another run may have got the answers, and this one could not read them, or has other
        # examples in its prompts
        return
    texts = set(operation.texts)
    # the whole job was refused, while calls were answered
    live = {
        text
        for other in world.operations
        if operation.lane == "batch" and (other.process, other.lane) == (process, "live")
        for text in other.texts
    }
    paid = {
        p.text
        for p in world.payments
        if p.process is process
        and p.usable
        and p.delivered
        and p.own
        and p.text in texts - live
        and operation.started <= p.at < operation.ended
    }
    stored = {row.text_hash for row in world.rows.rows() if row.scope == process.scope}
    kept = {text for text in paid if hash_text(text) in stored}
    if kept and process.samples == 1:
        yield (
            f"{operation} raised {type(error).__name__} after {len(kept)} of its texts were "
            f"answered and stored"
        )
    earlier = {
        p.text
        for p in world.payments
        if p.asked[0] == process.scope and p.at < operation.started - BEFORE
    }
    known = {text for text in earlier if hash_text(text) in stored}
    # of several samples, one may be stored
    if isinstance(error, BadRequestError) and known and not kept and process.samples == 1:
        yield f"{operation} raised {type(error).__name__} although {len(known)} texts are stored"


def answers(world: World) -> Iterator[str]:
    """What was billed and received is stored, or its run said why not."""
    stored = Counter((row.scope, row.text_hash) for row in world.rows.rows())
    paid: dict[tuple, list[Payment]] = defaultdict(list)
    for payment in world.payments:
        if payment.usable and payment.delivered and payment.process is not None:
            paid[payment.asked[0], payment.text].append(payment)
    for (scope, text), payments in paid.items():
        text_hash = hash_text(text)
        excused = sum(p.process.died or p.process.store.unstored[text_hash] for p in payments)
        if not stored[scope, text_hash] and not excused:
            names = sorted({p.process.name for p in payments})
            yield f"{len(payments)} paid answers for {text!r} of {names} are not in the store"
    for process in world.processes:
        if process.died or not process.store.unstored:
            continue
        yield from _silent(world, process)


def _silent(world: World, process: Process) -> Iterator[str]:
    """Answers were not stored, and every run of the process said that all is well."""
    own = [o for o in world.operations if o.process is process and o.kind != "add"]
    safe = {row.text_hash for row in world.rows.rows()}
    safe |= {hash_text(r.text) for o in own for r in o.results if r.prediction is not None}
    if safe.issuperset(process.store.unstored):
        return
    said = any(o.error or o.stopped or o.left or any(r.error for r in o.results) for o in own)
    if own and not said:
        yield f"{process.name}: answers were not stored, and no run said so"


def doubles(world: World) -> Iterator[str]:
    """No text was paid twice, but after an answer that was lost."""
    paid: dict[tuple, list[Payment]] = defaultdict(list)
    for payment in world.payments:
        if payment.usable and payment.delivered:
            paid[payment.asked].append(payment)
    samples: Counter[bytes] = Counter()
    for process in world.processes:
        samples[process.scope] = max(samples[process.scope], process.samples)
    trouble = any(process.store.trouble for process in world.processes)
    beside = world.leases and trouble
    for asked, payments in paid.items():
        text_hash = hash_text(asked[1])
        excused = 0
        for payment in payments:
            process = payment.process
            if process is not None:
                # it died or was closed before it could store the answer, or the store failed
                excused += bool(process.store.unstored[text_hash])
                excused += process.died or payment.asleep
        allowed = samples[asked[0]] + excused
        if beside and len({p.process for p in payments}) > 1:
            continue
        if asked[0] is None or any(p.lane == "batch" for p in payments):
            continue
        if len(payments) > allowed:
            names = [f"{p.process.name} at {p.at:.1f}" for p in payments]
            yield f"{asked[1]!r} was paid {len(payments)} times: {names}"


def right(world: World) -> Iterator[str]:
    """What is stored is what the provider said."""
    mutated = {p.text for p in world.payments if p.broken}
    texts = {hash_text(text): text for text in world.texts}
    for row in world.rows.rows():
        text = texts.get(row.text_hash)
        prediction = row.prediction
        if text is None or text in mutated or prediction.label is None:
            continue
        said = labels(text) if world.several else [label(text)]
        given = split_labels(prediction.label) if world.several else [prediction.label]
        if given != said:
            yield f"{text!r} is stored as {given}, and the provider said {said}"


def thrice(world: World) -> Iterator[str]:
    """A text whose answers cannot be used is paid for three times at most in a run."""
    paid: Counter[tuple[Process, str]] = Counter()
    for payment in world.payments:
        if payment.delivered and not payment.usable and payment.lane == "live":
            paid[payment.process, payment.text] += 1
    runs: Counter[Process] = Counter(o.process for o in world.operations)
    for (process, text), times in paid.items():
        if process.per_call > 1 or process.client._parts.pipeline.method.context:
            continue
        if times > UNREADABLE * process.samples * runs[process]:
            yield f"{process.name} paid {times} times for {text!r}, without a usable answer"


def unreadable(world: World) -> Iterator[str]:
    """A model that cannot answer is not asked over and over."""
    paid: Counter[tuple[Process, str]] = Counter()
    for payment in world.payments:
        nature = world.nature.get(payment.text)
        if nature in {"unreadable", "refusal"} and payment.process is not None:
            paid[payment.process, payment.text] += payment.delivered and not payment.broken
    asked: Counter[tuple[Process, str]] = Counter()
    for operation in world.operations:
        if operation.kind in {"many", "one", "stream", "pool"}:
            asked.update((operation.process, text) for text in set(world.texts))
    worst, where = 0.0, None
    for (process, text), times in paid.items():
        if process.per_call > 1 or process.client._parts.pipeline.method.context:
            continue
        each = times / process.samples / max(1, asked[process, text])
        if each > worst:
            worst, where = each, (process, text, times)
    if worst > UNREADABLE:
        process, text, times = where
        yield (
            f"{process.name} paid {times} calls for {text!r}, which the model cannot answer "
            f"({world.nature[text]})"
        )


def structure(world: World) -> Iterator[str]:
    """A server without structured output is not asked for it again and again.

    Calls may be in flight at each of three changes: schema by another type, any object, none.
    """
    most = sum(STRUCTURED + 3 * process.concurrency for process in world.processes)
    if world.server.unstructured > most:
        yield f"{world.server.unstructured} requests for structured output were answered with 500"


def jobs(world: World) -> Iterator[str]:
    """A request that was answered in a job is in another one only if its answer lacked for long."""
    if any(process.samples > 1 or process.store.trouble for process in world.processes):
        return
    for times in world.server.answered_in_jobs.values():
        for one, two in pairwise(times):
            if two - one < PATIENCE:
                yield f"a request of a job was answered at {one:.1f} and at {two:.1f}"


def limits(world: World) -> Iterator[str]:
    """The user's rate limit, concurrency and budget."""
    for process in world.processes:
        if process.rpm is not None:
            times = [at for at, who in world.requests if who is process]
            start = 0
            for end, at in enumerate(times):
                while times[start] <= at - 60.0:
                    start += 1
                if end - start + 1 > process.rpm:
                    yield f"{process.name} sent {end - start + 1} requests in a minute"
                    break
        if process.wire and not world.batches and process.connections.most > process.concurrency:
            yield f"{process.name} had {process.connections.most} calls in flight"
        budget = process.budget
        if budget is not None and budget.calls is not None:
            # texts of a packed call share one
            calls = {
                (p.at, p.asked if process.per_call == 1 else 0)
                for p in world.payments
                if p.process is process
            }
            billed = len(calls)
            if billed > budget.calls:
                yield f"{process.name} spent {billed} calls of {budget.calls}"


def leftovers(world: World) -> Iterator[str]:
    """Connections and stores are closed with their client."""
    for process in world.processes:
        if process.died or process.closed_at is None:
            continue
        if process.connections.open:
            yield f"{process.name} left {process.connections.open} connections open"
        if not process.connections.closed:
            yield f"{process.name} did not close its connections"
        if process.store.opened and not process.store.closed:
            yield f"{process.name} did not close its store"

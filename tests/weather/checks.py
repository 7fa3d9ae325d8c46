"""What must be true after every seed, whatever the weather was."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from testnuc._base.checks import hash_text
from testnuc.errors import (
    BudgetExceededError,
    CallTimeoutError,
    ProviderError,
    QuotaExceededError,
    RateLimitedError,
    TestNUCError,
)
from testnuc.transport.retries import latest_start
from tests.weather.response import MiB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.weather.world import Weather

#: Billed responses for one text and sample.
BILLED = 3
#: Consecutive texts that are refused before a run may end.
STREAK = 20
#: A run may end after so many without an answer.
DEADLINES = 5
#: Characters of a key that must not appear.
PART = 8
#: Bytes of an endless response that may be read.
READ = 32 * MiB


def violations(world: Weather) -> list[str]:
    """Return what was broken, in words."""
    found = list(world.complaints)
    for check in (blocked, endings, labels, money, again, secrets, memory):
        found += check(world)
    return found


def blocked(world: Weather) -> Iterator[str]:
    """The loop is free for others."""
    for name, seconds in world.blocked:
        yield f"the loop was blocked for {seconds:.2f} s by {name}"


def endings(world: Weather) -> Iterator[str]:
    """Runs end with an error of ours, and with one that would meet every text."""
    for i, run in enumerate(world.runs):
        for error in (run.error, run.stopped):
            if error is None:
                continue
            if not isinstance(error, TestNUCError):
                yield f"run {i} ended with {error!r}"
            elif not _may_end(world, i, error):
                yield f"run {i} ended with {type(error).__name__}: {error!s:.200}"


def _may_end(world: Weather, run: int, error: Exception) -> bool:
    if isinstance(error, BudgetExceededError):
        return run == 0 and world.budget is not None
    if run or not isinstance(error, ProviderError):
        return False
    if isinstance(error, QuotaExceededError):
        return True
    if world.kind == "one":
        return True  # of that text
    if not any(sent.right for sent in world.sent if sent.run == 0):
        return True
    if world.runs[0].seconds > DEADLINES * world.limits.retry.deadline:
        return True
    streak = longest = 0
    for number, _, status in world.requests:
        streak = 0 if number or status == 200 else streak + 1
        longest = max(longest, streak)
    return longest >= STREAK


def labels(world: Weather) -> Iterator[str]:
    """Healthy texts have their labels, in the first run and in the next."""
    for i, run in enumerate(world.runs):
        if not run.ended:
            continue
        over = run.error is not None
        over |= run.stopped is not None and not (i == 0 and world.kind == "one")
        if i == 0:
            answers = (result.error for result in run.results.values())
            errors = [run.stopped, *answers, *run.failed.values()]
            over |= any(map(_meets_all, errors))
        over |= i == 0 and world.budget is not None
        for text in world.texts:
            result = run.results.get(text)
            answered = result is not None and result.prediction is not None
            if i == 0 and text not in world.healthy:
                continue
            if not answered:
                error = run.failed.get(text) if result is None else result.error
                # the error of a deadline is that of the latest attempt, if there was one
                late = [error, error and (error.__cause__ or error.__context__)]
                late = any(isinstance(one, (TimeoutError, CallTimeoutError)) for one in late)
                # headers that lie, and calls that hang, hold a second attempt up until then
                held_up = not i and late and run.seconds >= latest_start(world.limits.retry)
                if not over and not held_up and (i or text in world.healthy):
                    yield f"run {i}: no label for {text!r}: {error!r:.300}"
                continue
            given = _label(result.prediction, several=world.several)
            known = hash_text(text) in world.stored
            if given != world.right[text] and (i == 0 or text in world.healthy or not known):
                yield f"run {i}: {text!r} is labeled {given!r}, not {world.right[text]!r}"


def _meets_all(error: BaseException | None) -> bool:
    """Whether it is that of an account, or of a pause that outlasts a call."""
    paused = isinstance(error, RateLimitedError) and error.attempts == 0
    return paused or isinstance(error, QuotaExceededError)


def _label(prediction, *, several: bool):
    if several:
        return list(prediction.labels)
    return prediction.label


def money(world: Weather) -> Iterator[str]:
    """What was billed is stored or counted, and no text is billed more than three times."""
    if not world.runs or not world.runs[0].ended:
        return
    times: Counter[str] = Counter()
    billed = [sent for sent in world.sent if sent.billed and sent.run == 0]
    for sent in billed:
        if len(sent.texts) == 1:
            times[sent.texts[0]] += 1
    # Alone, a text that failed may be asked about again as the neighbor of another. One whose call
    # was rejected before any answer is asked about again when others were answered.
    rejected = {
        text for _, texts, status in world.requests if _is_rejection(status) for text in texts
    }
    if world.method is None or not world.method.context:
        for text, n in times.items():
            twice = world.kind != "many" or text in rejected
            if n > BILLED * world.samples * (1 + twice):
                names = [s.names for s in billed if s.texts == [text]]
                yield f"{text!r} was billed {n} times: {names}"
    if world.runs[0].calls < len(billed):
        yield f"{world.runs[0].calls} calls are counted, and {len(billed)} were billed"
    for sent in world.sent:
        if sent.right and sent.run == 0:
            for text in sent.texts:
                if hash_text(text) not in world.stored:
                    yield f"a right answer for {text!r} is not stored"


def _is_rejection(status: int | str) -> bool:
    return isinstance(status, int) and 300 <= status < 500


def again(world: Weather) -> Iterator[str]:
    """The next run works, and pays nothing for what is stored."""
    if len(world.runs) < 2:
        return
    if world.runs[1].error is not None or world.runs[1].stopped is not None:
        return  # said by `endings`
    if world.method is not None and world.method.context:
        return
    asked = Counter(text for run, texts, _ in world.requests if run == 1 for text in texts)
    for text, n in asked.items():
        stored = len(world.stored.get(hash_text(text), ()))
        if n + stored > world.samples:
            yield f"{text!r} was stored {stored} times, and asked about {n} times again"


def secrets(world: Weather) -> Iterator[str]:
    """No part of the key is in what is said or stored."""
    parts = [world.key[i : i + PART] for i in range(len(world.key) - PART + 1)]
    for said in world.said:
        part = next((part for part in parts if part in said), None)
        if part is not None:
            at = said.index(part)
            yield f"a part of the key: {said[max(0, at - 150) : at + 60]!r}"
            break
    if any(part.encode() in world.stored_bytes for part in parts):
        yield "a part of the key is in the file of the store"


def memory(world: Weather) -> Iterator[str]:
    """An endless response is not read for ever."""
    if world.server.taken > READ:
        yield f"{world.server.taken / MiB:.0f} MiB of an endless response were read"

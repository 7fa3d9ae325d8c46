"""Recorded exchanges with real providers, replayed: what the client makes of each."""

from __future__ import annotations

import argparse
import asyncio
import logging
import re
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from bench._facts import facts
from bench._replay import read, replay
from bench._report import Report
from testnuc.errors import RefusalError, ReplyError, TruncatedReplyError

if TYPE_CHECKING:
    from bench._facts import Facts
    from bench._replay import Exchange, Seen
    from testnuc.errors import ProviderError
    from testnuc.protocols import TokenUsage

_OK = 200
_LOOPBACK = re.compile(r" at 127\.0\.0\.1:\d+")
#: When a chat completion was created.
_CREATED = re.compile(r'"created":\s*(\d{10})\b')
#: Characters of a provider's words that must be in the message.
_QUOTED = 80
#: Finish reasons of an answer that the output limit cut off.
_CUT = frozenset({"length", "max_tokens", "model_context_window_exceeded"})


def outcome(seen: Seen) -> str:
    """Return what happens next: retried, the run stops, or this text fails."""
    error = seen.error
    if error is None:
        return "answered"
    if seen.reply is not None:
        return "answered, after a change"
    name = type(error).__name__
    return name + (", again" if error.retryable else ", stops" if error.fatal else "")


def usage_of(seen: Seen) -> TokenUsage | None:
    """Return the tokens that were counted for the recorded response."""
    if isinstance(seen.error, ReplyError):
        found: TokenUsage | None = seen.error.usage
        return found
    return None if seen.error is not None or seen.reply is None else seen.reply.usage


def apart(said: Facts, seen: Seen) -> str:
    """Return why an exchange is no answer to a classification; "" if it is one."""
    if said.kind in {"tools", "empty", "unknown"}:
        return {"tools": "tool calls", "empty": "no text: audio, images, tools",
                "unknown": "not an answer of an LLM"}[said.kind]  # fmt: skip
    if said.kind == "reply" and not said.refused and seen.error is not None:
        return "cut off" if said.finish in _CUT else "answers to other tasks"
    return ""


def differences(exchange: Exchange, said: Facts, seen: Seen) -> list[str]:
    """Return what a user would see that the recorded response does not say."""
    if seen.crash is not None:
        return [f"{type(seen.crash).__name__}: {seen.crash}"]
    if said.kind == "error":
        return _of_error(said, seen)
    if said.kind == "unknown" or (said.kind == "tools" and exchange.status != _OK):
        return []
    counted = usage_of(seen)
    ours = counted and (counted.input_tokens, counted.cached_tokens, counted.output_tokens)
    found = []
    if ours != said.usage:
        found.append(f"usage {ours}, not {said.usage} (input, cached, output)")
    if seen.error is not None:
        found += _of_answer(said, seen.error)
    return found


def _of_error(said: Facts, seen: Seen) -> list[str]:
    """Return the differences of an error response."""
    error, got = seen.error, outcome(seen)
    shown = "" if error is None else str(error)
    found = [
        f"the message lacks {words[:_QUOTED]!r}"
        for words in said.words
        if " ".join(words.split())[:30] not in shown and "[key]" not in shown
    ]
    if said.ours and seen.reply is None:
        found.append(f"{got}; expected to send less")
    if not said.ours and got != said.error:
        found.append(f"{got}; expected {said.error}")
    if said.request_id and error is not None and error.request_id != said.request_id:
        found.append(f"request id {error.request_id}, not {said.request_id}")
    return found


def _of_answer(said: Facts, error: ProviderError) -> list[str]:
    """Return the differences of an answer that is no label."""
    if not isinstance(error, ReplyError):
        return [f"{type(error).__name__}; the response is an answer: {str(error)[:120]}"]
    found = []
    if said.kind == "reply" and (error.content or "") != said.text[:2000]:
        found.append(f"content {error.content!r:.60}, not {said.text!r:.60}")
    if said.refused != isinstance(error, RefusalError):
        found.append(f"{type(error).__name__}, refused: {said.refused}")
    if not said.refused and (said.finish in _CUT) != isinstance(error, TruncatedReplyError):
        found.append(f"{type(error).__name__}, finish reason {said.finish!r}")
    if said.request_id and error.request_id != said.request_id:
        found.append(f"request id {error.request_id}, not {said.request_id}")
    return found


def report(exchanges: list[Exchange], seen: list[Seen]) -> tuple[Report, list[str]]:
    """Return the table and the differences."""
    table = Report("recorded", "Recorded exchanges, replayed through provider and transport")
    listed: list[str] = []
    aside: Counter[str] = Counter()
    groups: dict[tuple[str, int, str], list[int]] = {}
    said = [facts(exchange) for exchange in exchanges]
    for i, exchange in enumerate(exchanges):
        if not exchange.protocol:
            aside["other endpoints"] += 1
            continue
        if why := apart(said[i], seen[i]):
            aside[why] += 1
        what = outcome(seen[i])
        groups.setdefault((exchange.host, exchange.status, what), []).append(i)
        listed += [
            f"{exchange.host} {exchange.status} {exchange.request.get('model')} "
            f"({exchange.source}): {line}"
            for line in differences(exchange, said[i], seen[i])
        ]
    for (host, status, what), members in sorted(groups.items()):
        counted = [u for u in (usage_of(seen[i]) for i in members) if u is not None]
        reasons = Counter(said[i].finish or "-" for i in members)
        first = seen[members[0]]
        ids = sum(
            bool((s.error or s.reply) and getattr(s.error or s.reply, "request_id", None))
            for s in (seen[i] for i in members)
        )
        steps = Counter(", ".join(seen[i].steps) for i in members if seen[i].steps)
        table.row(
            host=host,
            status=status,
            n=len(members),
            finish=" ".join(f"{reason}:{n}" for reason, n in reasons.most_common(3)),
            input=sum(u.input_tokens for u in counted),
            cached=sum(u.cached_tokens for u in counted),
            output=sum(u.output_tokens for u in counted),
            outcome=what,
            ids=ids,
            then=next(iter(steps), "")[:60],
            message=_LOOPBACK.sub("", "" if first.error is None else str(first.error))[:90],
        )
    thought: dict[str, list[int]] = {}
    for exchange, facts_ in zip(exchanges, said, strict=True):
        if facts_.reasoning:
            effort = str(exchange.request.get("reasoning_effort") or "not given")
            thought.setdefault(effort, []).append(facts_.reasoning)
    for effort, counts in sorted(thought.items()):
        table.note(f"Reasoning tokens, effort {effort}: median {median(counts):g} of {len(counts)}")
    for why, n in aside.most_common():
        table.note(f"Counted apart, {why}: {n:,}")
    return table, listed


def by_host(exchanges: list[Exchange]) -> Report:
    """Return how many calls were recorded with each host, and when."""
    table = Report("recorded", "Recorded calls of chat completions and messages")
    hosts: dict[str, list[Exchange]] = {}
    for exchange in exchanges:
        if exchange.protocol:
            hosts.setdefault(exchange.host, []).append(exchange)
    for host, members in sorted(hosts.items()):
        seconds = [int(found[1]) for e in members if (found := _CREATED.search(e.body))]
        months = sorted(datetime.fromtimestamp(s, UTC).strftime("%Y-%m") for s in seconds)
        first, last = (months[0], months[-1]) if months else (None, None)
        table.row(host=host, calls=len(members), first=first, last=last)
    return table


def main(arguments: list[str] | None = None) -> None:
    """Replay a file of exchanges; exit with 1 if there are differences."""
    parser = argparse.ArgumentParser(prog="python -m bench recorded", description=__doc__)
    parser.add_argument(
        "--exchanges",
        type=Path,
        required=True,
        metavar="FILE",
        help="JSON Lines: source, host, path, request, status, headers, body",
    )
    parser.add_argument("--hosts", action="store_true", help="only count the calls by host")
    parser.add_argument("--json", metavar="FILE", help="write the table there, too")
    given = parser.parse_args(arguments)
    if not given.exchanges.is_file():
        sys.exit(f"bench recorded: {given.exchanges} does not exist; check --exchanges")
    exchanges = list(read(given.exchanges))
    if given.hosts:
        by_host(exchanges).show()
        return
    log = logging.getLogger("testnuc")
    level = log.level
    log.setLevel(logging.ERROR)  # each change of a format would be a warning
    try:
        table, listed = report(exchanges, asyncio.run(replay(exchanges)))
    finally:
        log.setLevel(level)
    table.note(f"\n{len(exchanges):,} exchanges, {len(listed):,} differences")
    table.show()
    for line in listed:
        print(f"- {line}")
    if given.json:
        table.write(given.json)
    if listed:
        sys.exit(1)

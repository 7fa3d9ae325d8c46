"""One label set of a service, Prometheus metrics, and texts that are set aside for an audit."""

import asyncio
import logging
import math
import random
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from operator import methodcaller
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import orjson

from testnuc._base.checks import needing
from testnuc._engine.learning import learned_in, numbered
from testnuc._engine.reporting import prompt_hash
from testnuc.client import TestNUC, parts_of
from testnuc.errors import (
    BudgetReservedError,
    ConfigurationError,
    ProviderDownError,
    RateLimitedError,
    StoreError,
    TestNUCError,
)
from testnuc.labels import labels_hash
from testnuc.limits.budget import PICO
from testnuc.server.errors import ERROR_TYPES, error_fields
from testnuc.server.settings import ServerSettings
from testnuc.transport.calls import PATIENCE, Patience
from testnuc.trust.audit import AuditedText, AuditWeek, week_of
from testnuc.trust.learned import Learned
from testnuc.trust.review import ReviewContext
from testnuc.types import Classification, Reason

#: Upper bounds in seconds, from a stored prediction to a call that is retried.
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_TRUSTS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)


class Value(NamedTuple):
    """What is read whenever metrics are; None: unknown, and left out."""

    name: str
    meaning: str
    value: float | None
    labels: dict[str, str]
    counted: bool = False


class Metrics:
    """The metrics of one service, in their own registry.

    `places`: the labels by which those of several label sets differ.
    """

    def __init__(self, values: Callable[[], Iterable[Value]], places: Iterable[str]) -> None:
        with needing("the service needs prometheus-client: pip install 'testnuc[server]'"):
            import prometheus_client
        self._library: Any = prometheus_client
        self.content_type: str = prometheus_client.CONTENT_TYPE_LATEST
        self._registry = prometheus_client.CollectorRegistry()
        prometheus_client.ProcessCollector(registry=self._registry)
        counter = partial(prometheus_client.Counter, registry=self._registry)
        self._requests = counter(
            "testnuc_http_requests", "HTTP requests answered.", ["route", "status"]
        )
        histogram = partial(prometheus_client.Histogram, registry=self._registry)
        took = "Duration of a request, from its headers to the end of the response."
        self._seconds = histogram("testnuc_http_request_seconds", took, ["route"], buckets=_BUCKETS)
        #: To be counted by the service; labels as below.
        texts = "Texts by outcome: labeled, unlabeled (no vote), or failed (error and no label)."
        self.texts = counter("testnuc_texts", texts, [*places, "outcome"])
        self.labels = counter("testnuc_labels", "Labels by what gave them.", [*places, "source"])
        self.of_label = counter("testnuc_label_texts", "Texts by label.", [*places, "label"])
        trust = "Trust of labels, by what gave them."
        self.trust = histogram("testnuc_trust", trust, [*places, "source"], buckets=_TRUSTS)
        took = "Duration of an attempt of an LLM call, answered or not, without the wait before it."
        by = [*places, "model"]
        self.calls = histogram("testnuc_llm_call_seconds", took, by, buckets=_BUCKETS)
        what = "Texts whose own call failed, by type of error; others may label them all the same."
        self.failures = counter("testnuc_failed_texts", what, [*places, "type"])
        self._values = values
        self._registry.register(self)

    def request(self, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def page(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        return bytes(self._library.generate_latest(self._registry))

    def collect(self) -> Iterator[Any]:
        """Yield the metrics that are read when the registry asks for them."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        families: dict[str, Any] = {}
        for name, meaning, value, labels, counted in self._values():
            if value is not None:
                if name not in families:
                    kind = CounterMetricFamily if counted else GaugeMetricFamily
                    families[name] = kind(f"testnuc_{name}", meaning, labels=list(labels))
                families[name].add_metric(list(labels.values()), value)
        yield from families.values()


_log = logging.getLogger("testnuc.server")

#: Errors of the texts of a request, by type.
Failed: TypeAlias = dict[str, list[Exception]]
#: Seconds that a request waits for a call that tries a provider which is down.
_FOR_PROBE = 10.0
#: What is noted of a run, and changes no question to the LLM.
_NOT_ASKED = ("k", "policy", "answered", "former")


class ServedSet:
    """The client of a label set, its latest results, and texts that are set aside.

    `place`: the labels of its metrics, by which they differ from those of other sets.
    """

    def __init__(
        self, nuc: TestNUC, settings: ServerSettings, metrics: Metrics, place: dict[str, str]
    ) -> None:
        self._metrics, self._place = metrics, place
        #: The latest results, newest last, for the page.
        self.recent: deque[Classification] = deque(maxlen=1_000)
        #: Texts that are set aside; None: none are.
        self.audit = None if settings.audit is None else TrafficSample(nuc, settings.audit)
        self._before: dict[str, Any] | None = None
        #: What was learned, and its certificate, which takes time to compute.
        self._certified: Learned | None = None
        self._certificate: asyncio.Task[str] | None = None
        self._take(nuc)

    def _take(self, nuc: TestNUC) -> None:
        self.nuc, self._since = nuc, datetime.now(UTC)
        timed = self._metrics.calls.labels(**self._place, model=nuc.model)
        parts_of(nuc).transport.timed = timed.observe
        parts_of(nuc).transport.account.patience = BudgetReservedError.retry_after
        # from 0 on: a rate does not see the first errors of a series that begins with them
        for kind in ERROR_TYPES:
            self._metrics.failures.labels(**self._place, type=kind)
        #: Why the LLM's own labels are kept, as the latest result says; None: they are not.
        self._decision: str | None = None
        names, described = nuc.labels.names, nuc.labels.descriptions
        #: What texts are labeled by, which stays as long as the client.
        self._asks = {
            "model": nuc.model,
            "labels": len(names),
            "labels_hash": labels_hash(names, described),
            "prompt_hash": prompt_hash(parts_of(nuc))[:12],
        }
        self.described = {"labels": [{"label": n, "description": described.get(n)} for n in names]}

    def use(self, nuc: TestNUC) -> None:
        """Label by another client from now on."""
        before, former, now = self._active(), self.nuc.learned, nuc.learned
        self._take(nuc)
        active = self._active()
        if active | {"since": before["since"]} != before:
            self._before = before
        every = [self._place | active, self._before or {}]
        said = [", ".join(f"{name} {value}" for name, value in facts.items()) for facts in every]
        _log.info("labels by %s; before: %s", said[0], said[1] or "the same")
        if former and now and now.decides == "settings" != former.decides:
            _log.warning(
                "labels came from %s; what was learned now proves it no longer, so they are as "
                "without learning: see what testnuc learn said",
                former.name,
            )
        if self.audit is not None:
            self.audit.follow(nuc)

    def _active(self) -> dict[str, Any]:
        learned = self.nuc.learned
        judged = learned.answers if learned else {}
        return {
            **self._asks,
            "judged": len(judged),
            "judged_used": len(judged) - (learned.unused(judged) if learned else 0),
            "since": self._since.isoformat(timespec="seconds"),
        }

    async def info(self) -> dict[str, Any]:
        """Return what is active, and what differed from it at last before a reload."""
        if (learned := self.nuc.learned) is not self._certified:
            self._certified, self._certificate = learned, None
            if learned is not None:
                said = asyncio.to_thread(lambda: str(learned.certify()))
                self._certificate = asyncio.create_task(said)
        if (task := self._certificate) is not None:
            # of all that ask; a caller that leaves does not end it
            await asyncio.wait([task])
        own = dict[str, Any](before=self._before, pool=len(self.nuc), decision=self._decision)
        own["run"] = await self._run()
        own["certificate"] = None if task is None else task.result()
        transport = parts_of(self.nuc).transport
        own["budget_left"] = transport.account.left
        own["paused_seconds"] = round(transport.admission.paused, 1)
        return self._active() | own

    async def _run(self) -> int | None:
        """Return the number of its run in the store; None: not known."""
        parts = parts_of(self.nuc)
        scopes = getattr(parts.store, "scopes", None)
        with suppress(StoreError):
            return None if scopes is None else numbered(await scopes()).get(parts.predictor.scope)
        return None

    @property
    def status(self) -> Literal["ready", "failing", "paused"]:
        """Whether all calls fail, or the provider asked for a pause of more than a minute."""
        if (transport := parts_of(self.nuc).transport).admission.pause:
            return "paused"
        return "failing" if transport.failing else "ready"

    @contextmanager
    def answering(self, about: dict[str, Any], seconds: float, texts: int) -> Iterator[Failed]:
        """Wait for the calls of a request of so many texts; log what failed, by type.

        It does not wait in a long pause of the provider that outlasts it, or beside a learned model
        that labels alone.
        """
        parts, whole = parts_of(self.nuc), None
        failed, transport = defaultdict[str, list[Exception]](list), parts.transport
        pause = transport.admission.pause
        seconds = min(seconds, _FOR_PROBE) if transport.outage.is_down else seconds
        alone = bool(pause) and parts.pipeline.settings.head_decides
        patience = Patience(0.0 if alone or pause > seconds else seconds)
        if pause:
            error = RateLimitedError("the provider asked all to wait", retry_after=pause)
            patience.failures.append(error)
        PATIENCE.set(patience)
        try:
            with transport.observed(patience.failed):
                yield failed
        except TestNUCError as error:
            whole = error_fields(error)["type"]
            raise
        finally:
            for why in patience.failures if transport.failing else ():
                kind = error_fields(why)["type"]
                n = texts if kind == whole else len(failed.get(kind, ()))
                # of a call that was not sent, or of neighbors, the request's own line is enough
                if n and not isinstance(why, ProviderDownError):
                    patience.logged = str(why)
                    fields = about["fields"] | {"type": kind, "texts": n}
                    name, extra = fields["request_id"], {"fields": fields}
                    _log.error("%s: every LLM call fails: %s", name, why, extra=extra)
            for kind, errors in failed.items():
                if patience.is_logged(errors[0]):
                    continue
                fields = about["fields"] | {"type": kind, "texts": len(errors)}
                many = "1 text" if len(errors) == 1 else f"{len(errors)} texts"
                said = fields["request_id"], many, kind, errors[0]
                _log.warning("%s: %s failed: %s, %s", *said, extra={"fields": fields})

    def note(self, result: Classification, failed: Failed) -> None:
        """Count a result, and keep it for the page; its error is added to those that failed."""
        place, metrics = self._place, self._metrics
        unlabeled = "unlabeled" if result.error is None else "failed"
        outcome = unlabeled if result.label is None else "labeled"
        metrics.texts.labels(**place, outcome=outcome).inc()
        if result.label is not None:
            source = result.source or "unknown"
            metrics.labels.labels(**place, source=source).inc()
            if result.trust is not None:
                metrics.trust.labels(**place, source=source).observe(result.trust)
        for label in filter(self.nuc.labels.__contains__, result.labels):
            metrics.of_label.labels(**place, label=label).inc()
        if result.error is not None:
            kind = error_fields(result.error)["type"]
            metrics.failures.labels(**place, type=kind).inc()
            failed[kind].append(result.error)
        self.recent.append(result)
        if self.audit is not None:
            self.audit.start()
            self.audit.note(result)
        kept = isinstance(result.reason, Reason) and result.reason.code == "llm_kept"
        if kept or result.source == "vote":
            self._decision = str(result.reason) if kept else None

    def count_failed(self, kind: str, texts: int) -> None:
        """Count texts that have no result."""
        self._metrics.texts.labels(**self._place, outcome="failed").inc(texts)
        self._metrics.failures.labels(**self._place, type=kind).inc(texts)

    async def begin(self) -> None:
        """Read what is set aside, and what the last audit found; say what is not used."""
        if self.audit is not None:
            self.audit.start()
            await self.audit.flush()
        own, store = parts_of(self.nuc).facts, cast("Any", parts_of(self.nuc).store)
        # stores of one's own have what the protocol has
        if self.nuc.learned or not hasattr(store, "learned"):
            return
        scopes = dict(await store.scopes())
        others = [
            [n for n in own | of if of and n not in _NOT_ASKED and own.get(n) != of.get(n)]
            for of in map(scopes.__getitem__, await learned_in(store, scopes))
        ]
        if others:
            fewest = min(others, key=len)
            _log.warning(
                "%sthe store was learned from with other settings (%s): its judgments are not used "
                "here; send the texts of before again, then testnuc learn STORE STORE --labels "
                "LABELS carries the judgments over, and SIGHUP reads them; with the settings of "
                "before they are used again",
                "".join(f"{name}: " for name in self._place.values()),
                ", ".join(fewest) or "not noted",
            )

    async def close(self) -> None:
        """Store what is set aside."""
        if self.audit is not None:
            await self.audit.stop()

    def values(self) -> Iterator[Value]:
        """Yield what metrics say of it."""
        tokens, account = "Tokens, as far as known.", parts_of(self.nuc).transport.account
        for name, counter, meaning, labels in (
            ("llm_calls", "calls", "Calls answered by the provider.", {}),
            ("llm_calls_incomplete", "incomplete", "Calls whose answer broke off or was late.", {}),
            ("retries", "retries", "Retries after a failed call.", {}),
            ("llm_answers_unstored", "unstored", "Answers that the store did not take.", {}),
            ("store_hits", "store_hits", "Predictions read from the store.", {}),
            ("coalesced", "coalesced", "Predictions shared with another request in flight.", {}),
            ("llm_calls_unmeasured", "unmeasured", "Calls whose tokens are unknown.", {}),
            ("llm_tokens", "input_tokens", tokens, {"direction": "input"}),
            ("llm_tokens", "output_tokens", tokens, {"direction": "output"}),
        ):
            total = sum(getattr(meter, counter) for meter in account.meters)
            yield Value(name, meaning, total, self._place | labels, counted=True)
        usd = [meter.pico_usd / PICO for meter in account.meters if meter.price is not None]
        known = "Known cost in US dollars, by list price."
        yield Value("cost_usd", known, sum(usd) if usd else None, self._place, counted=True)
        for unit, left in account.left.items():
            yield Value("budget_left", "Left of the budget.", left, self._place | {"unit": unit})
        transport, store = parts_of(self.nuc).transport, parts_of(self.nuc).store
        write = getattr(getattr(store, "database", None), "oldest_write", None)
        failing = float(self.status == "failing")
        gauges: list[tuple[str, str, float | None]] = [
            ("failing", "1 while LLM calls fail as every other one would.", failing),
            ("paused_seconds", "Seconds for which no call is sent.", transport.admission.paused),
            ("oldest_call_seconds", "Age of the oldest LLM call in flight.", transport.oldest),
            ("oldest_write_seconds", "Age of the oldest write to the SQLite store.", write),
            ("pool_texts", "Texts in the pool.", len(self.nuc)),
            ("judged", "Judgments that labels come from.", self._active()["judged_used"]),
        ]
        if self.audit is not None:
            found, accuracy = self.audit.summary, "Accuracy of all judged texts."
            gauges += [
                ("audit_texts", "Texts set aside in this week.", len(self.audit.latest.sample)),
                ("audit_judged", "Judged texts.", found.get("judged", 0)),
                ("audit_accuracy", accuracy, found.get("accuracy", math.nan)),
                ("audit_alarms", "Proved changes.", found.get("alarms", 0)),
            ]
        for name, meaning, value in gauges:
            yield Value(name, meaning, value, self._place)


#: Seconds between two writes of how many texts got each label; texts set aside are written at once.
_SECONDS = 60.0


class TrafficSample:
    """Counts the labels that a service gives, and sets `size` texts a week aside at random."""

    def __init__(self, nuc: TestNUC, size: int, clock: Callable[[], float] = time.time) -> None:
        store = parts_of(nuc).store
        if not (store.durable and hasattr(store, "swap_learned")):
            raise ConfigurationError(
                "texts are set aside for an audit in the store, and this service has none that "
                "outlives it; add --store labels.db, or leave out --audit"
            )
        self._size, self._clock = size, clock
        #: What is not in the store yet, by week and labels.
        self._waiting: dict[tuple[str, bool, Sequence[str]], AuditWeek] = {}
        self._wake, self._flushing, self._closing = asyncio.Event(), asyncio.Lock(), False
        self._writing: asyncio.Task[None] | None = None
        #: What the last `testnuc audit` said.
        self.summary: dict[str, Any] = {}
        self.follow(nuc)

    def follow(self, nuc: TestNUC) -> None:
        """Set texts aside for the labels of another client of the same store."""
        labels = nuc.labels
        context = ReviewContext(
            descriptions=dict(labels.descriptions),
            instructions=parts_of(nuc).instructions,
            none_label=labels.none_label,
        )
        self._store = parts_of(nuc).store
        self._facts = (labels.names, labels.multilabel, nuc.model, context, self._size)
        #: The latest week as it is in the store.
        self.latest = self._new("")

    def _new(self, week: str) -> AuditWeek:
        return AuditWeek(week, *self._facts)

    def note(self, result: Classification) -> None:
        """Count a result, and set its text aside if its random number is among the lowest."""
        labels, several = self._facts[:2]
        if (result.label is None and result.error is not None) or {*result.labels} - {*labels}:
            # it failed, or was requested before the labels changed
            return
        now, order = self._clock(), random.random()  # noqa: S311 - it draws a sample
        name = week_of(now)
        place = name, several, labels
        if (week := self._waiting.get(place)) is None:
            week = self._waiting[place] = self._new(name)
        week.count(result.label, now)
        stored = self.latest if self.latest.week == name else week
        if len(stored.sample) < stored.size or order < stored.sample[-1].order:
            said = result.label, result.own_label, result.alternative
            week.keep([AuditedText(result.text, now, order, *said, result.trust)])
            self._wake.set()

    def start(self) -> None:
        """Write to the store from now on."""
        if self._writing is None:
            self._writing = asyncio.create_task(self._write(), name="testnuc-audit")

    async def stop(self) -> None:
        """Write for the last time."""
        self._closing = True
        self._wake.set()
        if self._writing is not None:
            await self._writing

    async def _write(self) -> None:
        last = False
        while not last:
            with suppress(TimeoutError):
                async with asyncio.timeout(_SECONDS):
                    await self._wake.wait()
            self._wake.clear()
            last = self._closing
            await self.flush()

    async def flush(self, gone: frozenset[bytes] = frozenset()) -> None:
        """Write what is waiting; what fails keeps waiting, but for texts that are gone."""
        # not while another one writes, which could write what is gone
        async with self._flushing:
            waiting, self._waiting = self._waiting, {}
            # this week is read also if nothing is waiting
            now, (labels, several, *_) = week_of(self._clock()), self._facts
            waiting.setdefault((now, several, labels), self._new(now))
            for place, week in sorted(waiting.items()):
                new = replace(week, texts=0, given={}, sample=[])
                try:
                    # first: what fails after the week is stored would be stored again
                    summary = await summary_of(self._store, week)
                    stored = await changed(self._store, new, methodcaller("merge", week))
                    if week.key() == self._new(week.week).key():
                        self.latest, self.summary = stored, summary
                except StoreError as exc:
                    _log.warning("texts for an audit are not stored yet: %s", exc)
                    self._waiting.setdefault(place, new).merge(week)
            for week in (*self._waiting.values(), self.latest):
                week.erase(gone)


async def changed(store: Any, new: AuditWeek, change: Callable[[AuditWeek], object]) -> AuditWeek:
    """Change a week in a store, `new` where it has none; others may change it, too."""
    while True:
        data = await store.get_learned(new.key())
        before = data or new.to_bytes()
        week = AuditWeek.of(before)
        change(week)
        after = week.to_bytes()
        if after == before or await store.swap_learned(new.key(), data, after):
            return week


async def summary_of(store: Any, week: AuditWeek) -> dict[str, Any]:
    """Return what the last `testnuc audit` said of these labels; {} before the first."""
    data = await store.get_learned(week.key(""))
    try:
        found = dict(orjson.loads(data or b"{}"))
    except (TypeError, ValueError) as exc:
        what = f"the summary of an audit is damaged: {exc!r}"
        raise StoreError(f"{what}; run `testnuc audit` with --since") from exc
    return {n: v for n, v in found.items() if isinstance(v, int | float) or n == "since"}


async def set_summary(store: Any, week: AuditWeek, summary: dict[str, Any]) -> None:
    """Store what an audit said."""
    data = orjson.dumps(summary)
    while not await store.swap_learned(week.key(""), await store.get_learned(week.key("")), data):
        pass

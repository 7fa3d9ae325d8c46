"""One label set of a service, and Prometheus metrics; these need prometheus-client."""

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

from testnuc._base.checks import needing
from testnuc.client import TestNUC, parts_of
from testnuc.server.auditing import TrafficSample
from testnuc.server.errors import error_fields
from testnuc.server.settings import ServerSettings
from testnuc.types import Classification, Reason

#: Upper bounds in seconds, from a stored prediction to a call that is retried.
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


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
        self._seconds = prometheus_client.Histogram(
            "testnuc_http_request_seconds",
            "Duration of a request, from its headers to the end of the response.",
            ["route"],
            buckets=_BUCKETS,
            registry=self._registry,
        )
        #: To be counted by the service; labels as below.
        self.texts = counter(
            "testnuc_texts",
            "Texts by outcome: labeled, unlabeled (no vote), or failed (error and no label).",
            [*places, "outcome"],
        )
        self.labels = counter("testnuc_labels", "Labels by what gave them.", [*places, "source"])
        self.failures = counter(
            "testnuc_failed_texts",
            "Texts whose own call failed, by type of error; others may label them all the same.",
            [*places, "type"],
        )
        self._registry.register(_Collector(values))

    def request(self, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def page(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        page: bytes = self._library.generate_latest(self._registry)
        return page


class _Collector:
    """Exports what the service and its clients know."""

    def __init__(self, values: Callable[[], Iterable[Value]]) -> None:
        self._values = values

    def collect(self) -> Iterator[Any]:
        """Yield the metric families."""
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

#: Results kept for the page.
_RECENT = 1_000


class ServedSet:
    """The client of a label set, its latest results, and texts that are set aside.

    `place`: the labels of its metrics, by which they differ from those of other sets.
    """

    def __init__(
        self, nuc: TestNUC, settings: ServerSettings, metrics: Metrics, place: dict[str, str]
    ) -> None:
        self._metrics, self._place = metrics, place
        #: The latest results, newest last.
        self.recent: deque[Classification] = deque(maxlen=_RECENT)
        #: Texts that are set aside; None: none are.
        self.audit = None if settings.audit is None else TrafficSample(nuc, settings.audit)
        self._before: dict[str, Any] | None = None
        self._take(nuc)

    def _take(self, nuc: TestNUC) -> None:
        self.nuc, self._since = nuc, datetime.now(UTC)
        #: Why the LLM's own labels were kept when they were last.
        self._decision: str | None = None
        described = nuc.labels.descriptions
        self.described = {
            "labels": [{"label": n, "description": described.get(n)} for n in nuc.labels.names]
        }

    def use(self, nuc: TestNUC) -> None:
        """Label by another client from now on."""
        self._before = self._active()
        self._take(nuc)
        if self.audit is not None:
            self.audit.follow(nuc)

    def _active(self) -> dict[str, Any]:
        learned = self.nuc.learned
        return {
            "model": self.nuc.model,
            "labels": len(self.nuc.labels.names),
            "judged": 0 if learned is None else len(learned.judged),
            "since": self._since.isoformat(timespec="seconds"),
        }

    def info(self) -> dict[str, Any]:
        """Return what is active, and what was before."""
        own = {"before": self._before, "pool": len(self.nuc), "decision": self._decision}
        return self._active() | own

    @property
    def paused(self) -> bool:
        """Whether the provider asked for a pause of more than a minute."""
        return bool(parts_of(self.nuc).transport.admission.pause)

    def note(self, result: Classification) -> None:
        """Count a result, and keep it for the page."""
        place, metrics = self._place, self._metrics
        unlabeled = "unlabeled" if result.error is None else "failed"
        outcome = unlabeled if result.label is None else "labeled"
        metrics.texts.labels(**place, outcome=outcome).inc()
        if result.label is not None:
            metrics.labels.labels(**place, source=result.source or "unknown").inc()
        if result.error is not None:
            kind = error_fields(result.error)["type"]
            metrics.failures.labels(**place, type=kind).inc()
            _log.warning("a text failed: %s, %s", kind, result.error)
        self.recent.append(result)
        if self.audit is not None:
            self.audit.start()
            self.audit.note(result)
        if isinstance(result.reason, Reason) and result.reason.code == "llm_kept":
            self._decision = str(result.reason)

    def count_failed(self, kind: str, texts: int) -> None:
        """Count texts that have no result."""
        self._metrics.texts.labels(**self._place, outcome="failed").inc(texts)
        self._metrics.failures.labels(**self._place, type=kind).inc(texts)

    async def close(self) -> None:
        """Store what is set aside."""
        if self.audit is not None:
            await self.audit.stop()

    def values(self) -> Iterator[Value]:
        """Yield what metrics say of it."""
        usage = self.nuc.usage
        for name, meaning, value in (
            ("llm_calls", "Calls answered by the provider.", usage.calls),
            ("retries", "Retries after a failed call.", usage.retries),
            ("store_hits", "Predictions read from the store.", usage.store_hits),
            ("coalesced", "Predictions shared with another request in flight.", usage.coalesced),
            ("cost_usd", "Cost in US dollars, by list price.", usage.usd),
        ):
            yield Value(name, meaning, value, self._place, counted=True)
        for direction, n in (("input", usage.input_tokens), ("output", usage.output_tokens)):
            labels = self._place | {"direction": direction}
            yield Value("llm_tokens", "Tokens.", n, labels, counted=True)
        yield Value("pool_texts", "Texts in the pool.", len(self.nuc), self._place)
        if self.audit is None:
            return
        found, accuracy = self.audit.summary, "Accuracy of all judged texts."
        for name, meaning, value in (
            ("texts", "Texts set aside in this week.", len(self.audit.latest.sample)),
            ("judged", "Judged texts.", found.get("judged", 0)),
            ("accuracy", accuracy, found.get("accuracy", math.nan)),
            ("alarms", "Proved changes.", found.get("alarms", 0)),
        ):
            yield Value(f"audit_{name}", meaning, value, self._place)

"""Prometheus metrics of a service; needs prometheus-client."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

from testnuc._base.checks import needing

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

"""Prometheus metrics of a service; needs prometheus-client."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from testnuc.errors import MissingDependencyError
from testnuc.types import Usage

#: Upper bounds in seconds, from a stored prediction to a call that is retried.
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class Metrics:
    """The metrics of one service, in their own registry."""

    def __init__(self, usage: Callable[[], Usage]) -> None:
        try:
            import prometheus_client
        except ImportError as exc:
            raise MissingDependencyError(
                "the service needs prometheus-client: pip install 'testnuc[server]'"
            ) from exc
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
            ["outcome"],
        )
        self.labels = counter("testnuc_labels", "Labels by what gave them.", ["source"])
        self.failures = counter(
            "testnuc_failed_texts",
            "Texts whose own call failed, by type of error; others may label them all the same.",
            ["type"],
        )
        self._registry.register(_UsageCollector(usage))

    def gauges(self, **values: tuple[str, Callable[[], float]]) -> None:
        """Add gauges: name -> what it is, and the function that returns its value."""
        for name, (description, value) in values.items():
            gauge = self._library.Gauge(f"testnuc_{name}", description, registry=self._registry)
            gauge.set_function(value)

    def request(self, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def page(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        page: bytes = self._library.generate_latest(self._registry)
        return page


class _UsageCollector:
    """Exports the counters that the client keeps."""

    def __init__(self, usage: Callable[[], Usage]) -> None:
        self._usage = usage

    def collect(self) -> Iterator[Any]:
        """Yield the metric families; unknown values are left out."""
        from prometheus_client.core import CounterMetricFamily

        usage = self._usage()
        for name, description, value in (
            ("testnuc_llm_calls", "Calls answered by the provider.", usage.calls),
            ("testnuc_retries", "Retries after a failed call.", usage.retries),
            ("testnuc_store_hits", "Predictions read from the store.", usage.store_hits),
            (
                "testnuc_coalesced",
                "Predictions shared with another request in flight.",
                usage.coalesced,
            ),
            ("testnuc_cost_usd", "Cost in US dollars, by list price.", usage.usd),
        ):
            if value is not None:
                yield CounterMetricFamily(name, description, value=value)
        if usage.input_tokens is not None and usage.output_tokens is not None:
            tokens = CounterMetricFamily("testnuc_llm_tokens", "Tokens.", labels=["direction"])
            tokens.add_metric(["input"], usage.input_tokens)
            tokens.add_metric(["output"], usage.output_tokens)
            yield tokens

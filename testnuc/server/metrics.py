"""What a service tells Prometheus; needs prometheus-client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from testnuc.errors import MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from testnuc.server.service import Service
    from testnuc.types import Classification

__all__ = ["Metrics"]

#: Upper ends in seconds: from an answer of the store to a call that is tried again.
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class Metrics:
    """Counts of one service, in a registry of its own.

    Parameters
    ----------
    service : Service

    Raises
    ------
    MissingDependencyError
        prometheus-client is not installed.
    """

    def __init__(self, service: Service) -> None:
        try:
            import prometheus_client
        except ImportError as exc:
            raise MissingDependencyError(
                "the service needs prometheus-client: pip install 'testnuc[server]'"
            ) from exc
        self._generate = prometheus_client.generate_latest
        self.content_type: str = prometheus_client.CONTENT_TYPE_LATEST
        self._registry = prometheus_client.CollectorRegistry()
        prometheus_client.ProcessCollector(registry=self._registry)
        self._requests = prometheus_client.Counter(
            "testnuc_http_requests",
            "Requests that were answered.",
            ["route", "status"],
            registry=self._registry,
        )
        self._seconds = prometheus_client.Histogram(
            "testnuc_http_request_seconds",
            "From the head of a request to the end of its answer.",
            ["route"],
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self._texts = prometheus_client.Counter(
            "testnuc_texts",
            "Texts by outcome: labeled, unlabeled (nobody could say), or failed (no label and an "
            "error).",
            ["outcome"],
            registry=self._registry,
        )
        self._registry.register(_OfService(service))

    def request(self, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def text(self, result: Classification) -> None:
        """Count a text."""
        outcome = "labeled"
        if result.label is None:
            outcome = "unlabeled" if result.error is None else "failed"
        self._texts.labels(outcome).inc()

    def text_failed(self) -> None:
        """Count a text whose request failed as a whole."""
        self._texts.labels("failed").inc()

    def page(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        page: bytes = self._generate(self._registry)
        return page


class _OfService:
    """What a service counts itself, read when it is asked for."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Any]:
        """Yield one family of metrics after the other; what is unknown is left out."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        service = self._service
        usage, queue = service.nuc.usage, service.queue
        for name, told, value in (
            ("testnuc_llm_calls", "Calls that the provider answered.", usage.calls),
            ("testnuc_retries", "Calls that were sent again after a failure.", usage.retries),
            ("testnuc_store_hits", "Predictions that were stored already.", usage.store_hits),
            ("testnuc_coalesced", "Predictions that another request asked for.", usage.coalesced),
            ("testnuc_cost_usd", "US dollars by the price list.", usage.usd),
        ):
            if value is not None:
                yield CounterMetricFamily(name, told, value=value)
        if usage.input_tokens is not None and usage.output_tokens is not None:
            tokens = CounterMetricFamily("testnuc_llm_tokens", "Tokens.", labels=["direction"])
            tokens.add_metric(["input"], usage.input_tokens)
            tokens.add_metric(["output"], usage.output_tokens)
            yield tokens
        for name, told, value in (
            ("testnuc_pending_texts", "Texts being labeled or waiting for it.", queue.pending),
            ("testnuc_pending_texts_limit", "Most of them.", queue.limit),
            ("testnuc_pool_texts", "Texts that neighbors come from.", len(service.nuc)),
            ("testnuc_ready", "1 while requests are taken.", int(service.state == "ready")),
        ):
            yield GaugeMetricFamily(name, told, value=value)

"""Prometheus metrics: vLLM's names under our own prefix, read from the engine's statistics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from starlette.responses import Response

from llamalane import __version__
from llamalane.api.metric_families import PREFIX, engine_families, lane_families, level_families
from llamalane.scheduler import Engine

GetEngine = Callable[[], Engine | None]
"""Returns the engine, None while there is none."""


class Metrics:
    """The metrics of one app, in a registry of their own; `others` add theirs.

    No label names a tenant, a key or a request: the number of time series is bounded by the levels and lanes that are
    configured, and by the endpoints that there are.
    """

    def __init__(self, engine: GetEngine, *others: Collector) -> None:
        self._responses: Counter[tuple[str, int]] = Counter()
        self._registry = CollectorRegistry()
        for collector in (AppCollector(engine, self._responses), *others):
            self._registry.register(collector)
        ProcessCollector(registry=self._registry)

    def count_response(self, endpoint: str, status: int) -> None:
        """Count an answered HTTP request; `endpoint` is the route's path, as it is declared."""
        self._responses[endpoint, status] += 1

    def response(self, accept: str) -> Response:
        """Return all metrics in the format that the `Accept` header asks for."""
        encode, content_type = choose_encoder(accept)
        return Response(encode(self._registry), media_type=content_type)


class AppCollector(Collector):
    """Turns the engine's statistics, and the `responses` counted, into metrics at the moment of asking."""

    def __init__(self, engine: GetEngine, responses: Counter[tuple[str, int]]) -> None:
        self._engine = engine
        self._responses = responses

    def describe(self) -> Iterable[Metric]:
        """Return nothing: the metrics are known only when there is an engine."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Return the metrics of this moment."""
        yield InfoMetricFamily(f"{PREFIX}build", "The version that runs.", {"version": __version__})
        help_text = "HTTP requests answered, by endpoint and status; 499 stands for clients that left."
        answered = CounterMetricFamily(f"{PREFIX}http_requests", help_text, labels=["endpoint", "status"])
        for (endpoint, status), count in self._responses.items():
            answered.add_metric([endpoint, str(status)], count)
        yield answered
        engine = self._engine()
        if engine is not None:
            statistics, model = engine.stats(), engine.model_name
            yield from engine_families(statistics, model)
            yield from level_families(statistics.levels, model)
            yield from lane_families(statistics.lanes, model)

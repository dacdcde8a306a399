"""Prometheus metrics: vLLM's names under our own prefix, read from the engine's statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from starlette.responses import Response

from llamalane.scheduler import EngineStatistics, LaneStatistics, Result

# vLLM's buckets, so that dashboards made for it fit.
_FIRST_TOKEN_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_REQUEST_BUCKETS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)

ReadStatistics = Callable[[], EngineStatistics | None]
"""Returns the engine's statistics, None while there is no engine."""


class Metrics:
    """The metrics of one app, in a registry of their own; `others` add theirs."""

    def __init__(self, statistics: ReadStatistics, *others: Collector) -> None:
        self._registry = CollectorRegistry()
        for collector in (EngineCollector(statistics), *others):
            self._registry.register(collector)
        self._queue_time = self._histogram(
            "request_queue_time_seconds", "Time from submission to admission.", _REQUEST_BUCKETS
        )
        self._first_token = self._histogram(
            "time_to_first_token_seconds", "Time from submission to the first token.", _FIRST_TOKEN_BUCKETS
        )
        self._total = self._histogram(
            "e2e_request_latency_seconds", "Time from submission to the end.", _REQUEST_BUCKETS
        )

    def observe(self, result: Result) -> None:
        """Count a finished request."""
        level = str(result.level)
        self._queue_time.labels(level).observe(result.timings.wait)
        self._first_token.labels(level).observe(result.timings.first_token)
        self._total.labels(level).observe(result.timings.total)

    def response(self, accept: str) -> Response:
        """Return all metrics in the format that the `Accept` header asks for."""
        encode, content_type = choose_encoder(accept)
        return Response(encode(self._registry), media_type=content_type)

    def _histogram(self, name: str, help_text: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(f"llamalane_{name}", help_text, ["level"], buckets=buckets, registry=self._registry)


class EngineCollector(Collector):
    """Turns the engine's statistics into metrics at the moment of asking."""

    def __init__(self, statistics: ReadStatistics) -> None:
        self._statistics = statistics

    def describe(self) -> Iterable[Metric]:
        """Return nothing: the metrics are known only when there is an engine."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Return the metrics of this moment."""
        statistics = self._statistics()
        if statistics is not None:
            yield from _engine_metrics(statistics)
            yield from _counter_metrics(statistics)
            yield from _lane_metrics(statistics.lanes)


def _engine_metrics(statistics: EngineStatistics) -> Iterator[Metric]:
    state = GaugeMetricFamily("llamalane_engine_state", "1 for the state the engine is in.", labels=["state"])
    for possible in type(statistics.state):
        state.add_metric([possible.value], float(possible is statistics.state))
    yield state
    for name, help_text, by_level in (
        ("waiting", "Requests in the queue.", statistics.waiting),
        ("running", "Requests that hold a place.", statistics.running),
    ):
        family = GaugeMetricFamily(f"llamalane_num_requests_{name}", help_text, labels=["level"])
        for level, count in sorted(by_level.items()):
            family.add_metric([str(level)], count)
        yield family
    yield GaugeMetricFamily(
        "llamalane_num_tokens_waiting", "Tokens of the requests in the queue.", statistics.waiting_tokens
    )
    yield GaugeMetricFamily("llamalane_places", "Places of all lanes.", statistics.places)
    yield GaugeMetricFamily("llamalane_places_free", "Places that can be taken.", statistics.free_places)
    host = statistics.host
    if host is not None:
        for name, help_text, value in (
            ("bytes_max", "Host memory that saved cells may take.", host.max_bytes),
            ("bytes_parked", "Host memory for cells of parked requests.", host.reserved_bytes),
            ("bytes_prompts", "Host memory for cells of prompts that may come again.", host.used_bytes),
            ("prompts", "Prompts whose cells are in host memory.", host.entries),
        ):
            yield GaugeMetricFamily(f"llamalane_host_{name}", help_text, value)


def _counter_metrics(statistics: EngineStatistics) -> Iterator[Metric]:
    counters = statistics.counters
    for name, help_text, value in (
        ("prompt_tokens", "Prompt tokens of admitted requests.", counters.prompt_tokens),
        ("prompt_tokens_cached", "Prompt tokens that were in the KV cache.", counters.cached_tokens),
        ("prompt_tokens_restored", "Prompt tokens that were put back from outside.", statistics.restored_tokens),
        ("generation_tokens", "Tokens generated.", counters.completion_tokens),
        ("requests_admitted", "Requests that got a place.", counters.admitted),
        ("requests_in_time", "Requests finished with tokens as quick as their level's target.", counters.in_time),
        ("handovers", "Times that a prompt was handed over from a lane of its own.", counters.handovers),
        ("request_restarts", "Times that a request began anew because its lane failed.", counters.restarts),
    ):
        yield CounterMetricFamily(f"llamalane_{name}", help_text, value)
    ended = CounterMetricFamily("llamalane_requests_ended", "Requests that ended, by how they did.", labels=["outcome"])
    for outcome in ("finished", "cancelled", "failed", "expired"):
        ended.add_metric([outcome], getattr(counters, outcome))
    yield ended
    for name, help_text, label, counts in (
        ("requests_rejected", "Requests refused at submission, or turned out, by reason.", "reason", counters.rejected),
        ("parks", "Times that requests had to give way, by what became of their cells.", "how", counters.parks),
    ):
        family = CounterMetricFamily(f"llamalane_{name}", help_text, labels=[label])
        for value_of_label, count in counts.items():
            family.add_metric([value_of_label], count)
        yield family


def _lane_metrics(lanes: Iterable[LaneStatistics]) -> Iterator[Metric]:
    gauges: tuple[tuple[str, str, Callable[[LaneStatistics], float]], ...] = (
        ("serving", "1 while the lane has a context.", lambda lane: lane.serving),
        ("down", "1 when the lane has given up.", lambda lane: lane.down),
        ("paused", "1 while the lane finishes what runs on it and takes nothing new.", lambda lane: lane.paused),
        ("places", "Places of the lane.", lambda lane: lane.places),
        ("running", "Requests that hold a place of the lane.", lambda lane: lane.running),
        ("kv_cells", "KV cells of the lane.", lambda lane: lane.cells),
        ("kv_cells_reserved", "KV cells promised to running requests.", lambda lane: lane.reserved_cells),
        ("kv_cells_paused", "KV cells of paused requests.", lambda lane: lane.paused_cells),
        ("kv_cells_kept", "KV cells kept for continued requests.", lambda lane: lane.kept_cells),
    )
    counters: tuple[tuple[str, str, Callable[[LaneStatistics], float]], ...] = (
        ("steps", "Steps computed.", lambda lane: lane.steps),
        ("abandoned_steps", "Steps broken off for a more urgent request.", lambda lane: lane.abandoned_steps),
        ("kv_evictions", "Times that kept KV cells were given up.", lambda lane: lane.evictions),
        ("failures", "Failures of the lane's context.", lambda lane: lane.failures),
        ("decode_seconds", "Time in llama_decode.", lambda lane: lane.decode_seconds),
        ("sample_seconds", "Time choosing tokens.", lambda lane: lane.sample_seconds),
        ("idle_seconds", "Time between steps while there was work.", lambda lane: lane.idle_seconds),
    )
    listed = tuple(lanes)
    for kind, entries in ((GaugeMetricFamily, gauges), (CounterMetricFamily, counters)):
        for name, help_text, value in entries:
            family = kind(f"llamalane_lane_{name}", help_text, labels=["lane"])
            for lane in listed:
                family.add_metric([lane.name], float(value(lane)))
            yield family

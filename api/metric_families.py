"""What the engine's statistics are called in Prometheus, and which labels they have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

from llamalane.ids import Level
from llamalane.scheduler import (
    Counters,
    EngineStatistics,
    FinishReason,
    HistogramSnapshot,
    LaneStatistics,
    LevelStatistics,
    Measure,
    Parking,
    ParkReason,
)

PREFIX = "llamalane_"
MODEL = "model_name"
"""vLLM's name for the label, so that its dashboards can be taken over."""

_MEASURES: Mapping[Measure, str] = {
    Measure.QUEUE_TIME: "Time from submission to the first admission.",
    Measure.FIRST_TOKEN: "Time from submission to the first token.",
    Measure.INTER_TOKEN: "Time from one token to the next; waits of parked requests count.",
    Measure.PER_TOKEN: "Mean time from one token to the next, of each finished request.",
    Measure.PREFILL: "Time from admission to the first token, of finished requests.",
    Measure.DECODE: "Time from the first token to the last, of finished requests.",
    Measure.INFERENCE: "Time from admission to the last token, of finished requests.",
    Measure.TOTAL: "Time from submission to the end, of finished requests.",
    Measure.PROMPT_TOKENS: "Tokens of the prompt, of finished requests.",
    Measure.OUTPUT_TOKENS: "Tokens generated, of finished requests.",
    Measure.MAX_TOKENS: "Tokens that might have been generated, of finished requests.",
    Measure.PARKS: "Times that the request had to give way, of finished requests.",
    Measure.TEXT_TOTAL: "Time from submission to the vector or the scores, of each text.",
    Measure.TEXT_TOKENS: "Tokens of each text that was embedded or scored.",
}
_REJECTIONS = ("requests", "tokens", "concurrent", "tokens_per_minute", "shed", "deadline")


@dataclass(frozen=True, slots=True)
class _Family:
    """One metric: its name without prefix, its help, and its value, or its values by a further label."""

    name: str
    help_text: str
    value: float | Mapping[str, float]
    label: str = ""

    def gauge(self, model: str) -> Metric:
        """Return it as a gauge."""
        return self._fill(GaugeMetricFamily(PREFIX + self.name, self.help_text, labels=self._labels), model)

    def counter(self, model: str) -> Metric:
        """Return it as a counter."""
        return self._fill(CounterMetricFamily(PREFIX + self.name, self.help_text, labels=self._labels), model)

    @property
    def _labels(self) -> list[str]:
        return [MODEL, self.label] if self.label else [MODEL]

    def _fill(self, family: GaugeMetricFamily | CounterMetricFamily, model: str) -> Metric:
        if isinstance(self.value, Mapping):
            for label, value in self.value.items():
                family.add_metric([model, label], float(value))
        else:
            family.add_metric([model], float(self.value))
        return family


def engine_families(statistics: EngineStatistics, model: str) -> Iterator[Metric]:
    """Return what is told of the engine as a whole."""
    for gauge in _engine_gauges(statistics):
        yield gauge.gauge(model)
    for counter in (*_request_counters(statistics.counters), *_memory_counters(statistics)):
        yield counter.counter(model)


def level_families(levels: Mapping[Level, LevelStatistics], model: str) -> Iterator[Metric]:
    """Return what is told of each level; histograms only of levels that had requests."""
    counters: tuple[tuple[str, str, Callable[[LevelStatistics], int]], ...] = (
        ("requests_admitted", "Requests that got a place.", lambda one: one.admitted),
        ("requests_finished", "Requests that had a result.", lambda one: one.finished),
        (
            "requests_in_time",
            "Requests finished with tokens as quick as their level's target (goodput).",
            lambda one: one.in_time,
        ),
        ("num_preemptions", "Times that running requests had to give way.", lambda one: one.parked),
        ("admissions_by_share", "Requests that got a place by the guaranteed share.", lambda one: one.by_share),
        (
            "admissions_promoted",
            "Requests that got a place before a waiting one of a more urgent level, having waited long enough.",
            lambda one: one.promoted,
        ),
    )
    for name, help_text, value in counters:
        values = {str(level): value(one) for level, one in levels.items()}
        yield _Family(name, help_text, values, "level").counter(model)
    for measure, help_text in _MEASURES.items():
        family = HistogramMetricFamily(PREFIX + measure.value, help_text, labels=[MODEL, "level"])
        for level, one in levels.items():
            if one.admitted:
                _add_histogram(family, [model, str(level)], one.histograms[measure])
        yield family


def lane_families(lanes: Sequence[LaneStatistics], model: str) -> Iterator[Metric]:
    """Return what is told of each lane."""
    gauges: tuple[tuple[str, str, Callable[[LaneStatistics], float]], ...] = (
        ("lane_serving", "1 while the lane has a context.", lambda lane: lane.serving),
        ("lane_down", "1 when the lane has given up.", lambda lane: lane.down),
        ("lane_paused", "1 while the lane finishes what runs on it and takes nothing new.", lambda lane: lane.paused),
        (
            "lane_step_age_seconds",
            "Time since the step under way began; 0 while there is nothing to compute.",
            lambda lane: lane.step_age,
        ),
        ("lane_places", "Places of the lane.", lambda lane: lane.places),
        ("lane_running", "Requests that hold a place of the lane.", lambda lane: lane.running),
        ("lane_threads", "CPU threads that the lane computes with now; 0 on a GPU.", lambda lane: lane.threads),
        ("lane_kv_cells", "KV cells of the lane.", lambda lane: lane.cells),
        ("lane_kv_cells_reserved", "KV cells promised to running requests.", lambda lane: lane.reserved_cells),
        ("lane_kv_cells_paused", "KV cells of paused requests.", lambda lane: lane.paused_cells),
        ("lane_kv_cells_kept", "KV cells kept for continued requests.", lambda lane: lane.kept_cells),
        ("kv_cache_usage_perc", "Share of the lane's KV cells that requests hold, 0 to 1.", _kv_use),
    )
    counters: tuple[tuple[str, str, Callable[[LaneStatistics], float]], ...] = (
        ("lane_steps", "Steps computed.", lambda lane: lane.steps),
        ("lane_abandoned_steps", "Steps broken off for a more urgent request.", lambda lane: lane.abandoned_steps),
        ("lane_kv_evictions", "Times that kept KV cells were given up.", lambda lane: lane.evictions),
        ("lane_failures", "Failures of the lane's context.", lambda lane: lane.failures),
        ("lane_decode_seconds", "Time in llama_decode.", lambda lane: lane.decode_seconds),
        ("lane_sample_seconds", "Time choosing tokens.", lambda lane: lane.sample_seconds),
        ("lane_idle_seconds", "Time between steps while there was work.", lambda lane: lane.idle_seconds),
        ("spec_decode_num_draft_tokens", "Tokens computed as drafts.", lambda lane: lane.drafted_tokens),
        (
            "spec_decode_num_accepted_tokens",
            "Drafted tokens that turned out right.",
            lambda lane: lane.accepted_tokens,
        ),
    )
    histograms: tuple[tuple[str, str, Callable[[LaneStatistics], HistogramSnapshot]], ...] = (
        ("lane_step_seconds", "Time of a step, choosing tokens included.", lambda lane: lane.step_seconds),
        ("lane_step_rows", "Sequences that a step gave a token, prompts left out.", lambda lane: lane.step_rows),
        ("iteration_tokens_total", "Tokens computed by a step.", lambda lane: lane.step_tokens),
    )
    for name, help_text, value in gauges:
        yield _Family(name, help_text, {lane.name: value(lane) for lane in lanes}, "lane").gauge(model)
    for name, help_text, value in counters:
        yield _Family(name, help_text, {lane.name: value(lane) for lane in lanes}, "lane").counter(model)
    for name, help_text, snapshot in histograms:
        family = HistogramMetricFamily(PREFIX + name, help_text, labels=[MODEL, "lane"])
        for lane in lanes:
            _add_histogram(family, [model, lane.name], snapshot(lane))
        yield family


def _engine_gauges(statistics: EngineStatistics) -> Iterator[_Family]:
    states = {state.value: state is statistics.state for state in type(statistics.state)}
    yield _Family("engine_state", "1 for the state the engine is in.", states, "state")
    yield _by_level("num_requests_waiting", "Requests in the queue.", statistics.waiting)
    running = dict.fromkeys(statistics.waiting, 0) | dict(statistics.running)
    yield _by_level("num_requests_running", "Requests that hold a place.", running)
    yield _Family("num_tokens_waiting", "Tokens of the requests in the queue.", statistics.waiting_tokens)
    yield _Family("places", "Places of all lanes.", statistics.places)
    yield _Family("places_free", "Places that can be taken.", statistics.free_places)
    host, disk = statistics.host, statistics.disk
    if host is not None:
        yield _Family("host_bytes_max", "Host memory that saved cells may take.", host.max_bytes)
        yield _Family("host_bytes_parked", "Host memory for cells of parked requests.", host.reserved_bytes)
        yield _Family("host_bytes_prompts", "Host memory for cells of prompts that may come again.", host.used_bytes)
        yield _Family("host_prompts", "Prompts whose cells are in host memory.", host.entries)
    if disk is not None:
        yield _Family("disk_bytes_max", "Disk space that saved cells may take.", disk.max_bytes)
        yield _Family("disk_prompts", "Prompts whose cells are on disk.", disk.entries)


def _request_counters(counters: Counters) -> Iterator[_Family]:
    yield _Family("prompt_tokens", "Prompt tokens of admitted requests.", counters.prompt_tokens)
    yield _Family("generation_tokens", "Tokens generated.", counters.completion_tokens)
    yield _Family("texts_embedded", "Texts that got their vector or their scores.", counters.embedded)
    yield _Family("handovers", "Times that a prompt was handed over from a lane of its own.", counters.handovers)
    yield _Family("request_restarts", "Times that a request began anew because its lane failed.", counters.restarts)
    outcomes = {name: getattr(counters, name) for name in ("finished", "cancelled", "failed", "expired")}
    yield _Family("requests_ended", "Requests that ended, by how they did.", outcomes, "outcome")
    finish = {reason.value: counters.finish_reasons[reason.value] for reason in FinishReason}
    finish |= {"abort": counters.cancelled, "error": counters.failed + counters.expired}
    yield _Family("request_success", "Requests that ended, by vLLM's reasons.", finish, "finished_reason")
    rejected = {reason: counters.rejected[reason] for reason in (*_REJECTIONS, *counters.rejected)}
    yield _Family("requests_rejected", "Requests refused at submission, or turned out, by reason.", rejected, "reason")
    missed = {state: counters.deadlines_missed[state] for state in ("refused", "waiting", "running")}
    yield _Family("deadlines_missed", "Deadlines missed, by what the request was then.", missed, "state")
    how = {parking.value: counters.parks[parking.value] for parking in Parking}
    yield _Family("parks", "Times that requests had to give way, by what became of their cells.", how, "how")
    why = {reason.value: counters.reasons[reason.value] for reason in ParkReason}
    yield _Family("parks_by_reason", "Times that requests had to give way, by why they had to.", why, "reason")


def _memory_counters(statistics: EngineStatistics) -> Iterator[_Family]:
    counters, host, disk = statistics.counters, statistics.host, statistics.disk
    yield _Family("prefix_cache_queries", "Prompt tokens looked for in the KV cache.", counters.queried_tokens)
    yield _Family("prefix_cache_hits", "Prompt tokens that were there, and not computed.", counters.hit_tokens)
    yield _Family("prompt_tokens_cached", "Prompt tokens that were in the KV cache.", counters.hit_tokens)
    yield _Family("requests_with_cached_prefix", "Requests some of whose prompt was in the KV cache.", counters.hits)
    yield _Family(
        "prompt_tokens_restored", "Prompt tokens that were put back from outside.", statistics.restored_tokens
    )
    out = {"parked": counters.parked_bytes_out, "prompts": statistics.stowed_bytes}
    yield _Family("swap_out_bytes", "Bytes of KV cells copied out, of parked requests and of prompts.", out, "what")
    back = {"parked": counters.parked_bytes_in, "prompts": statistics.restored_bytes}
    yield _Family("swap_in_bytes", "Bytes of KV cells copied in again.", back, "what")
    if host is not None:
        yield _Family("host_hits", "Times that cells in host memory were used.", host.hits)
        yield _Family("host_evictions", "Times that cells in host memory had to give way.", host.evictions)
    if disk is not None:
        yield _Family("disk_hits", "Files of cells that were read.", disk.hits)
        yield _Family("disk_evictions", "Files of cells that had to give way.", disk.evictions)
        yield _Family("disk_damaged", "Files of cells removed because they were damaged.", disk.damaged)
        yield _Family("disk_failures", "Files of cells that could not be written or read.", disk.failures)


def _by_level(name: str, help_text: str, counts: Mapping[Level, int]) -> _Family:
    return _Family(name, help_text, {str(level): counts[level] for level in sorted(counts)}, "level")


def _kv_use(lane: LaneStatistics) -> float:
    return (lane.reserved_cells + lane.paused_cells) / lane.cells if lane.cells else 0.0


def _add_histogram(family: HistogramMetricFamily, labels: Sequence[str], snapshot: HistogramSnapshot) -> None:
    buckets = [(str(floatToGoString(bound)), float(count)) for bound, count in snapshot.cumulative()]  # type: ignore[no-untyped-call]
    family.add_metric(labels, buckets, snapshot.sum)

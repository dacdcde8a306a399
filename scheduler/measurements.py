"""What requests took, and what became of them, for each level: histograms in vLLM's buckets."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from llamalane.ids import Level
from llamalane.scheduler.histogram import Histogram, HistogramSnapshot, steps_of_1_2_5
from llamalane.scheduler.priority import LEVELS
from llamalane.scheduler.request import Request
from llamalane.scheduler.result import EmbeddingResult, Result

FIRST_TOKEN_BOUNDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
"""Seconds."""
TOKEN_BOUNDS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
"""Seconds from one token to the next."""
REQUEST_BOUNDS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
"""Seconds."""
PARK_BOUNDS = (1, 2, 3, 4, 5, 10, 20)


class Measure(enum.Enum):
    """What is measured of each request; the values are the names of metrics, times in seconds."""

    QUEUE_TIME = "request_queue_time_seconds"
    FIRST_TOKEN = "time_to_first_token_seconds"
    INTER_TOKEN = "inter_token_latency_seconds"
    PER_TOKEN = "request_time_per_output_token_seconds"
    PREFILL = "request_prefill_time_seconds"
    DECODE = "request_decode_time_seconds"
    INFERENCE = "request_inference_time_seconds"
    TOTAL = "e2e_request_latency_seconds"
    PROMPT_TOKENS = "request_prompt_tokens"
    OUTPUT_TOKENS = "request_generation_tokens"
    MAX_TOKENS = "request_params_max_tokens"
    PARKS = "request_num_preemptions"
    TEXT_TOTAL = "text_e2e_latency_seconds"
    TEXT_TOKENS = "text_prompt_tokens"


_BOUNDS: Mapping[Measure, tuple[float, ...]] = {
    Measure.FIRST_TOKEN: FIRST_TOKEN_BOUNDS,
    Measure.INTER_TOKEN: TOKEN_BOUNDS,
    Measure.PER_TOKEN: TOKEN_BOUNDS,
    Measure.PARKS: PARK_BOUNDS,
    Measure.TEXT_TOTAL: FIRST_TOKEN_BOUNDS,
}
_TOKENS = frozenset({Measure.PROMPT_TOKENS, Measure.OUTPUT_TOKENS, Measure.MAX_TOKENS, Measure.TEXT_TOKENS})


@dataclass(frozen=True, slots=True)
class LevelStatistics:
    """The requests of one level since the start.

    Attributes:
        histograms: what they took.
        admitted: how many got a place.
        finished: how many had a result.
        in_time: how many of those had their tokens as quickly as their level's target asks (goodput).
        by_share: how many got their place by the guaranteed share.
        promoted: how many got it before a waiting request of a more urgent level, since waiting had made them as
            urgent.
        parked: how often running ones had to give way.
    """

    histograms: Mapping[Measure, HistogramSnapshot]
    admitted: int = 0
    finished: int = 0
    in_time: int = 0
    by_share: int = 0
    promoted: int = 0
    parked: int = 0


class LevelMeasurements:
    """What the requests of one level took, and what became of them; the counts are as `LevelStatistics` has them.

    `limit` is the most tokens that a request can have.
    """

    def __init__(self, limit: int) -> None:
        tokens = steps_of_1_2_5(limit)
        self._histograms = {
            measure: Histogram(tokens if measure in _TOKENS else _BOUNDS.get(measure, REQUEST_BOUNDS))
            for measure in Measure
        }
        self._inter_token = self._histograms[Measure.INTER_TOKEN]
        self.admitted = 0
        self.finished = 0
        self.in_time = 0
        self.by_share = 0
        self.promoted = 0
        self.parked = 0

    def note_admission(self, request: Request, now: float) -> None:
        """Take note that a request got its first place."""
        self.admitted += 1
        self._observe(Measure.QUEUE_TIME, now - request.arrival)

    def note_token(self, request: Request, now: float) -> None:
        """Take note of a token, before the request has taken it."""
        if request.last_token_at is not None:
            self._inter_token.observe(now - request.last_token_at)
        else:
            self._observe(Measure.FIRST_TOKEN, now - request.arrival)

    def note_result(self, request: Request, result: Result, *, in_time: bool) -> None:
        """Take note of a finished request; `in_time` tells whether its tokens came as quickly as they should."""
        timings, usage = result.timings, result.usage
        first, last = timings.first_token, timings.total
        self.finished += 1
        self.in_time += in_time
        self._observe(Measure.PREFILL, first - timings.wait)
        self._observe(Measure.DECODE, last - first)
        self._observe(Measure.INFERENCE, last - timings.wait)
        self._observe(Measure.TOTAL, last)
        if usage.completion_tokens > 1:
            self._observe(Measure.PER_TOKEN, timings.per_token)
        self._observe(Measure.PROMPT_TOKENS, usage.prompt_tokens)
        self._observe(Measure.OUTPUT_TOKENS, usage.completion_tokens)
        self._observe(Measure.MAX_TOKENS, request.max_tokens)
        self._observe(Measure.PARKS, timings.parks)

    def note_text(self, result: EmbeddingResult) -> None:
        """Take note of a text that got its vector or its scores; it counts apart from those that generate."""
        self._observe(Measure.TEXT_TOTAL, result.total)
        self._observe(Measure.TEXT_TOKENS, result.prompt_tokens)

    def snapshot(self) -> LevelStatistics:
        """Return the numbers of this moment."""
        return LevelStatistics(
            {measure: histogram.snapshot() for measure, histogram in self._histograms.items()},
            admitted=self.admitted,
            finished=self.finished,
            in_time=self.in_time,
            by_share=self.by_share,
            promoted=self.promoted,
            parked=self.parked,
        )

    def _observe(self, measure: Measure, value: float) -> None:
        self._histograms[measure].observe(value)


class Measurements:
    """The measurements of all levels."""

    def __init__(self, limit: int) -> None:
        self._levels = {level: LevelMeasurements(limit) for level in LEVELS}

    def at(self, level: Level) -> LevelMeasurements:
        """Return those of one level."""
        return self._levels[level]

    def snapshot(self) -> Mapping[Level, LevelStatistics]:
        """Return the numbers of this moment."""
        return {level: measurements.snapshot() for level, measurements in self._levels.items()}

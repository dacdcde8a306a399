"""Numbers that sum up a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from llamalane.bench.reading import Record


@dataclass(frozen=True, slots=True)
class Distribution:
    """How values spread; percentiles between two values are interpolated."""

    count: int
    mean: float
    median: float
    p90: float
    p95: float
    p99: float
    worst: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Distribution | None:
        """Sum up `values`; None when there are none."""
        numbers = np.fromiter(values, float)
        if not len(numbers):
            return None
        median, p90, p95, p99 = (float(value) for value in np.percentile(numbers, [50, 90, 95, 99]))
        return cls(len(numbers), float(numbers.mean()), median, p90, p95, p99, float(numbers.max()))


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a run that counts: after its warm-up, while every client has work."""

    start: float
    end: float

    def __contains__(self, time: float) -> bool:
        return self.start <= time < self.end

    @property
    def seconds(self) -> float:
        """How long it is; 0 when a client ran out of work during the warm-up."""
        return max(0.0, self.end - self.start)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSummary:
    """A run in numbers. Times are in seconds; latencies are those of requests that started in the window.

    Attributes:
        requests: requests that ended, with an error or without.
        cut: requests under way when the clients were stopped.
        errors: how often each error was met.
        wrong_length: answers without an error that have not exactly as many tokens as asked for.
        cached_share: share of all prompt tokens that the server took from a cache.
        window: length of the window.
        tokens_per_second: generated tokens that came within the window; None without a window.
        time_to_first_token: from the start of a request.
        inter_token: from one piece of text to the next.
        end_to_end: from the start of a request to its last byte.
        generator_cpu: CPU seconds that the clients used for each second, as a share of one core.
    """

    requests: int
    cut: int
    errors: dict[str, int]
    wrong_length: int
    cached_share: float | None
    window: float
    tokens_per_second: float | None
    time_to_first_token: Distribution | None
    inter_token: Distribution | None
    end_to_end: Distribution | None
    generator_cpu: float


def summarize(records: Sequence[Record], window: Window, generator_cpu: float) -> LoadSummary:
    """Sum up a run."""
    ended = [record for record in records if not record.cut]
    good = [record for record in ended if record.error is None]
    timely = [record for record in records if record.error is None and record.started in window]
    prompts = sum(record.prompt_tokens or 0 for record in good)
    cached = sum(record.cached_tokens or 0 for record in good)
    return LoadSummary(
        requests=len(ended),
        cut=len(records) - len(ended),
        errors=dict(Counter(record.error for record in records if record.error is not None)),
        wrong_length=sum(record.output_tokens != record.asked_tokens for record in good),
        cached_share=cached / prompts if prompts else None,
        window=window.seconds,
        tokens_per_second=_tokens_per_second(records, good, window),
        time_to_first_token=Distribution.of(
            record.time_to_first_token for record in timely if record.time_to_first_token is not None
        ),
        inter_token=Distribution.of(gap for record in timely for gap in record.gaps),
        end_to_end=Distribution.of(record.ended - record.started for record in timely if record.ended is not None),
        generator_cpu=generator_cpu,
    )


def _tokens_per_second(records: Sequence[Record], good: Sequence[Record], window: Window) -> float | None:
    """Count pieces of text in the window, and turn them into tokens as the whole answers' usage says."""
    if not window.seconds:
        return None
    pieces = sum(time in window for record in records for time in record.token_times)
    whole_pieces = sum(len(record.token_times) for record in good)
    whole_tokens = sum(record.output_tokens or 0 for record in good)
    tokens_per_piece = whole_tokens / whole_pieces if whole_pieces and whole_tokens else 1.0
    return pieces * tokens_per_piece / window.seconds

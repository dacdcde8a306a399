"""The times that a run's requests took, each by itself, and how they spread."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from llamalane.bench.reading import Record


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """Times in seconds that came to their end in the window; `LoadSummary` says what each is.

    Those that began in it would leave the longest out, which end after it. Requests that failed are left out.
    """

    time_to_first_token: tuple[float, ...]
    time_per_output_token: tuple[float, ...]
    inter_token: tuple[float, ...]
    end_to_end: tuple[float, ...]
    with_retries: tuple[float, ...]
    time_to_refusal: tuple[float, ...]

    @classmethod
    def of(cls, records: Sequence[Record], window: Window) -> Latencies:
        """Return the times of `records`."""
        sound = [record for record in records if record.error is None]
        whole = [(record, record.ended) for record in sound if record.ended is not None and record.ended in window]
        begun = [record for record in sound if record.token_times and record.token_times[0] in window]
        firsts = (record.time_to_first_token for record in begun)
        further = (record.time_per_output_token for record, _ in whole)
        refused = [(record, record.ended) for record in records if record.refused and record.ended is not None]
        return cls(
            time_to_first_token=tuple(first for first in firsts if first is not None),
            time_per_output_token=tuple(each for each in further if each is not None),
            inter_token=tuple(
                gap
                for record in sound
                for gap, end in zip(record.gaps, record.token_times[1:], strict=True)
                if end in window
            ),
            end_to_end=tuple(end - record.started for record, end in whole),
            with_retries=tuple(end - record.asked for record, end in whole if record.asked < record.started),
            time_to_refusal=tuple(end - record.started for record, end in refused if end in window),
        )

    @classmethod
    def together(cls, parts: Sequence[Latencies]) -> Latencies:
        """Return all times of several runs."""
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(**{name: tuple(time for part in parts for time in getattr(part, name)) for name in names})

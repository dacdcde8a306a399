"""Measures how long the passes of a real lane take, for the simulator to go by.

A lane of the configured engine computes steps of one pass each: chunks of a prompt by themselves, and rows with
consecutive sequence ids that decode; both on short sequences and on long ones. What is measured is what the lane
itself reports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median

from llamalane.bench.simulator.driver import Driver
from llamalane.bench.simulator.passes import attended
from llamalane.bench.simulator.speed import Speed, SpeedPoint
from llamalane.scheduler import EngineConfig
from llamalane.scheduler.assembly import Machinery, assemble

REPEATS = 3
"""How often each chunk is measured."""
_STEPS = 8
"""So many steps of the same decoding rows are computed in a row; the first one, from sleep, does not count."""
_SHORT = 32
"""Tokens of a short sequence, or an eighth of what one can have,"""
_LONG = 512
"""and at least so many of a long one, or half of what one can have."""
_LARGEST_LATE = 128
"""The largest chunk that is measured late in a sequence."""
_ROOM = 64
"""Cells that a long sequence has left to decode with."""
_SMALL_CHUNK = 32
_SMALL_STEPS = 4
"""Chunks no larger than that are computed so many times in a row; the first one, from sleep, does not count."""

Tell = Callable[[str], None]


def calibrate(config: EngineConfig, tell: Tell, *, repeats: int = REPEATS) -> Speed:
    """Measure the first lane of the engine that `config` describes. Nothing else should run meanwhile."""
    with _opened(config) as machinery:
        lane = machinery.pool.lanes[0]
        driver = Driver(lane.backend, machinery.model.vocabulary.size)
        # Where sequences share their cells, one alone could have them all, but here all of them are long together.
        limit = min(lane.region.limit, lane.region.cells // lane.region.places)
        speed = _Calibration(driver, lane.region.places, limit).run(repeats)
    rows = [f"{speed.seconds(count, count, 0) * 1000:.1f} ms for {count}" for count in _row_counts(lane.region.places)]
    tell(f"decoding rows without cells: {', '.join(rows)}; {speed.growth / 1e6:.2f} ms more for 1,000 cells")
    return speed


def merge(speeds: Sequence[Speed]) -> Speed:
    """Return the speed that several calibrations of the same lane tell, with all that they measured."""
    return Speed(
        [point for speed in speeds for point in speed.points],
        between=median([speed.between for speed in speeds]),
        output=median([speed.output for speed in speeds]),
    )


@contextmanager
def _opened(config: EngineConfig) -> Iterator[Machinery]:
    machinery = assemble(config)
    try:
        yield machinery
    finally:
        machinery.close()


@dataclass(slots=True)
class _Calibration:
    """The measurements of one lane, with so many `places`, whose sequences can have `limit` tokens."""

    driver: Driver
    places: int
    limit: int
    _points: list[SpeedPoint] = field(default_factory=list)
    _idle: list[float] = field(default_factory=list)
    _sample: list[float] = field(default_factory=list)

    def run(self, repeats: int) -> Speed:
        """Measure chunks, which make some rows long, and then decoding rows: the long ones and the short ones in turn.

        So a machine that becomes slower, as it does after its first seconds, does not look like one on which length
        matters. A single row can only be measured while it is short and after it has become long.
        """
        self._grow_all()
        if self.places == 1:
            self._decode([0])
        long_rows = [number % self.places for number in range(repeats)]
        for sequence in long_rows:
            self._chunks(sequence)
        for count in _row_counts(self.places):
            self._decode(range(count))  # the long ones first
            self._decode(range(self.places - count, self.places))
        return Speed(self._points, between=median(self._idle), output=median(self._sample))

    def _grow_all(self) -> None:
        """Let all rows have short prompts; nothing is measured, since memory is touched for the first time."""
        for sequence in range(self.places):
            tokens = min(_SHORT, self.limit // 8)
            self.driver.join(sequence, tokens)
            self.driver.compute(sequence, tokens)

    def _chunks(self, sequence: int) -> None:
        """Measure chunks of every size at the beginning of a sequence, and late in it; it becomes long by them."""
        long = min(_LONG, self.limit // 2)
        sizes = _chunk_sizes(min(self.driver.max_step_tokens, self.limit // 2))
        early = _fitting(sizes, long)
        for size in sizes[len(early) :]:
            self.driver.join(sequence, _tokens_for(size))
            self._chunk(sequence, size)
        late = _fitting([size for size in early if size <= _LARGEST_LATE], self.limit - long - _ROOM)
        rest = long - sum(map(_tokens_for, early))
        self.driver.join(sequence, long + sum(map(_tokens_for, late)))
        for size in early:
            self._chunk(sequence, size)
        for start in range(0, rest, self.driver.max_step_tokens):
            self.driver.compute(sequence, min(rest - start, self.driver.max_step_tokens))
        for size in late:
            self._chunk(sequence, size)

    def _chunk(self, sequence: int, tokens: int) -> None:
        start = self.driver.length(sequence)
        steps = _tokens_for(tokens) // tokens
        for number, times in enumerate(self.driver.compute(sequence, tokens, steps)):
            if number or steps == 1:
                cells = attended(start + number * tokens, tokens)
                self._points.append(SpeedPoint(1, tokens, cells, times.decode))

    def _decode(self, sequences: Sequence[int]) -> None:
        """Measure rows that decode; one point is the median of their steps."""
        start = sum(self.driver.length(sequence) for sequence in sequences)
        times = self.driver.decode(sequences, _STEPS)[1:]
        rows = len(sequences)
        cells = start + rows * (1 + _STEPS // 2)
        self._points.append(SpeedPoint(rows, rows, cells, median([one.decode for one in times])))
        self._idle += [one.idle for one in times]
        self._sample += [one.sample / rows for one in times]


def _chunk_sizes(largest: int) -> list[int]:
    """Return the powers of two from 2 up to the largest chunk, and that one."""
    sizes = {2**power for power in range(1, largest.bit_length()) if 2**power <= largest}
    return sorted(sizes | {largest})


def _tokens_for(size: int) -> int:
    """Return how many tokens measuring chunks of a size takes."""
    return size * _SMALL_STEPS if size <= _SMALL_CHUNK else size


def _fitting(sizes: Sequence[int], tokens: int) -> list[int]:
    """Return the first sizes that can all be measured with so many tokens."""
    return [size for number, size in enumerate(sizes, start=1) if sum(map(_tokens_for, sizes[:number])) <= tokens]


def _row_counts(places: int) -> list[int]:
    """Return the numbers of rows to measure: powers of two, half-way between them, and all places."""
    powers = [2**power for power in range(places.bit_length())]
    return sorted({count for count in [*powers, *(3 * power for power in powers)] if count < places} | {places})

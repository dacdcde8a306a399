"""Measures how long the steps of a real lane take, for the simulator to go by.

A lane of the configured engine computes steps of chosen shapes: so many rows that decode, beside a prompt of so many
tokens. What is measured is what the lane itself reports: decoding, sampling, and the time between two steps.
"""

from __future__ import annotations

import queue
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median

from llamalane.bench.simulator.speed import Speed, SpeedPoint
from llamalane.errors import LlamalaneError
from llamalane.ids import PlanVersion, RequestId, SequenceId
from llamalane.scheduler import EngineConfig
from llamalane.scheduler.assembly import Machinery, assemble
from llamalane.streams import (
    Change,
    Edit,
    Join,
    LaneBackend,
    LaneFailed,
    LaneMessage,
    Leave,
    SamplingParameters,
    StepPlan,
    StepReport,
)

PROMPTS = (16, 64, 128, 256, 512)
"""How many prompt tokens the measured steps have."""
REPEATS = 3
"""How often each shape is measured; the median counts."""
_ROW_PROMPT = 64
"""Tokens that a decoding row begins with."""
_PATIENCE = 300.0
"""Seconds after which a step that has not ended never will."""

Tell = Callable[[str], None]


def calibrate(config: EngineConfig, tell: Tell, *, prompts: Sequence[int] = PROMPTS, repeats: int = REPEATS) -> Speed:
    """Measure the first lane of the engine that `config` describes. Nothing else should run meanwhile."""
    with _opened(config) as machinery:
        lane = machinery.pool.lanes[0]
        driver = _Driver(lane.backend, machinery.model.vocabulary.size, lane.region.limit)
        driver.measure(0, prompts[:1], 1)  # the first step touches memory that later ones find ready
        points: list[SpeedPoint] = []
        for rows in _row_counts(lane.region.places):
            beside = prompts if rows < lane.region.places else ()
            fitting = [tokens for tokens in beside if tokens <= driver.longest_prompt - rows]
            measured = driver.measure(rows, fitting, repeats)
            tell(f"{rows} rows: " + ", ".join(f"{one.prompt_tokens}: {one.seconds:.4f} s" for one in measured))
            points += measured
        return Speed(points)


@contextmanager
def _opened(config: EngineConfig) -> Iterator[Machinery]:
    machinery = assemble(config)
    try:
        yield machinery
    finally:
        machinery.close()


def _row_counts(places: int) -> list[int]:
    """Return the numbers of rows to measure: none, powers of two, all places, and all but one."""
    powers = {2**power for power in range(places.bit_length()) if 2**power <= places}
    return sorted({0, places - 1, places} | powers)


class _Driver:
    """Gives a lane its plans, one at a time."""

    def __init__(self, lane: LaneBackend, vocabulary: int, limit: int) -> None:
        self.longest_prompt = min(lane.max_step_tokens, limit - 1)
        self._lane = lane
        self._limit = limit
        self._random = random.Random(1)
        self._vocabulary = vocabulary
        self._messages: queue.SimpleQueue[LaneMessage] = queue.SimpleQueue()
        self._version = 0
        self._requests = 0
        lane.start(self._messages.put)

    def measure(self, rows: int, prompts: Sequence[int], repeats: int) -> list[SpeedPoint]:
        """Measure steps with `rows` decoding rows, alone and beside prompts of these lengths."""
        seconds: dict[int, list[float]] = defaultdict(list)
        running = [self._join(place, _ROW_PROMPT, self._limit - _ROW_PROMPT) for place in range(rows)]
        if running:
            self._post(running, self.longest_prompt)
            self._until(lambda report: report.decode_rows == rows)
            for _ in range(repeats):
                seconds[0].append(_seconds(self._until(lambda report: report.decode_rows == rows)))
        for tokens in prompts:
            for _ in range(repeats):
                self._post([self._join(rows, tokens, 1)], tokens)
                seconds[tokens].append(_seconds(self._until(lambda report: report.prefill_tokens > 0)))
        if running:
            self._post([Leave(join.request, keep=0) for join in running], self.longest_prompt)
            self._until(lambda report: len(report.left) > 0)
        return [SpeedPoint(rows, tokens, median(times)) for tokens, times in seconds.items()]

    def _join(self, sequence: int, prompt: int, most: int) -> Join:
        self._requests += 1
        return Join(
            request=RequestId(f"calibration-{self._requests}"),
            sequence=SequenceId(sequence),
            tokens=[self._random.randrange(self._vocabulary) for _ in range(prompt)],
            cached=0,
            generated=0,
            max_tokens=most,
            sampling=SamplingParameters(seed=self._requests, ignore_eos=True),
        )

    def _post(self, changes: Sequence[Change], prefill_tokens: int) -> None:
        self._version += 1
        version = PlanVersion(self._version)
        self._lane.post(StepPlan(0, version, tuple(Edit(version, change) for change in changes), prefill_tokens))

    def _until(self, wanted: Callable[[StepReport], bool]) -> StepReport:
        """Return the next report of the newest plan that is wanted."""
        while True:
            try:
                message = self._messages.get(timeout=_PATIENCE)
            except queue.Empty:
                raise LlamalaneError("the lane has stopped") from None
            if isinstance(message, LaneFailed):
                raise message.error
            if isinstance(message, StepReport) and message.version == self._version and wanted(message):
                return message


def _seconds(report: StepReport) -> float:
    assert report.times is not None
    return report.times.decode + report.times.sample + report.times.idle

"""What parking does to the steps of a lane whose KV cells are enough for a part of its requests."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median

import anyio

from llamalane.bench.promises.asking import Park, config_for
from llamalane.bench.promises.urgency import Prober
from llamalane.bench.promises.watching import WatchedEngine
from llamalane.errors import LlamalaneError
from llamalane.ids import RequestId
from llamalane.scheduler import RequestHandle, SamplingParameters
from llamalane.scheduler.growth import ENOUGH
from llamalane.streams import StepReport

BATCH = 5
PROMPT_TOKENS, OUTPUT_TOKENS = 64, 192
EACH = PROMPT_TOKENS + OUTPUT_TOKENS
"""KV cells that each request of the batch fills in the end."""
REQUESTS = 12
"""How many requests the batch has, where there are 8 places."""
ALLOWED, ALLOWED_STEPS = 0.010, 0.5
"""Between two steps parking may add so many seconds, or so many mean steps, if that is more."""


@dataclass(slots=True)
class Parking:
    """What came of it; times are in seconds.

    Attributes:
        usual: the time between the end of one step and the start of the next, with nobody parked or resumed there.
        touched: the same, with somebody parked or resumed there.
        steps: how long the steps took.
        parks: how often requests were parked, by the way.
    """

    asked: int = 0
    finished: int = 0
    usual: list[float] = field(default_factory=list)
    touched: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    parks: Counter[str] = field(default_factory=Counter)

    @property
    def added(self) -> list[float]:
        """What was added to the usual time, wherever somebody was parked or resumed."""
        usual = median(self.usual)
        return [seconds - usual for seconds in self.touched]

    @property
    def allowed(self) -> float:
        """The most that may be added."""
        return max(ALLOWED, ALLOWED_STEPS * mean(self.steps))

    @property
    def kept(self) -> bool:
        """Whether everybody got to the end, and no more was ever added than is allowed."""
        return self.finished == self.asked and max(self.added, default=0.0) <= self.allowed

    def observe(self, reports: Iterable[StepReport]) -> None:
        """Take in the reports of one lane, in their order."""
        parked: set[RequestId] = set()
        touched = False
        for report in reports:
            resumed = parked.intersection(report.started)
            touched = touched or bool(report.parked or resumed)
            parked -= resumed
            parked.update(one.request for one in report.parked)
            if report.times is None:
                continue
            self.steps.append(report.times.decode + report.times.sample)
            if report.times.idle > 0:  # else the lane had slept
                (self.touched if touched else self.usual).append(report.times.idle)
            touched = False


async def measure_parking(
    model: Path, *, places: int, threads: int, times: int, park: Park, seed: int, tell: Callable[[str], None]
) -> Parking:
    """Let a batch grow to `times` as many KV cells as there are, with an urgent request a second beside it."""
    cells = places * EACH // times
    async with WatchedEngine(config_for(model, places=places, threads=threads, cells=cells, park=park)) as engine:
        result = Parking()
        await _teach_short_outputs(engine)
        before = len(engine.reports)
        async with anyio.create_task_group() as urgent:
            batch = _submit_batch(engine, REQUESTS * places // 8, seed)
            urgent.start_soon(_ask_urgently, Prober(engine, seed))
            lengths = [await _output_length(handle) for handle in batch]
            urgent.cancel_scope.cancel()
        result.observe(engine.reports[before:])
        result.asked, result.parks = len(batch), engine.stats().counters.parks
        result.finished = lengths.count(OUTPUT_TOKENS)
    tell(f"{times}×, {park}: {dict(result.parks)}, at most {1e3 * max(result.added, default=0.0):.1f} ms more")
    return result


async def _teach_short_outputs(engine: WatchedEngine) -> None:
    """Let the engine expect short outputs, so that it admits more requests than there will be cells for."""
    for number in range(ENOUGH):
        await engine.generate([5 + number], sampling=SamplingParameters(max_tokens=2, ignore_eos=True), priority=BATCH)


def _submit_batch(engine: WatchedEngine, count: int, seed: int) -> list[RequestHandle]:
    draw = random.Random(seed)
    sampling = SamplingParameters(max_tokens=OUTPUT_TOKENS, ignore_eos=True, seed=seed)
    largest = engine.model_info.vocabulary_size - 1
    return [
        engine.submit_tokens_nowait(
            [draw.randint(5, largest) for _ in range(PROMPT_TOKENS)], sampling=sampling, priority=BATCH
        )
        for _ in range(count)
    ]


async def _output_length(handle: RequestHandle) -> int:
    """Wait for a request's end; one that failed has nothing to show."""
    try:
        return len((await handle).tokens)
    except LlamalaneError:
        return 0


async def _ask_urgently(prober: Prober) -> None:
    while True:
        await prober.ask(1, pauses=(0.5, 1.4))

"""What is left of the service when three times as much is asked for as there is room for."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field

import anyio
import psutil

from llamalane.bench.promises.asking import ask, computed
from llamalane.bench.workload import Span, Workload
from llamalane.errors import UnavailableError
from llamalane.scheduler import Engine

WORKLOAD = Workload(words=Span.around(40, 0.3), output_tokens=Span.around(48, 0.3))
TOP, LOW = 1, 5
TOP_SHARE = 0.3
"""The top class asks for so much of the capacity."""
FIRST_TOKEN, PER_TOKEN = 0.5, 0.2
"""The objective: the first token within so many seconds, and so many for each further one in the mean."""


@dataclass(slots=True)
class ClassOutcome:
    """What became of one class's requests."""

    asked: int = 0
    good: int = 0
    """Answered within the objective."""
    answered: int = 0
    refused: int = 0


@dataclass(slots=True)
class Overload:
    """Goodput is the share of the requests asked that were answered within the objective."""

    capacity: float
    """Requests in a second that the engine can answer."""
    peak: float
    """Tokens, of prompts and outputs, that it computes in a second at its capacity."""
    unloaded: ClassOutcome = field(default_factory=ClassOutcome)
    top: ClassOutcome = field(default_factory=ClassOutcome)
    low: ClassOutcome = field(default_factory=ClassOutcome)
    computed: float = 0.0
    """The same at three times the capacity."""
    growth: float = 0.0
    """Bytes by which resident memory grew from the first half to the end."""


async def measure_overload(engine: Engine, *, seconds: float, seed: int) -> Overload:
    """Measure the capacity, the top class alone, and then three times the capacity for `seconds`."""
    capacity, peak = await _capacity(engine, min(seconds, 30.0), seed)
    result = Overload(capacity=capacity, peak=peak)
    await _offer(engine, {TOP: TOP_SHARE * capacity}, min(seconds, 40.0), seed, {TOP: result.unloaded})
    memory = psutil.Process().memory_info
    rates = {TOP: TOP_SHARE * capacity, LOW: (3 - TOP_SHARE) * capacity}
    outcomes = {TOP: result.top, LOW: result.low}
    await _offer(engine, rates, seconds / 2, seed + 1, outcomes)
    before = memory().rss
    begin, tokens = time.monotonic(), computed(engine)
    await _offer(engine, rates, seconds / 2, seed + 2, outcomes)
    result.computed = (computed(engine) - tokens) / (time.monotonic() - begin)
    result.growth = memory().rss - before
    return result


async def _capacity(engine: Engine, seconds: float, seed: int) -> tuple[float, float]:
    """Return the requests answered, and the tokens computed, in a second when two for each place are always there."""

    async def client(number: int) -> None:
        for question in WORKLOAD.questions(seed, number):
            await ask(engine, question, LOW)

    async with anyio.create_task_group() as group:
        for number in range(2 * engine.stats().places):
            group.start_soon(client, number)
        await anyio.sleep(5)
        begin, done, tokens = time.monotonic(), engine.stats().counters.finished, computed(engine)
        await anyio.sleep(seconds)
        passed = time.monotonic() - begin
        rates = (engine.stats().counters.finished - done) / passed, (computed(engine) - tokens) / passed
        group.cancel_scope.cancel()
    return rates


async def _offer(
    engine: Engine, rates: dict[int, float], seconds: float, seed: int, outcomes: dict[int, ClassOutcome]
) -> None:
    """Let requests of each level arrive at random, so many in a second, for so long; then drop what is left."""

    async def one(level: int, seed: int) -> None:
        outcome = outcomes[level]
        outcome.asked += 1
        try:
            answer = await ask(engine, next(WORKLOAD.questions(seed, client=level)), level)
        except UnavailableError:
            outcome.refused += 1
            return
        outcome.answered += 1
        further = (answer.total - answer.first_token) / max(1, answer.tokens - 1)
        outcome.good += answer.first_token <= FIRST_TOKEN and further <= PER_TOKEN

    async def arrivals(level: int) -> None:
        draw = random.Random(f"{seed}/{level}")
        while True:
            await anyio.sleep(draw.expovariate(rates[level]))
            group.start_soon(one, level, draw.getrandbits(32))

    async with anyio.create_task_group() as group:
        for level in rates:
            group.start_soon(arrivals, level)
        await anyio.sleep(seconds)
        group.cancel_scope.cancel()

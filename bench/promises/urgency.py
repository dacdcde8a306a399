"""An urgent request where every place is taken by less urgent ones, and what it costs these."""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from statistics import mean, median

import anyio

from llamalane.bench.promises.asking import ask, computed, percentile
from llamalane.bench.workload import Span, Workload
from llamalane.scheduler import Engine

BATCH, URGENT = 5, 1
QUESTION = Workload(words=Span(12, 12), output_tokens=Span(4, 4))
BACKGROUND = Workload(words=Span.around(40, 0.3), output_tokens=Span.around(48, 0.3))
TURN = 10
"""So many urgent requests are sent to the idle engine, then as many to the busy one, and so on."""
SETTLE = 3.0
"""Seconds after which the batch has taken every place."""
ALONE = 10.0
"""Seconds for which the batch is watched alone in each turn."""


@dataclass(slots=True)
class Urgency:
    """What came of it.

    `idle` and `loaded` are seconds to the first token; `alone` and `beside` the tokens, of prompts and outputs, that
    the engine computed in a second, without and with an urgent request a second.
    """

    idle: list[float] = field(default_factory=list)
    loaded: list[float] = field(default_factory=list)
    alone: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """The 99th percentile under load as a multiple of that on the idle engine."""
        return percentile(self.loaded, 0.99) / percentile(self.idle, 0.99)

    @property
    def median_ratio(self) -> float:
        """The same of the medians."""
        return median(self.loaded) / median(self.idle)

    @property
    def cost(self) -> float:
        """The share of all tokens that is lost; those of the urgent requests are not."""
        return 1 - mean(self.beside) / mean(self.alone)


async def measure_urgency(
    engine: Engine, *, tries: int, clients: int, seed: int, tell: Callable[[str], None]
) -> Urgency:
    """Send `tries` urgent requests to the idle engine and as many to the busy one, in turns."""
    result = Urgency()
    prober = Prober(engine, seed)
    await prober.ask(3, pauses=(0.1, 0.2))  # these do not count: they touch memory for the first time
    for turn in range(tries // TURN):
        result.idle += await prober.ask(TURN, pauses=(0.05, 0.2))
        async with anyio.create_task_group() as batch:
            for client in range(clients):
                batch.start_soon(keep_asking, engine, seed + turn, client, BATCH)
            await anyio.sleep(SETTLE)
            result.alone.append(await _rate(engine, _sleep))
            result.beside.append(await _rate(engine, lambda: prober.note(result.loaded)))
            batch.cancel_scope.cancel()
        tell(f"turn {turn + 1} of {tries // TURN}: {result.median_ratio:.2f}× in the median, {result.ratio:.2f}× p99")
    return result


class Prober:
    """Asks urgent questions one by one, each a new one."""

    def __init__(self, engine: Engine, seed: int) -> None:
        self._engine = engine
        self._questions = QUESTION.questions(seed, client=-1)
        self._random = random.Random(seed)

    async def ask(self, tries: int, pauses: tuple[float, float]) -> list[float]:
        """Return the seconds to the first token of each of `tries` questions, with a pause before each."""
        times = []
        for _ in range(tries):
            await anyio.sleep(self._random.uniform(*pauses))
            times.append((await ask(self._engine, next(self._questions), URGENT)).first_token)
        return times

    async def note(self, times: list[float]) -> None:
        """Ask one turn's questions, about one a second."""
        times += await self.ask(TURN, pauses=(0.5, 1.4))


async def keep_asking(engine: Engine, seed: int, client: int, level: int) -> None:
    """Be a client in a closed loop."""
    for question in BACKGROUND.questions(seed, client):
        await ask(engine, question, level)


async def _sleep() -> None:
    await anyio.sleep(ALONE)


async def _rate(engine: Engine, work: Callable[[], Awaitable[None]]) -> float:
    """Return how many tokens the engine computes in a second while `work` lasts."""
    begin, tokens = time.monotonic(), computed(engine)
    await work()
    return (computed(engine) - tokens) / (time.monotonic() - begin)

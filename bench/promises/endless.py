"""The least urgent behind urgent work without end, and urgent requests before a long queue of others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import anyio

from llamalane.bench.promises.asking import percentile, sampling_for
from llamalane.bench.promises.urgency import BACKGROUND, BATCH, SETTLE, URGENT, Prober, keep_asking
from llamalane.bench.promises.waits import Wait, wait_of
from llamalane.bench.promises.watching import WatchedEngine
from llamalane.scheduler import RequestHandle

EVERY = 4.0
"""Seconds between two requests of the batch."""
BACKLOG = 500
OLD = 3600.0
"""Seconds that the backlog has waited when urgent requests come: it has reached the ceiling long ago."""


@dataclass(slots=True)
class Endless:
    """What came of it.

    Attributes:
        asked, finished: requests of the batch.
        waits: how long each waited.
        fewest: the fewest urgent ones that waited at an admission meanwhile.
        idle, behind: an urgent request's seconds to the first token, on the idle engine, and with a backlog waiting.
    """

    asked: int = 0
    finished: int = 0
    waits: list[Wait] = field(default_factory=list)
    idle: list[float] = field(default_factory=list)
    behind: list[float] = field(default_factory=list)

    @property
    def fewest(self) -> int:
        """How many others waited at least at any admission before that of a request of the batch."""
        return min(wait.fewest for wait in self.waits)

    @property
    def ratio(self) -> float:
        """The 99th percentile with the backlog as a multiple of that on the idle engine."""
        return percentile(self.behind, 0.99) / percentile(self.idle, 0.99)

    @property
    def kept(self) -> bool:
        """Whether every request of the batch was done, and waited for no more admissions than it may."""
        return self.finished == self.asked and all(wait.admissions <= wait.bound for wait in self.waits)


async def measure_endless(engine: WatchedEngine, *, clients: int, seconds: float, seed: int) -> Endless:
    """Keep `clients` asking urgently, more than there are places, and send a batch request every few seconds."""
    questions = BACKGROUND.questions(seed, client=-1)
    handles: list[RequestHandle] = []
    async with anyio.create_task_group() as urgent:
        for client in range(clients):
            urgent.start_soon(keep_asking, engine, seed, client, URGENT)
        await anyio.sleep(SETTLE)
        for _ in range(max(1, int(seconds / EVERY))):
            question = next(questions)
            handles.append(await engine.submit(question.prompt, priority=BATCH, sampling=sampling_for(question)))
            await anyio.sleep(EVERY)
        results = [await handle for handle in handles]
        urgent.cancel_scope.cancel()
    waits = [wait_of(handle.id, engine.events) for handle in handles]
    return Endless(asked=len(handles), finished=len(results), waits=waits)


async def measure_backlog(
    engine: WatchedEngine, result: Endless, *, tries: int, seed: int, tell: Callable[[str], None]
) -> None:
    """Take urgent requests' times on the idle engine, then with `BACKLOG` old requests of the batch waiting."""
    prober = Prober(engine, seed)
    await prober.ask(3, pauses=(0.1, 0.2))  # these do not count: they touch memory for the first time
    result.idle += await prober.ask(tries, pauses=(0.05, 0.2))
    async with anyio.create_task_group() as batch:
        for client in range(BACKLOG + engine.stats().places):
            batch.start_soon(keep_asking, engine, seed, client, BATCH)
        await anyio.sleep(SETTLE)
        engine.clock.leap(OLD)
        tell(f"{engine.stats().waiting} wait")
        result.behind += await prober.ask(tries, pauses=(0.5, 1.4))
        batch.cancel_scope.cancel()

"""Clients of an engine in this process, in a closed loop, who read their texts as they come."""

from __future__ import annotations

import anyio

from llamalane.bench.floor.probes import Probes, Split
from llamalane.bench.floor.raw_loop import sampling_of
from llamalane.bench.workload import Question, Workload
from llamalane.scheduler import Engine

_SETTLE_SECONDS = 0.5
"""Cancelled requests leave their lane with its next step."""


class EngineLoad:
    """Closed-loop clients of `engine`, who ask at `priority`; None is its default."""

    def __init__(
        self, engine: Engine, workload: Workload, *, clients: int, seed: int, priority: int | None = None
    ) -> None:
        self._engine = engine
        self._workload = workload
        self._clients = clients
        self._seed = seed
        self._priority = priority

    async def run(self, seconds: float, warm_up: float, probes: Probes) -> Split:
        """Run for `warm_up` and then `seconds` seconds; returns what `probes` say of the latter."""
        async with anyio.create_task_group() as clients:
            for client in range(self._clients):
                clients.start_soon(self._ask, client)
            await anyio.sleep(warm_up)
            before = probes.read(self._engine)
            await anyio.sleep(seconds)
            after = probes.read(self._engine)
            clients.cancel_scope.cancel()
        await anyio.sleep(_SETTLE_SECONDS)
        return after.since(before)

    async def _ask(self, client: int) -> None:
        for question in self._workload.questions(self._seed, client):
            await self._read(question)

    async def _read(self, question: Question) -> None:
        sampling = sampling_of(self._workload, question)
        handle = await self._engine.submit(question.prompt, sampling=sampling, priority=self._priority)
        try:
            async for _ in handle:
                pass
        finally:
            handle.cancel()

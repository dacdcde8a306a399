"""Submits, cancels and drops thousands of requests at random; run as a program, tells what is left in the end.

A process of its own, so that the memory measured is the engine's and not that of other tests.
"""

from __future__ import annotations

import gc
import json
import random
import sys
import threading
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import anyio
import numpy as np
import psutil

from llamalane.errors import (
    DeadlineExceededError,
    PromptTooLongError,
    QueueFullError,
    RequestCancelledError,
)
from llamalane.scheduler import KVConfig, RequestHandle, SamplingParameters
from tests.engine.running import PART, WatchedEngine, config_for, lane_threads

CLIENTS = 24
WARM_UP = 1 / 2
"""The share of the operations after which memory is expected to stay flat."""
PARTS = 5
SWAP = 2 << 20
"""Host memory for saved cells: full long before the warm-up is over."""


@dataclass
class Account:
    """What came of it."""

    operations: int = 0
    refused: int = 0
    """How often the queue was full; that is no operation."""
    outcomes: dict[str, int] = field(default_factory=dict)
    growth: float = 0.0
    """Resident memory, in bytes for each operation after the warm-up: the median of several stretches of time.

    A leak is there in all of them; memory that is touched late, but once, is not.
    """
    threads_left: list[str] = field(default_factory=list)
    system_threads_left: int = 0
    free_places: int = 0
    places: int = 0
    reserved_cells: int = 0
    waiting: int = 0


class Soak:
    """Clients that each do one random thing after another."""

    def __init__(self, engine: WatchedEngine, operations: int) -> None:
        self._engine = engine
        self._left = operations
        self._operations = operations
        self._random = random.Random(0)
        self._memory: list[tuple[int, int]] = []
        self._process = psutil.Process()
        self._someone_ended = anyio.Event()
        self.account = Account()

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(CLIENTS):
                tasks.start_soon(self._client)
        after_warm_up = [entry for entry in self._memory if entry[0] >= WARM_UP * self._operations]
        slopes = [np.polyfit(part[:, 0], part[:, 1], 1)[0] for part in np.array_split(np.array(after_warm_up), PARTS)]
        self.account.growth = float(np.median(slopes))

    async def _client(self) -> None:
        actions = [self._wait, self._read, self._drop, self._cancel, self._cancel_the_task, self._be_late]
        while self._left:
            self._left -= 1
            action: Callable[[], Awaitable[None]] = self._random.choice(actions)
            try:
                await action()
                outcome = action.__name__.strip("_")
            except QueueFullError:
                self.account.refused += 1
                self._left += 1
                await self._someone_ended.wait()
                continue
            except (RequestCancelledError, DeadlineExceededError, PromptTooLongError) as error:
                outcome = type(error).__name__
            self._someone_ended.set()
            self._someone_ended = anyio.Event()
            self.account.outcomes[outcome] = self.account.outcomes.get(outcome, 0) + 1
            self.account.operations += 1
            if self.account.operations % 20 == 0:
                self._memory.append((self.account.operations, self._process.memory_info().rss))

    async def _submit(self, **options: float) -> RequestHandle:
        draw = self._random
        stop = ("".join(draw.choices("etaoin", k=2)),) if draw.random() < 0.3 else ()
        sampling = SamplingParameters(
            max_tokens=draw.randint(1, 24),
            stop=stop,
            repeat_penalty=draw.choice([1.0, 1.1]),
            top_k=draw.choice([0, 40]),
        )
        longest = self._engine.limit
        length = draw.choice([1, 10, 40, 200, longest]) if draw.random() < 0.9 else draw.randint(1, 2 * longest)
        return await self._engine.submit(
            "x" * length,
            sampling=sampling,
            priority=draw.randint(1, 5),
            tenant=draw.choice("abc"),
            deadline=options.get("deadline"),
        )

    async def _wait(self) -> None:
        await (await self._submit())

    async def _read(self) -> None:
        async for _ in await self._submit():
            pass

    async def _drop(self) -> None:
        """Read a little, and forget the handle."""
        left = self._random.randint(0, 5)
        async for _ in await self._submit():
            left -= 1
            if left < 0:
                break

    async def _cancel(self) -> None:
        handle = await self._submit()
        left = self._random.randint(0, 5)
        if left:
            async for _ in handle:
                left -= 1
                if left <= 0:
                    break
        handle.cancel()
        await handle

    async def _cancel_the_task(self) -> None:
        patience = self._random.uniform(0, 0.05)
        with anyio.move_on_after(patience):
            handle = await self._submit()
            try:
                await handle
            finally:
                handle.cancel()

    async def _be_late(self) -> None:
        await (await self._submit(deadline=self._random.uniform(0.001, 0.1)))


async def fill(engine: WatchedEngine) -> None:
    """Use all cells, and steps as large as they get, so that no memory is touched for the first time later."""
    sampling = SamplingParameters(max_tokens=8, top_k=0, repeat_penalty=1.1)
    for tenant in ("a", "b"):
        handles = [
            await engine.submit([5] * (PART - 8), sampling=sampling, tenant=tenant, priority="interactive")
            for _ in range(engine.pool.places)
        ]
        for handle in handles:
            await handle


async def main(model: Path, operations: int) -> Account:
    process = psutil.Process()
    # A first engine starts what stays for the life of the process: worker threads, llama.cpp's tables.
    async with WatchedEngine(config_for(model)) as engine:
        await engine.generate("x" * 100, sampling=SamplingParameters(max_tokens=4))
    engine.check_conserved()
    system_threads = process.num_threads()
    engine = WatchedEngine(
        config_for(model, places=8, kv=KVConfig(swap=SWAP), queue={"max_requests": 12}, reserve={"interactive": 1})
    )
    async with engine:
        await fill(engine)
        soak = Soak(engine, operations)
        await soak.run()
        await engine.drain()
        account = soak.account
        statistics = engine.stats()
        account.free_places, account.places = statistics.free_places, statistics.places
        account.reserved_cells = statistics.lanes[0].reserved_cells
        account.waiting = sum(statistics.waiting.values())
    engine.check_conserved()
    gc.collect()
    account.threads_left = lane_threads()
    account.system_threads_left = process.num_threads() - system_threads
    return account


if __name__ == "__main__":
    path, backend, count = sys.argv[1:]
    told = anyio.run(main, Path(path), int(count), backend=backend)
    print(json.dumps(asdict(told) | {"python_threads": [thread.name for thread in threading.enumerate()]}))

"""Requests that arrive at random, whether or not the ones before have been answered."""

from __future__ import annotations

import random
import time

import anyio
from anyio.abc import TaskGroup

from llamalane.bench.exchange import Target
from llamalane.bench.load import Asker, LoadResult
from llamalane.bench.summary import Window
from llamalane.bench.workload import Source


class OpenLoop:
    """Arrivals at one server, for one run: a Poisson process of `rate` requests a second, each a client of its own."""

    def __init__(self, target: Target, workload: Source, *, rate: float, seed: int) -> None:
        self._asker = Asker(target, workload)
        self._workload = workload
        self._rate = rate
        self._seed = seed

    async def run(self, *, seconds: float, warm_up: float = 0.0) -> LoadResult:
        """Let requests arrive for `seconds`.

        What is under way at that time is cut. The first `warm_up` seconds do not count. The same seed has the same
        arrivals. Called once.
        """
        start, cpu = time.monotonic(), time.process_time()
        async with anyio.create_task_group() as group:
            group.cancel_scope.deadline = anyio.current_time() + seconds
            await self._arrive(group, seconds)
        share = (time.process_time() - cpu) / (time.monotonic() - start)
        return LoadResult(self._asker.records(), Window(start + warm_up, start + seconds), share)

    async def _arrive(self, group: TaskGroup, seconds: float) -> None:
        generator = random.Random(f"{self._seed}/arrivals")
        begin = anyio.current_time()
        moment, number = generator.expovariate(self._rate), 0
        while moment < seconds:
            await anyio.sleep_until(begin + moment)
            group.start_soon(self._asker.ask, number, next(self._workload.questions(self._seed, number)))
            moment += generator.expovariate(self._rate)
            number += 1

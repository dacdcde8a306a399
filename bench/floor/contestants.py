"""Those that take turns: floors, the engine in this process, and a server in a process of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import anyio
import anyio.to_thread
import httpx
from pydantic import TypeAdapter

from llamalane.bench.floor.clients import EngineLoad
from llamalane.bench.floor.plan import ENGINE, SEQUENCE_CELLS, SERVER, FloorPlan, floor_name
from llamalane.bench.floor.probes import Probes, Split
from llamalane.bench.floor.raw_process import RawRun, run_in_process
from llamalane.bench.floor.server import PROBES, SPLIT
from llamalane.bench.load import ClosedLoop
from llamalane.bench.server import Server
from llamalane.scheduler import Engine
from llamalane.streams.llama import ContextOptions


@dataclass(frozen=True, slots=True)
class Measured:
    """How many tokens a second came out, and where the time went, as far as that was looked into."""

    tokens_per_second: float
    split: Split


class Contestant(Protocol):
    """One that is measured, and does nothing else meanwhile."""

    name: str

    async def measure(self, seed: int, *, probed: bool = False) -> Measured:
        """Measure it once; `probed`, with all that tells where its time goes."""


class Floor:
    """A bare loop, each time in a process of its own, on a context like the engine's."""

    def __init__(self, plan: FloorPlan, options: ContextOptions, chunk: int) -> None:
        self.name = floor_name(chunk)
        self._plan = plan
        self._options = options
        self._chunk = chunk

    async def measure(self, seed: int, *, probed: bool = False) -> Measured:
        """Run the loop."""
        run = RawRun(
            model=self._plan.model,
            options=self._options,
            workload=self._plan.workload,
            chunk=self._chunk,
            seed=seed,
            limit=SEQUENCE_CELLS,
            seconds=self._plan.seconds,
            warm_up=self._plan.warm_up,
        )
        lane = await run_in_process(run)
        return Measured(lane.tokens_per_second, Split(lane=lane, interpreter=None, loop=0.0, parts={}))


class EngineHere:
    """The engine, with clients beside it on the same event loop."""

    name = ENGINE

    def __init__(self, plan: FloorPlan, engine: Engine, probes: Probes, clients: int) -> None:
        self._plan = plan
        self._engine = engine
        self._probes = probes
        self._clients = clients

    async def measure(self, seed: int, *, probed: bool = False) -> Measured:
        """Let the clients ask."""
        load = EngineLoad(self._engine, self._plan.workload, clients=self._clients, seed=seed)
        with self._probes.switched(on=probed):
            split = await load.run(self._plan.seconds, self._plan.warm_up, self._probes)
        return Measured(split.lane.tokens_per_second, split)


class ServerThere:
    """The server, with clients in this process that stream their answers."""

    name = SERVER

    def __init__(self, plan: FloorPlan, server: Server, clients: int) -> None:
        self._plan = plan
        self._server = server
        self._clients = clients

    async def measure(self, seed: int, *, probed: bool = False) -> Measured:
        """Let the clients ask."""
        target = await anyio.to_thread.run_sync(self._server.target)
        loop = ClosedLoop(target, self._plan.workload, clients=self._clients, seed=seed)
        seconds, warm_up = self._plan.seconds, self._plan.warm_up
        async with httpx.AsyncClient(base_url=self._server.url, trust_env=False) as client:
            (await client.put(f"{PROBES}/{'on' if probed else 'off'}")).raise_for_status()
            splits: list[Split] = []

            async def look() -> None:
                for pause in (warm_up, _WITHIN * seconds):
                    await anyio.sleep(pause)
                    splits.append(_SPLIT.validate_json((await client.get(SPLIT)).content))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(look)
                result = await loop.run(seconds=warm_up + seconds, warm_up=warm_up)
        summary = result.summary()
        return Measured(summary.tokens_per_second or 0.0, splits[1].since(splits[0]))


_SPLIT = TypeAdapter(Split)
_WITHIN = 0.9
"""The server is looked at when so much of the time is over, before its load ends."""

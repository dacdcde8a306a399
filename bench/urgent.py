"""How long an urgent request waits for its first token on a busy server, beside an idle one."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from statistics import median

import anyio

from llamalane.bench.exchange import Recording, Target, exchange
from llamalane.bench.load import ClosedLoop, LoadResult
from llamalane.bench.machine import Machine
from llamalane.bench.peers.builds import build_of
from llamalane.bench.peers.kinds import Peer, Setup
from llamalane.bench.peers.starting import llamalane_settings, serve, serve_settings
from llamalane.bench.reading import Record, read
from llamalane.bench.server import Server
from llamalane.bench.summary import LoadSummary
from llamalane.bench.workload import Workload
from llamalane.errors import LlamalaneError

MOST_URGENT = 1
LEAST_URGENT = 5
_FIRST_TRIES = 3
"""Tries on the idle server that do not count: the first ones touch memory that later ones find ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UrgentPlan:
    """What is measured.

    Attributes:
        peer: which server.
        setup: how it is started.
        reserve: places that llamalane keeps for the level `interactive`.
        clients: closed-loop clients at the least urgent level, while the urgent requests are sent one by one.
        background: what they ask for.
        urgent: what an urgent request asks for.
        tries: urgent requests, on the idle server and again under load.
        seed: chooses the prompts.
        pauses: the shortest and the longest pause before a try, in seconds; varied, so that tries under load fall
            anywhere within a step.
    """

    peer: Peer
    setup: Setup
    reserve: int
    clients: int
    background: Workload
    urgent: Workload
    tries: int
    seed: int
    pauses: tuple[float, float] = (0.5, 1.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class UrgentResult:
    """Seconds from the start of an urgent request to its first token, in the order of the tries."""

    plan: UrgentPlan
    machine: Machine
    build: str
    idle: tuple[float, ...]
    loaded: tuple[float, ...]
    background: LoadSummary

    @property
    def median_ratio(self) -> float:
        """The median under load as a multiple of the median on the idle server."""
        return median(self.loaded) / median(self.idle)

    @property
    def worst_ratio(self) -> float:
        """The worst under load as a multiple of the median on the idle server."""
        return max(self.loaded) / median(self.idle)


def measure_urgent(plan: UrgentPlan, machine: Machine, tell: Callable[[str, float], None]) -> UrgentResult:
    """Carry out `plan`, telling each try (`"idle"` or `"loaded"`) and its seconds as soon as it is made.

    Raises `LlamalaneError` when an urgent request fails.
    """
    build = build_of(plan.peer)
    with _server(plan) as server:
        idle, loaded, background = anyio.run(_measure, plan, server.target(), tell)
    return UrgentResult(
        plan=plan,
        machine=machine,
        build=build,
        idle=_first_tokens(idle),
        loaded=_first_tokens(loaded),
        background=background.summary(),
    )


def configuration(setup: Setup, reserve: int) -> dict[str, object]:
    """Return llamalane's configuration with `reserve` places kept for the level `interactive`."""
    return {**llamalane_settings(setup), "scheduler": {"reserve": {"interactive": reserve}}}


def _server(plan: UrgentPlan) -> AbstractContextManager[Server]:
    if plan.peer is Peer.LLAMALANE:
        return serve_settings(configuration(plan.setup, plan.reserve))
    return serve(plan.peer, plan.setup)


async def _measure(
    plan: UrgentPlan, target: Target, tell: Callable[[str, float], None]
) -> tuple[list[Record], list[Record], LoadResult]:
    prober = _Prober(plan, replace(target, priority=MOST_URGENT), tell)
    await prober.ask(_FIRST_TRIES, "first")
    idle = await prober.ask(plan.tries, "idle")
    loop = ClosedLoop(replace(target, priority=LEAST_URGENT), plan.background, clients=plan.clients, seed=plan.seed)
    results: list[LoadResult] = []

    async def run_background() -> None:
        results.append(await loop.run())

    async with anyio.create_task_group() as group:
        group.start_soon(run_background)
        await loop.settled.wait()
        loaded = await prober.ask(plan.tries, "loaded")
        loop.stop()
    return idle, loaded, results[0]


class _Prober:
    """Sends urgent requests one by one, each with a prompt of its own."""

    def __init__(self, plan: UrgentPlan, target: Target, tell: Callable[[str, float], None]) -> None:
        self._workload = plan.urgent
        self._pauses = plan.pauses
        self._target = target
        self._tell = tell
        self._questions = plan.urgent.questions(plan.seed, client=-1)
        self._random = random.Random(plan.seed)

    async def ask(self, tries: int, name: str) -> list[Record]:
        records = []
        for _ in range(tries):
            await anyio.sleep(self._random.uniform(*self._pauses))
            question = next(self._questions)
            recording = Recording(-1, question.output_tokens, time.monotonic())
            await exchange(self._target, self._target.encode(question, self._workload), recording)
            record = read(recording)
            records.append(record)
            if record.time_to_first_token is not None:
                self._tell(name, record.time_to_first_token)
        return records


def _first_tokens(records: list[Record]) -> tuple[float, ...]:
    times = []
    for record in records:
        if record.error is not None or record.time_to_first_token is None:
            raise LlamalaneError(f"an urgent request failed: {record.error or 'it got no text'}")
        times.append(record.time_to_first_token)
    return tuple(times)

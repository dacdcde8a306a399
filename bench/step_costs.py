"""What a step costs beside llama.cpp's work, by the sequences that run and by the requests that wait."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import anyio

from llamalane.bench.document import Table, spread, table_lines
from llamalane.bench.floor.clients import EngineLoad
from llamalane.bench.floor.plan import CLIENTS, SEQUENCE_CELLS
from llamalane.bench.floor.probes import Probes, Split
from llamalane.bench.peers.kinds import Setup
from llamalane.bench.peers.starting import llamalane_settings
from llamalane.bench.workload import Span, Workload
from llamalane.ids import LEAST_URGENT, MOST_URGENT
from llamalane.scheduler import Engine, EngineConfig
from llamalane.streams import SamplingParameters

BUSY = 16
"""Sequences that run while others wait."""
_PAUSE = 0.5
_WAITING_PROMPT = list(range(3, 11))
_WAITING_SAMPLING = SamplingParameters(max_tokens=1)
_WORKLOAD = Workload(words=Span(8, 16), output_tokens=Span(32, 64))


@dataclass(frozen=True, slots=True)
class Situation:
    """So many sequences run, and so many requests wait behind those of the clients."""

    sequences: int
    waiting: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """What is measured: each situation once in each round, on an engine of its own, for `seconds` after `warm_up`.

    The clients, twice as many as sequences, ask at level 1, and those that only wait at level 5: one in
    `guaranteed_share` admissions is theirs.
    """

    model: Path
    threads: int
    situations: tuple[Situation, ...]
    rounds: int
    seconds: float
    warm_up: float
    seed: int = 1


@dataclass(frozen=True, slots=True)
class StepRound:
    """One situation, once."""

    situation: Situation
    round: int
    split: Split

    @property
    def decode(self) -> float:
        """Seconds that llama.cpp took for a step."""
        return self._per_step(self.split.lane.decode)

    @property
    def sampling(self) -> float:
        """Seconds that choosing a step's tokens took."""
        return self._per_step(self.split.lane.sample)

    @property
    def between(self) -> float:
        """Seconds from the end of a step to the next one."""
        return self._per_step(self.split.lane.idle)

    @property
    def loop(self) -> float:
        """CPU seconds of the event loop's thread for each step, the clients' included."""
        return self._per_step(self.split.loop)

    @property
    def cost(self) -> float:
        """What a step cost beside llama.cpp's work: of the lane's time, and of the event loop's."""
        return self.sampling + self.between + self.loop

    @property
    def tokens(self) -> float:
        """Tokens that a step gave."""
        return self._per_step(self.split.lane.tokens)

    def _per_step(self, amount: float) -> float:
        return amount / max(1, self.split.lane.steps)


_PARTS: Mapping[str, Callable[[StepRound], float]] = {
    "llama.cpp": lambda one: one.decode,
    "choosing tokens": lambda one: one.sampling,
    "between steps": lambda one: one.between,
    "event loop": lambda one: one.loop,
}
"""What a step's time is told of, in columns."""


async def measure_steps(plan: StepPlan, tell: Callable[[str], None]) -> list[StepRound]:
    """Measure every situation in every round, forwards and backwards in turn, telling each as soon as it is there."""
    rounds = []
    for number in range(1, plan.rounds + 1):
        for situation in plan.situations if number % 2 else plan.situations[::-1]:
            rounds.append(await _measure(plan, situation, number))
            tell(_line(rounds[-1]))
    return rounds


def steps_markdown(plan: StepPlan, rounds: Sequence[StepRound]) -> str:
    """Return the medians over the rounds as a table, in microseconds."""
    titles = ["sequences", "waiting", "tokens a step", *_PARTS, "beside llama.cpp (range)"]
    of = {one: [each for each in rounds if each.situation == one] for one in plan.situations}
    table = Table.of(titles, (_cells(situation, same) for situation, same in of.items()))
    return "\n".join(
        [
            f"{plan.model.name}, {plan.threads} threads; {plan.rounds} rounds of {plan.seconds:g} s.",
            "",
            *table_lines(table),
            "",
            "Microseconds for each step, medians over the rounds. Choosing tokens and what is between two steps is the "
            "lane's time, the event loop's is CPU time of its thread, which is taken up by the clients too.",
        ]
    )


def _cells(situation: Situation, rounds: Sequence[StepRound]) -> list[str]:
    return [
        str(situation.sequences),
        f"{situation.waiting:,}",
        f"{median(one.tokens for one in rounds):.1f}",
        *(f"{1e6 * median(map(part, rounds)):.0f}" for part in _PARTS.values()),
        spread([1e6 * one.cost for one in rounds], ".0f"),
    ]


async def _measure(plan: StepPlan, situation: Situation, number: int) -> StepRound:
    probes = Probes()
    async with Engine(_config(plan, situation), open_context=probes.open_context) as engine:
        engine.pause_lane(_lane(engine))
        waiting = [
            engine.submit_tokens_nowait(_WAITING_PROMPT, priority=LEAST_URGENT, sampling=_WAITING_SAMPLING)
            for _ in range(situation.waiting)
        ]
        clients, seed = CLIENTS * situation.sequences, plan.seed + number
        load = EngineLoad(engine, _WORKLOAD, clients=clients, seed=seed, priority=MOST_URGENT)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_resume, engine)
            split = await load.run(plan.seconds, _PAUSE + plan.warm_up, probes)
        for handle in waiting:
            handle.cancel()
    return StepRound(situation, number, split)


async def _resume(engine: Engine) -> None:
    """Let the lane begin when the clients have asked: else those that shall wait would go first."""
    await anyio.sleep(_PAUSE)
    engine.resume_lane(_lane(engine))


def _lane(engine: Engine) -> str:
    return engine.stats().lanes[0].name


def _config(plan: StepPlan, situation: Situation) -> EngineConfig:
    places = situation.sequences
    setup = Setup(model=plan.model, places=places, threads=plan.threads, cells=places * SEQUENCE_CELLS)
    room = situation.waiting + CLIENTS * places
    bounds = {"max_requests": room, "max_tokens": room * SEQUENCE_CELLS}
    return EngineConfig.model_validate({**llamalane_settings(setup), "scheduler": {"queue": bounds}})


def _line(one: StepRound) -> str:
    return (
        f"round {one.round}, {one.situation.sequences} sequences, {one.situation.waiting} waiting: "
        f"{1e6 * one.cost:.0f} µs a step beside llama.cpp's {1e6 * one.decode:.0f}"
    )

"""The same workload on a real engine, in real time, and on the simulator."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

import anyio

from llamalane.bench.simulator.measures import LevelMeasures, Measures, Objective, measure
from llamalane.bench.simulator.outcomes import OutcomeLog, Outcomes
from llamalane.bench.simulator.request import SimulatedRequest, nanoseconds, seconds
from llamalane.errors import QueueFullError
from llamalane.scheduler import Engine, EngineConfig, Result, SamplingParameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A workload as it really ran, and as it was simulated."""

    real: Measures
    simulated: Measures

    @property
    def pairs(self) -> list[tuple[LevelMeasures, LevelMeasures]]:
        """The levels that both have, the real one first."""
        simulated = {level.level: level for level in self.simulated.levels}
        return [(level, simulated[level.level]) for level in self.real.levels if level.level in simulated]


def compare(
    config: EngineConfig, arrivals: Sequence[SimulatedRequest], simulated: Outcomes, slo: Objective
) -> Comparison:
    """Run the requests on the engine that `config` describes, and measure it beside what was simulated."""
    real = anyio.run(run_real, config, arrivals)
    return Comparison(real=measure(real, slo), simulated=measure(simulated, slo))


async def run_real(config: EngineConfig, arrivals: Sequence[SimulatedRequest]) -> Outcomes:
    """Submit each request at its time, wait for all of them, and return what became of them.

    Prompts are random tokens, and each output has exactly the length that it should have. Later turns of a session
    repeat what was said before, and come when their user has thought.
    """
    async with Engine(config) as engine:
        clients = _Clients(engine)
        async with anyio.create_task_group() as tasks:
            for request in arrivals:
                await clients.wait_until(request)
                tasks.start_soon(clients.ask, request)
        return clients.log.outcomes()


class _Clients:
    """Send requests, and take their times down."""

    def __init__(self, engine: Engine) -> None:
        self.log = OutcomeLog()
        self._engine = engine
        self._random = random.Random(1)
        self._start = time.monotonic()

    async def wait_until(self, request: SimulatedRequest) -> None:
        """Wait for a request's arrival."""
        await anyio.sleep(max(0.0, self._start + seconds(request.arrival) - time.monotonic()))

    async def ask(self, request: SimulatedRequest) -> None:
        """Send a request and those that answer it, one after the other."""
        said: list[int] = []
        turn: SimulatedRequest | None = request
        while turn is not None:
            said += self._fresh(turn.prompt_tokens - len(said))
            turn.arrival = nanoseconds(time.monotonic() - self._start)
            try:
                result = await self._send(turn, said)
            except QueueFullError:
                self.log.refused[turn.level] += 1
                return
            self._note(turn, result)
            said += result.tokens
            if turn.next_turn is not None:
                await anyio.sleep(seconds(turn.think))
            turn = turn.next_turn

    async def _send(self, request: SimulatedRequest, tokens: Sequence[int]) -> Result:
        handle = self._engine.submit_tokens_nowait(
            tokens,
            sampling=SamplingParameters(max_tokens=request.output_tokens, ignore_eos=True),
            priority=request.level,
            tenant=request.tenant,
        )
        return await handle.result()

    def _note(self, request: SimulatedRequest, result: Result) -> None:
        times = result.timings
        request.admitted = request.arrival + nanoseconds(times.wait)
        request.first_token = request.arrival + nanoseconds(times.first_token)
        request.ended = request.arrival + nanoseconds(times.total)
        request.cached = result.usage.cached_tokens
        self.log.add(request)

    def _fresh(self, count: int) -> list[int]:
        return [self._random.randrange(self._engine.model_info.vocabulary_size) for _ in range(count)]

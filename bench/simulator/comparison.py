"""A workload on a real engine, in real time, to compare simulations with."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

import anyio

from llamalane.bench.simulator.machine import Machine
from llamalane.bench.simulator.outcomes import OutcomeLog, Outcomes
from llamalane.bench.simulator.passes import Part, passes_of
from llamalane.bench.simulator.request import SimulatedRequest, picoseconds, seconds
from llamalane.bench.simulator.speed import Speed
from llamalane.errors import QueueFullError
from llamalane.scheduler import Engine, EngineConfig, Result, SamplingParameters
from llamalane.streams.llama import Batch, Context, ContextOptions, Model


@dataclass(frozen=True, slots=True)
class ComputedStep:
    """A step of a real lane: what it computed of each sequence, and the seconds that llama.cpp took for it."""

    parts: tuple[Part, ...]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RealRun:
    """A workload as it really ran."""

    outcomes: Outcomes
    steps: Sequence[ComputedStep]

    def slowness(self, machine: Machine, speed: Speed) -> float:
        """Return how many times as long the steps took as `speed` tells for steps that compute the same."""
        told = sum(
            speed.time(passes_of(step.parts, partitioned=machine.partitioned, micro_batch=machine.micro_batch))
            for step in self.steps
        )
        return sum(step.seconds for step in self.steps) / seconds(told)


async def run_real(config: EngineConfig, arrivals: Sequence[SimulatedRequest]) -> RealRun:
    """Submit each request at its time, wait for all of them, and return what became of them.

    Prompts are random tokens, and each output has exactly the length that it should have. Later turns of a session
    repeat what was said before, and come when their user has thought.
    """
    steps: list[ComputedStep] = []

    def open_context(model: Model, options: ContextOptions) -> Context:
        return _TimedContext(model, options, steps)

    async with Engine(config, open_context=open_context) as engine:
        steps.clear()  # what an engine computes before it serves tells nothing about the requests
        clients = _Clients(engine)
        async with anyio.create_task_group() as tasks:
            for request in arrivals:
                await clients.wait_until(request)
                tasks.start_soon(clients.ask, request)
        return RealRun(outcomes=clients.log.outcomes(), steps=steps)


class _TimedContext(Context):
    """A llama context that takes down what it computes; a step that is broken off does not count."""

    def __init__(self, model: Model, options: ContextOptions, steps: list[ComputedStep]) -> None:
        super().__init__(model, options)
        self._steps = steps

    def decode(self, batch: Batch) -> None:
        begin = time.monotonic()
        super().decode(batch)
        parts = tuple(Part(sequence, start, end - start) for sequence, start, end in batch.parts)
        self._steps.append(ComputedStep(parts, time.monotonic() - begin))


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
            turn.arrival = picoseconds(time.monotonic() - self._start)
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
        request.admitted = request.arrival + picoseconds(times.wait)
        request.first_token = request.arrival + picoseconds(times.first_token)
        request.ended = request.arrival + picoseconds(times.total)
        request.cached = result.usage.cached_tokens
        self.log.add(request)

    def _fresh(self, count: int) -> list[int]:
        return [self._random.randrange(self._engine.model_info.vocabulary_size) for _ in range(count)]

"""Engines whose books can be looked at, and what tests put between a lane and its context."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio
import numpy as np
import numpy.typing as npt

from llamalane.ids import SequenceId
from llamalane.scheduler import (
    BlockingEngine,
    Engine,
    EngineConfig,
    EngineState,
    Event,
    EventKind,
    KVConfig,
    LaneConfig,
    LookupConfig,
    ModelConfig,
    SamplingParameters,
    SchedulerConfig,
    StreamsConfig,
)
from llamalane.scheduler.assembly import OpenContext
from llamalane.streams.lane import StepContext
from llamalane.streams.llama import Abilities, Batch, Context, ContextOptions, Model
from llamalane.streams.parts import Parts
from tests.models.tiny_gguf import BOS

PART = 256
"""KV cells for each place in the engines of these tests."""
LIMIT = 4 * PART
"""Tokens that one sequence can hold in an engine of 4 places: all cells there are."""
EXACT = KVConfig(key_type="f32", value_type="f32", flash_attention="off", layout="paged")
"""Computes with floats of 32 bits throughout.

Only so can outputs be compared token by token: with flash attention, which computes with 16 bits, the numbers depend
enough on a step's shape to turn one token of some hundreds that are drawn.
"""
SPACE = 259
"""The tiny model's token for a space, its last one."""


def tokens_of(text: str) -> list[int]:
    """The tokens of a prompt for the tiny model: BOS, then one for each byte."""
    return [BOS, *(SPACE if byte == ord(" ") else byte + 3 for byte in text.encode())]


def greedy(max_tokens: int = 16, **options: Any) -> SamplingParameters:
    """Always the likeliest token, for exactly so many tokens."""
    return SamplingParameters(temperature=0, max_tokens=max_tokens, ignore_eos=True, **options)


def seeded(seed: int | None, max_tokens: int = 16, **options: Any) -> SamplingParameters:
    """Drawn tokens, exactly so many."""
    return SamplingParameters(seed=seed, max_tokens=max_tokens, ignore_eos=True, **options)


def config_for(
    model: Path,
    *,
    places: int = 4,
    lanes: int = 1,
    part: int = PART,
    max_step_tokens: int = 512,
    output_rows: int = 0,
    lookup: LookupConfig | None = None,
    kv: KVConfig = EXACT,
    **scheduler: Any,
) -> EngineConfig:
    """A small engine; `kv` is completed with the budget for `part` tokens on each place."""
    return EngineConfig(
        models=[ModelConfig(path=model, name="tiny", aliases=["also-tiny"])],
        streams=StreamsConfig(
            lanes=[LaneConfig(name=f"lane-{number}", places=places, threads=1) for number in range(lanes)],
            max_step_tokens=max_step_tokens,
            output_rows=output_rows,
            lookup=lookup or LookupConfig(),
        ),
        kv=kv.model_copy(update={"budget": part * places * lanes}),
        scheduler=SchedulerConfig(**scheduler),
    )


class WatchedEngine(Engine):
    """An engine that can be asked after its end whether everything came back."""

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        assert self._running is not None
        self.pool = self._running.machinery.pool
        self.scheduler = self._running.scheduler
        return self

    def check_conserved(self) -> None:
        """Check that no place, cell, slot or request is left."""
        if not hasattr(self, "pool"):
            assert self.state in (EngineState.NEW, EngineState.CLOSED)
            return
        assert self.state is EngineState.CLOSED
        self.pool.check()
        assert self.pool.leased == 0
        assert self.pool.free == sum(lane.region.places for lane in self.pool.lanes if lane.serving)
        for lane in self.pool.lanes:
            assert lane.region.statistics().reserved == lane.region.statistics().paused == 0
            assert lane.region.free == lane.region.statistics().sequences
        assert len(self.scheduler.queue) == self.scheduler.queue.tokens == self.scheduler.queue._slots == 0
        assert not any(self.scheduler.running.values())
        assert not any(list(ledger) for ledger in self.scheduler.ledgers.values())
        assert self.scheduler.rules.costs.store.reserved_bytes == 0


class WatchedBlockingEngine(BlockingEngine):
    """The same for code without an event loop."""

    def __init__(self, config: EngineConfig, **options: Any) -> None:
        super().__init__(config, **options)
        options.pop("allow_event_loop", None)
        self.watched = self._engine = self._life._engine = WatchedEngine(config, **options)


def lane_threads() -> list[str]:
    """Lanes' threads that are alive."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("llamalane-")]


class Follower:
    """An observer that keeps all events, and wakes whoever waits for one. Made on the event loop."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._news = anyio.Event()

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        self._news.set()
        self._news = anyio.Event()

    def kinds(self, request: str) -> list[EventKind]:
        """What happened to a request, in order."""
        return [event.kind for event in self.events if event.request == request]

    def count(self, kind: EventKind, request: str | None = None) -> int:
        """How often something happened."""
        return sum(event.kind is kind and request in (None, event.request) for event in self.events)

    async def wait_for(self, kind: EventKind, request: str | None = None, *, times: int = 1) -> None:
        """Wait until something has happened so many times since the start."""
        while self.count(kind, request) < times:
            await self._news.wait()


class Gate:
    """Holds a lane before each step until it is let go on. In a `with` block: opened for good at its end."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._steps = 0
        self._open = False

    def let(self, steps: int) -> None:
        """Let so many steps through."""
        with self._condition:
            self._steps += steps
            self._condition.notify_all()

    def open(self) -> None:
        """Hold nothing any more."""
        with self._condition:
            self._open = True
            self._condition.notify_all()

    def pass_through(self) -> None:
        """Wait to be let through; on the lane's thread."""
        with self._condition:
            self._condition.wait_for(lambda: self._open or self._steps > 0)
            self._steps -= 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.open()


class InterceptedContext:
    """A context that calls `before_step` before each step, on the lane's thread."""

    def __init__(self, context: Context, before_step: Callable[[], None]) -> None:
        self._context = context
        self._before_step = before_step

    def probe(self) -> Abilities:
        return self._context.probe()

    def decode(self, batch: Batch) -> None:
        self._before_step()
        self._context.decode(batch)

    def logits(self, batch: Batch) -> npt.NDArray[np.float32]:
        return self._context.logits(batch)

    def remove(self, sequence: SequenceId, start: int = 0) -> bool:
        return self._context.remove(sequence, start)

    def length(self, sequence: SequenceId) -> int:
        return self._context.length(sequence)

    def copy(self, source: SequenceId, target: SequenceId, length: int) -> bool:
        return self._context.copy(source, target, length)

    def merge(self, source: SequenceId, target: SequenceId, start: int, end: int) -> None:
        self._context.merge(source, target, start, end)

    def shift(self, sequence: SequenceId, keep: int, drop: int) -> bool:
        return self._context.shift(sequence, keep, drop)

    def saving(self, sequence: SequenceId) -> Parts[bytearray]:
        return self._context.saving(sequence)

    def restoring(self, sequence: SequenceId, data: bytearray) -> Parts[bool]:
        return self._context.restoring(sequence, data)

    def interrupt(self, on: bool) -> None:
        self._context.interrupt(on)

    def set_threads(self, threads: int) -> None:
        self._context.set_threads(threads)

    def close(self) -> None:
        self._context.close()


def intercepted(before_step: Callable[[], None]) -> OpenContext:
    """Open real contexts that call `before_step` before each step."""

    def open_context(model: Model, options: ContextOptions) -> StepContext:
        return InterceptedContext(Context(model, options), before_step)

    return open_context

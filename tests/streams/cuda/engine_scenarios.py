"""A whole engine whose lanes are lent streams of the fake driver.

Its model computes on the CPU: beside each of llama.cpp's contexts stands a small one that takes the stream.
"""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path

import anyio
import pytest

from llamalane.errors import ContextError, StreamLimitError
from llamalane.scheduler import (
    Engine,
    EngineConfig,
    KVConfig,
    LaneConfig,
    ModelConfig,
    SamplingParameters,
    StreamsConfig,
)
from llamalane.scheduler.assembly import OpenContext
from llamalane.streams import DeviceChoice, OffloadStream
from llamalane.streams.cuda import load_shim
from llamalane.streams.llama import Batch, Context, ContextOptions, Model
from llamalane.streams.llama.library import Library
from tests.streams.cuda.machine import FakeMachine, MiniLlama

LANES = [
    LaneConfig(name="urgent", places=2, threads=1, priority=1, multiprocessors=64),
    LaneConfig(name="batch", places=2, threads=1),
]
ANSWER = SamplingParameters(temperature=0, max_tokens=4, ignore_eos=True)


class TakingContext(Context):
    """A context that takes the stream which its thread lends, as one on a GPU does."""

    taken: list[int]
    llama: MiniLlama

    def __init__(self, model: Model, options: ContextOptions) -> None:
        super().__init__(model, options)
        self._mini: int | None = self.llama.context()
        self.taken.append(self.llama.stream(self._mini))

    def close(self) -> None:
        super().close()
        if self._mini is not None:
            self.llama.free(self._mini)
            self._mini = None


def prepare(*, with_shim: bool = True) -> tuple[FakeMachine, type[TakingContext]]:
    """Let llama.cpp say that it can use a GPU."""
    machine = FakeMachine(with_shim=with_shim)
    load_shim()

    class Taking(TakingContext):
        taken: list[int] = []  # noqa: RUF012
        llama = machine.llama()

    Library.supports_gpu_offload = True  # type: ignore[assignment, method-assign]
    return machine, Taking


def engine_on(lanes: list[LaneConfig], open_context: OpenContext) -> Engine:
    return Engine(
        EngineConfig(
            models=[ModelConfig(path=Path(os.environ["TINY_MODEL"]))],
            streams=StreamsConfig(device=DeviceChoice.CUDA, lanes=lanes),
            kv=KVConfig(budget=2048),
        ),
        open_context=open_context,
    )


def every_lane_computes_on_a_stream_of_its_own() -> None:
    machine, context = prepare()

    async def run() -> None:
        async with engine_on(LANES, context) as engine:
            results = [await engine.generate("a prompt", sampling=ANSWER) for _ in range(4)]
            assert all(len(result.tokens) == 4 for result in results)
            urgent, batch = engine.stats().lanes
            assert (urgent.name, urgent.kind, urgent.priority_enforced) == (
                "urgent",
                "CUDA stream on GPU 0, priority -5, 64 multiprocessors",
                True,
            )
            assert (batch.kind, batch.priority_enforced) == ("CUDA stream on GPU 0, priority 0", True)
            assert [machine.priority(stream) for stream in context.taken] == [-5, 0]
            assert context.llama.own_streams == 0
            assert machine.alive("stream") == 2
        assert (machine.alive("stream"), machine.alive("green")) == (0, 0)

    anyio.run(run)


def a_lane_that_fails_is_lent_its_stream_again() -> None:
    machine, taking = prepare()
    fault = threading.Event()

    class Failing(taking):  # type: ignore[misc, valid-type]
        def decode(self, batch: Batch) -> None:
            if fault.is_set():
                fault.clear()
                raise ContextError("as if the GPU had run out of memory")
            super().decode(batch)

    async def run() -> None:
        async with engine_on(LANES[:1], Failing) as engine:
            fault.set()
            assert len((await engine.generate("a prompt", sampling=ANSWER)).tokens) == 4
            first, second = taking.taken
            assert first == second
            (lane,) = engine.stats().lanes
            assert (lane.failures, lane.priority_enforced) == (1, True)
        assert machine.alive("stream") == 0

    anyio.run(run)


def a_lane_whose_gpu_fails_leaves_the_other_serving() -> None:
    machine, taking = prepare()
    lanes = [LaneConfig(name=f"gpu-{number}", places=2, threads=1, device=number) for number in range(2)]
    devices = iter([0, 1])
    fault = threading.Event()

    class OnItsDevice(taking):  # type: ignore[misc, valid-type]
        def __init__(self, model: Model, options: ContextOptions) -> None:
            self.device = next(devices)
            Context.__init__(self, model, options)
            self._mini = self.llama.context(self.device)

        def decode(self, batch: Batch) -> None:
            if self.device == 1 and fault.is_set():
                machine.driver.fake_fail_device(1)
                raise ContextError("as if the GPU had fallen off the bus")
            super().decode(batch)

    async def run() -> None:
        async with engine_on(lanes, OnItsDevice) as engine:
            first, second = engine.stats().lanes
            assert first.priority_enforced
            assert second.priority_enforced
            fault.set()
            async with anyio.create_task_group() as tasks:
                for number in range(4):
                    tasks.start_soon(answered, engine, f"prompt {number}")
            first, second = engine.stats().lanes
            assert (first.serving, first.down) == (True, False)
            assert (second.serving, second.down) == (False, True)
            await answered(engine, "one more")
        assert machine.alive("stream") <= 1, "that of the device that has failed cannot be destroyed"

    async def answered(engine: Engine, prompt: str) -> None:
        assert len((await engine.generate(prompt, sampling=ANSWER)).tokens) == 4

    anyio.run(run)


def what_a_gpu_cannot_give_keeps_the_engine_from_starting() -> None:
    machine, context = prepare()
    greedy = [LaneConfig(name="greedy", places=2, threads=1, multiprocessors=512)]

    async def run() -> None:
        with pytest.raises(StreamLimitError, match="'greedy': multiprocessors must be from 8 to 132"):
            async with engine_on(greedy, context):
                raise AssertionError("it has started")
        assert machine.alive("stream") == 0

    anyio.run(run)


class Notes(logging.Handler):
    """Keeps what is logged."""

    def __init__(self, logger: str) -> None:
        super().__init__()
        self.told: list[str] = []
        logging.getLogger(logger).addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.told.append(record.getMessage())


def a_llama_cpp_that_takes_no_stream_is_told() -> None:
    machine, context = prepare()
    context.llama = machine.llama(static=True)
    notes = Notes("llamalane.streams.cuda")

    async def run() -> None:
        async with engine_on(LANES[:1], context) as engine:
            (lane,) = engine.stats().lanes
            assert lane.kind.startswith(f"{OffloadStream.kind}: ")
            assert not lane.priority_enforced
            assert len((await engine.generate("a prompt", sampling=ANSWER)).tokens) == 4

    anyio.run(run)
    assert any("static CUDA runtime" in message for message in notes.told)


def without_a_shim_the_engine_serves_on_llama_cpps_own_streams() -> None:
    machine, context = prepare(with_shim=False)
    notes = Notes("llamalane.scheduler.assembly")

    async def run() -> None:
        async with engine_on(LANES[:1], context) as engine:
            (lane,) = engine.stats().lanes
            assert (lane.kind, lane.priority_enforced) == (OffloadStream.kind, False)
            assert len((await engine.generate("a prompt", sampling=ANSWER)).tokens) == 4
            assert machine.alive("stream") == 0

    anyio.run(run)
    assert any("was not built" in message for message in notes.told)

"""A whole engine whose lanes are lent streams of the fake driver.

Its models compute on the CPU, which stands for every GPU: beside each of llama.cpp's contexts is a small one that takes
the stream, on the GPU that the model was loaded for.
"""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path
from typing import Any

import anyio
import pytest

from llamalane.api import create_app
from llamalane.errors import ConfigError, ContextError, StreamLimitError
from llamalane.scheduler import (
    Engine,
    EngineConfig,
    KVConfig,
    LaneConfig,
    ModelConfig,
    Result,
    SamplingParameters,
    StreamsConfig,
    assembly,
)
from llamalane.scheduler.assembly import OpenContext, plan
from llamalane.streams import DeviceChoice, OffloadStream
from llamalane.streams.cuda import load_shim
from llamalane.streams.llama import Batch, Context, ContextOptions, Model
from llamalane.streams.llama import model as llama_model
from llamalane.streams.llama.library import Library
from tests.api.asgi import client_of
from tests.streams.cuda.machine import FakeMachine, MiniLlama
from tests.streams.llama.cpu_as_gpu import cpu_as_gpu

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
        device = model.options.device or 0
        self._mini: int | None = self.llama.context(device)
        self.taken.append(self.llama.stream(self._mini, device))

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
    llama_model.find_gpu = cpu_as_gpu  # type: ignore[attr-defined]
    assembly.available_cores = eight_cores  # type: ignore[attr-defined]
    return machine, Taking


def eight_cores(root: Path = Path("/")) -> tuple[int, ...]:
    """Stand in for those of the machine, which may have fewer."""
    return tuple(range(8))


def config_of(lanes: list[LaneConfig], budget: int | str) -> EngineConfig:
    return EngineConfig(
        models=[ModelConfig(path=Path(os.environ["TINY_MODEL"]))],
        streams=StreamsConfig(device=DeviceChoice.CUDA, lanes=lanes),
        kv=KVConfig(budget=budget),
    )


def engine_on(lanes: list[LaneConfig], open_context: OpenContext) -> Engine:
    return Engine(config_of(lanes, 2048), open_context=open_context)


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


def on_gpus(count: int) -> list[LaneConfig]:
    """One lane on each of so many GPUs."""
    return [LaneConfig(name=f"gpu-{number}", places=2, threads=1, device=number) for number in range(count)]


async def answered(engine: Engine, prompt: str, **options: Any) -> Result:
    result = await engine.generate(prompt, sampling=ANSWER, **options)
    assert len(result.tokens) == 4
    return result


async def all_answered(engine: Engine, count: int) -> set[str]:
    """Ask so much at once, and return the names of the lanes that answered."""
    lanes = set()

    async def ask(number: int) -> None:
        lanes.add((await answered(engine, f"prompt {number}", tenant=str(number))).timings.lane)

    async with anyio.create_task_group() as tasks:
        for number in range(count):
            tasks.start_soon(ask, number)
    return lanes


def lanes_on_four_devices_answer_from_one_queue() -> None:
    machine, taking = prepare()

    async def run() -> None:
        async with engine_on(on_gpus(4), taking) as engine:
            lanes = engine.stats().lanes
            assert [lane.kind for lane in lanes] == [f"CUDA stream on GPU {number}, priority 0" for number in range(4)]
            assert [machine.device(stream) for stream in taking.taken] == [0, 1, 2, 3]
            assert all(lane.priority_enforced for lane in lanes)
            assert await all_answered(engine, 8) == {f"gpu-{number}" for number in range(4)}
            assert taking.llama.own_streams == 0
        assert machine.alive("stream") == 0

    anyio.run(run)


def a_lane_whose_gpu_fails_leaves_the_others_serving() -> None:
    machine, taking = prepare()
    fault = threading.Event()

    class Failing(taking):  # type: ignore[misc, valid-type]
        def __init__(self, model: Model, options: ContextOptions) -> None:
            super().__init__(model, options)
            self.device = model.options.device

        def decode(self, batch: Batch) -> None:
            if self.device == 1 and fault.is_set():
                machine.driver.fake_fail_device(1)
                raise ContextError("as if the GPU had fallen off the bus")
            super().decode(batch)

    async def run() -> None:
        async with engine_on(on_gpus(4), Failing) as engine:
            assert all(lane.priority_enforced for lane in engine.stats().lanes)
            fault.set()
            assert await all_answered(engine, 8) == {"gpu-0", "gpu-2", "gpu-3"}
            lanes = engine.stats().lanes
            assert [(lane.serving, lane.down) for lane in lanes if lane.name != "gpu-1"] == [(True, False)] * 3
            assert (lanes[1].serving, lanes[1].down) == (False, True)
            await answered(engine, "one more")
            async with client_of(create_app(engine)) as client:
                assert (await client.get("/health")).json() == {"status": "ok", "lanes_down": ["gpu-1"]}
        assert machine.alive("stream") <= 1, "that of the device that has failed cannot be destroyed"

    anyio.run(run)


def a_share_of_the_memory_is_taken_on_each_device() -> None:
    prepare()
    lanes = [*on_gpus(3), LaneConfig(name="second", places=2, threads=1, device=1)]
    memory = plan(config_of(lanes, "50%"))
    free = [(1 << 30) - 1000 * (number + 1) for number in range(3)]
    assert [device.free for device in memory.devices] == free
    weights, cell = memory.devices[0].weights, memory.cell
    for device, left in zip(memory.devices, [(one - weights) / 2 for one in free], strict=True):
        assert left - 2 * 256 * cell < device.kv <= left
    assert [device.lanes for device in memory.devices] == [("gpu-0",), ("gpu-1", "second"), ("gpu-2",)]
    spread = plan(config_of([LaneConfig(places=2, threads=1)], "50%"))
    assert (spread.name, spread.free) == ("GPU", sum(free) + (1 << 30) - 4000)
    with pytest.raises(ConfigError, match="which is 107 bytes on GPU 0, is too small for 2 places"):
        plan(config_of(lanes, "0.00001%"))


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

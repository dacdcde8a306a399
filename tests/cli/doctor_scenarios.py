"""What the doctor says on fake GPUs; each runs in a process of its own."""

from __future__ import annotations

import os
from pathlib import Path

from llamalane.cli.doctor import examine, lines
from llamalane.scheduler import EngineConfig, LaneConfig, ModelConfig, StreamsConfig
from llamalane.streams import DeviceChoice
from llamalane.streams.cuda import load_shim
from llamalane.streams.llama.library import Library
from tests.streams.cuda.machine import FakeMachine

WISHES = LaneConfig(name="wishes", priority=1, multiprocessors=64)


def config(*lanes: LaneConfig, device: DeviceChoice = DeviceChoice.CUDA) -> EngineConfig:
    return EngineConfig(
        models=[ModelConfig(path=Path(os.environ["TINY_MODEL"]))],
        streams=StreamsConfig(device=device, lanes=list(lanes)),
    )


def with_cuda(*, with_shim: bool = True) -> FakeMachine:
    """Load what stands for a llama.cpp that can use CUDA, after the shim."""
    machine = FakeMachine(with_shim=with_shim)
    load_shim()
    machine.llama()
    Library.supports_gpu_offload = True  # type: ignore[assignment, method-assign]
    return machine


def all_is_well() -> None:
    machine = with_cuda()
    report = examine(config(WISHES, LaneConfig(name="other", device=1)))
    assert report.problems == ()
    assert (report.cuda.state, report.cuda.remedy) == ("USABLE", "")
    assert [(gpu.index, gpu.name) for gpu in report.cuda.gpus] == [(0, "fake GPU 0"), (1, "fake GPU 1")]
    text = "\n".join(lines(report))
    assert "GPU 1       fake GPU 1, compute capability 9.0, 132 multiprocessors, 1.0 GiB, 1.0 GiB free" in text
    assert "stream priorities from 0 to -5" in text
    assert machine.alive("stream") == 0


def a_gpu_that_is_not_there_is_a_problem() -> None:
    with_cuda()
    (problem,) = examine(config(LaneConfig(name="far", device=7))).problems
    assert problem == "lane far wants GPU 7, and GPUs go from 0 to 1"
    assert examine(config(LaneConfig(name="far", device=7), device=DeviceChoice.CPU)).problems == ()


def a_gpu_that_does_not_answer_is_a_problem() -> None:
    machine = with_cuda()
    machine.fail("cuDevicePrimaryCtxRetain", 1)
    report = examine(config(LaneConfig(name="first"), LaneConfig(name="second", device=1)))
    assert [gpu.index for gpu in report.cuda.gpus] == [0]
    (problem,) = report.problems
    assert problem.startswith("lane second wants GPU 1: CUDA refused")


def without_a_shim_only_wishes_are_a_problem() -> None:
    with_cuda(with_shim=False)
    (problem,) = examine(config(WISHES)).problems
    assert problem == "lane wishes wants a stream of its own: the shim that lends streams to llama.cpp was not built"
    assert examine(config(LaneConfig(name="modest"))).problems == ()

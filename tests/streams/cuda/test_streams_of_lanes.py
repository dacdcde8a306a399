"""Contexts on streams of their own: on CPU lanes here, and the same on a GPU where there is one."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from llamalane.bench.gpu.priorities import Arrangement, measure_priorities
from llamalane.bench.gpu.streams import Bench, opened, streams
from llamalane.bench.gpu.synthetic import SHAPES, WeightType, write_synthetic
from llamalane.streams import Device, LentStream
from llamalane.streams.cuda import CudaStreamPool, StreamClass, describe, free_memory, load_shim, probe
from llamalane.streams.cuda.driver import call
from tests.streams.cuda.writing import open_context, read, shortfalls, tolerance, write

URGENT, BULK = StreamClass(name="urgent", priority=1), StreamClass(name="bulk", priority=5)
COUNT = 48
"""Tokens in an output."""


def gpu_or_skip() -> None:
    found = probe()
    if not found.lends:
        pytest.skip(f"no GPU: {found.reason}")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with random weights: the one that GPU_TEST_MODEL names, or else a tiny one."""
    if "GPU_TEST_MODEL" in os.environ:
        return Path(os.environ["GPU_TEST_MODEL"])
    path = tmp_path_factory.mktemp("synthetic") / "tiny.gguf"
    write_synthetic(path, SHAPES["tiny"], WeightType.Q4_K)
    return path


@pytest.fixture(scope="module", params=["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def bench(request: pytest.FixtureRequest, model: Path) -> Iterator[Bench]:
    if request.param == "gpu":
        gpu_or_skip()
    with opened(model, on_gpu=request.param == "gpu") as loaded:
        yield loaded


def test_outputs_on_a_pools_stream_are_those_of_llama_cpps_own(bench: Bench) -> None:
    prompt = bench.tokens(64, seed=1)
    with streams(bench, [URGENT]) as (stream,):
        with stream.lend():
            context = open_context(bench)
        if bench.device is Device.GPU:
            assert stream.priority_enforced, stream.kind
        output = write(context, prompt, COUNT)
        context.close()
    own = open_context(bench)
    logits = read(own, prompt, output)
    own.close()
    assert len(set(output)) > COUNT // 4, "it writes more than one thing"
    assert shortfalls(logits, output).max() <= tolerance(bench, prompt, output)


def test_lanes_that_decode_at_once_do_not_disturb_each_other(bench: Bench) -> None:
    # Nothing is said of CUDA graphs, so llama.cpp records them.
    barrier = threading.Barrier(2)
    one_at_a_time = threading.Lock()
    outputs: dict[int, list[int]] = {}

    def run(index: int) -> None:
        stream = both[index]
        with one_at_a_time, stream.lend():
            context = open_context(bench)
        barrier.wait()
        for _ in range(5):
            outputs[index] = write(context, bench.tokens(64, seed=index), COUNT)
        barrier.wait()
        with one_at_a_time:
            context.close()

    with streams(bench, [URGENT, BULK]) as both:
        threads = [threading.Thread(target=run, args=(index,)) for index in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    own = open_context(bench)
    for index in range(2):
        prompt = bench.tokens(64, seed=index)
        missed = shortfalls(read(own, prompt, outputs[index]), outputs[index])
        assert missed.max() <= tolerance(bench, prompt, outputs[index])
    own.close()


def test_contexts_come_and_go_on_one_stream(bench: Bench) -> None:
    on_gpu = bench.device is Device.GPU
    prompt = bench.tokens(8, seed=3)
    with streams(bench, [URGENT]) as (stream,):
        free = 0
        for cycle in range(1000 if on_gpu else 20):
            with stream.lend():
                context = open_context(bench)
            if cycle % 100 == 0:
                write(context, prompt, 4)
            if on_gpu:
                assert stream.priority_enforced, stream.kind
            context.close()
            if on_gpu and cycle == 10:
                free = free_memory(0)
        if on_gpu:
            assert free - free_memory(0) < 64 << 20, "contexts leave memory behind"


def test_each_arrangement_is_measured(
    bench: Bench, model: Path, record_property: Callable[[str, object], None]
) -> None:
    on_gpu = bench.device is Device.GPU
    steps, prompt = (500, 8000) if on_gpu else (20, 64)
    results = {one.arrangement: one for one in measure_priorities(model, on_gpu=on_gpu, steps=steps, prompt=prompt)}
    for name, result in results.items():
        record_property(name, f"p99 {result.p99 * 1e3:.2f} ms, {result.prompt_tokens_per_second:.0f} prompt tokens/s")
        assert 0 < result.median <= result.p99 <= result.slowest
        assert (result.steps, result.problem) == (steps, "")
    assert results[Arrangement.ALONE.value].prompt_tokens_per_second == 0
    assert results[Arrangement.OWN_STREAMS.value].prompt_tokens_per_second > 0
    enforced = {name for name, result in results.items() if result.enforced}
    pools = (Arrangement.EQUAL, Arrangement.PRIORITIES, Arrangement.PARTITIONS)
    assert enforced == ({arrangement.value for arrangement in pools} if on_gpu else set())


@pytest.mark.gpu
def test_the_gpu_gives_the_priorities_that_it_has() -> None:
    gpu_or_skip()
    with CudaStreamPool(
        [StreamClass(name=f"level {level}", priority=level) for level in range(1, 6)], load_shim()
    ) as pool:
        available = describe(0).priorities
        held = [pool.acquire(stream.name) for stream in pool.statistics().streams]
        priorities = [call("cuStreamGetPriority", one.handle) for one in held]
        assert priorities == [one.priority for one in held] == sorted(priorities)
        assert (priorities[0], priorities[-1]) == (available.greatest, available.least)
        assert available.greatest < available.least, "this GPU has one priority only"


@pytest.mark.gpu
def test_the_gpu_gives_the_parts_that_were_asked_for() -> None:
    gpu_or_skip()
    most = describe(0).multiprocessors
    sizes = [most // 4, most // 4]
    classes = [StreamClass(name=f"part {index}", multiprocessors=size) for index, size in enumerate(sizes)]
    with CudaStreamPool(classes, load_shim()) as pool:
        granted = [stream.multiprocessors or 0 for stream in pool.statistics().streams]
    assert all(size <= got <= size + 8 for size, got in zip(sizes, granted, strict=True))
    assert sum(granted) <= most


def test_a_stream_without_a_gpu_is_none_of_the_pools(model: Path) -> None:
    with opened(model, on_gpu=False) as bench, streams(bench, [URGENT]) as (stream,):
        assert not isinstance(stream, LentStream)
        assert not stream.priority_enforced

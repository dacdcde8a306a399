"""Lending, proven with a small library that makes streams as ggml does, over a small runtime and the fake driver."""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path

import pytest

from llamalane.errors import PoolError, StreamInUseError
from llamalane.streams import Device, OffloadStream, StreamOptions, create_stream
from llamalane.streams.cuda import CudaStreamPool, HeldStream, ShimState, StreamClass, load_shim, shim
from tests.streams.cuda.machine import FakeMachine, MiniLlama

URGENT = StreamClass(name="urgent", priority=1)
BATCH = StreamClass(name="batch", count=2, priority=5)


class Rig:
    """A pool of three streams, with llama.cpp loaded after the shim, as it should be."""

    def __init__(self, *, static: bool = False) -> None:
        self.machine = FakeMachine()
        self.pool = CudaStreamPool([URGENT, BATCH], self.machine.shim())
        self.llama = self.machine.llama(static=static)


def lent_context(llama: MiniLlama, held: HeldStream, device: int = 0, devices: int = 1) -> int:
    with held.lend():
        return llama.context(device, devices)


def a_context_computes_on_the_stream_that_its_thread_lends() -> None:
    rig = Rig()
    held = rig.pool.acquire("urgent")
    context = lent_context(rig.llama, held)
    assert rig.llama.stream(context) == held.handle
    assert (held.lent, held.problem, held.priority_enforced) == (True, "", True)
    assert rig.machine.priority(rig.llama.stream(context)) == -5
    other = rig.llama.context()
    assert rig.llama.own_streams == 1, "who is lent nothing gets a stream of the runtime"
    rig.llama.free(other)
    assert rig.llama.own_streams == 0
    rig.llama.free(context)
    assert not held.lent
    assert rig.machine.alive("stream") == 3, "freeing the context did not destroy the stream"
    held.release()
    rig.pool.close()


def a_stream_that_a_context_holds_is_not_taken_away() -> None:
    rig = Rig()
    held = rig.pool.acquire("urgent")
    context = lent_context(rig.llama, held)
    with pytest.raises(StreamInUseError, match="a llama context holds stream 'urgent'"):
        held.release()
    with pytest.raises(StreamInUseError), held.lend():
        raise AssertionError("it cannot be lent twice")
    with pytest.raises(StreamInUseError, match="llama contexts hold 1 streams"):
        rig.pool.close()
    assert not held.released
    assert rig.machine.alive("stream") == 3
    rig.llama.free(context)
    held.release()
    rig.pool.close()
    assert rig.machine.alive("stream") == 0


def a_context_that_is_made_anew_takes_the_stream_again() -> None:
    rig = Rig()
    held = rig.pool.acquire("urgent")
    for _ in range(100):
        context = lent_context(rig.llama, held)
        assert rig.llama.stream(context) == held.handle
        rig.llama.free(context)
    assert rig.llama.own_streams == 0


def a_stream_is_still_lent_after_the_upload_of_weights() -> None:
    rig = Rig()
    held = rig.pool.acquire("urgent")
    with held.lend():
        context = rig.llama.context_after_upload()
    assert rig.llama.stream(context) == held.handle
    assert held.priority_enforced
    rig.llama.free(context)


def a_context_that_fails_leaves_the_stream_free() -> None:
    rig = Rig()
    held = rig.pool.acquire("urgent")
    with pytest.raises(PoolError, match="no memory"), held.lend():
        raise PoolError("no memory")
    assert not held.lent
    assert not held.priority_enforced
    context = rig.llama.context()
    assert rig.llama.own_streams == 1, "nothing is armed any more"
    rig.llama.free(context)
    rig.llama.free(lent_context(rig.llama, held))
    held.release()


def threads_lend_at_once_each_its_own() -> None:
    rig = Rig()
    barrier = threading.Barrier(3)
    right: list[bool] = []

    def run(name: str) -> None:
        held = rig.pool.acquire(name)
        for _ in range(200):
            barrier.wait()
            context = lent_context(rig.llama, held)
            right.append(rig.llama.stream(context) == held.handle and held.priority_enforced)
            rig.llama.free(context)
        held.release()

    threads = [threading.Thread(target=run, args=(name,)) for name in ("urgent", "batch", "batch")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == [True] * 600
    assert rig.llama.own_streams == 0


def a_context_on_another_device_does_not_take_it() -> None:
    rig = Rig()
    held = rig.pool.acquire("urgent")
    context = lent_context(rig.llama, held, device=1)
    assert "did not take it" in held.problem
    assert (held.lent, held.priority_enforced) == (False, False)
    rig.llama.free(context)


def a_context_on_two_devices_is_told() -> None:
    rig = Rig()
    held = rig.pool.acquire("urgent")
    context = lent_context(rig.llama, held, devices=2)
    assert held.lent
    assert "made 1 of its own beside it; the model may be spread over several GPUs" in held.problem
    assert not held.priority_enforced
    rig.llama.free(context)
    held.release()


def streams_that_llama_cpp_adds_later_are_told() -> None:
    rig = Rig()
    held = rig.pool.acquire("urgent")
    context = lent_context(rig.llama, held)
    assert "GGML_CUDA_GRAPH_OPT" in held.problem
    assert not held.priority_enforced
    rig.llama.free(context)


def a_static_runtime_is_told() -> None:
    rig = Rig(static=True)
    held = rig.pool.acquire("urgent")
    stream = create_stream(
        StreamOptions(name="lane", device=Device.GPU, places=1, cores=(), threads=1, cuda=held),
    )
    with stream.lend():
        context = rig.llama.context()
    assert rig.llama.own_streams == 1
    assert "static CUDA runtime" in held.problem
    assert not stream.priority_enforced
    assert stream.kind == f"{OffloadStream.kind}: {held.problem}"
    rig.llama.free(context)
    held.release()


def a_lane_says_what_it_computes_on() -> None:
    machine = FakeMachine()
    pool = CudaStreamPool([StreamClass(name="part", priority=1, multiprocessors=64)], machine.shim())
    llama = machine.llama()
    held = pool.acquire("part")
    stream = create_stream(StreamOptions(name="lane", device=Device.GPU, places=1, cores=(), threads=1, cuda=held))
    assert not stream.priority_enforced, "before a context has taken it"
    with stream.lend():
        context = llama.context()
    assert stream.kind == "CUDA stream on GPU 0, priority -5, 64 multiprocessors"
    assert stream.priority_enforced
    assert "64 multiprocessors" in repr(stream)
    llama.free(context)
    assert not stream.priority_enforced


def a_shim_that_comes_too_late_says_so() -> None:
    machine = FakeMachine()
    llama = machine.llama()
    loaded = load_shim()
    assert loaded.state is ShimState.TOO_LATE
    held = CudaStreamPool([URGENT], loaded).acquire("urgent")
    context = lent_context(llama, held)
    assert llama.own_streams == 1
    assert "was loaded after llama.cpp" in held.problem
    assert not held.priority_enforced
    llama.free(context)
    held.release()


def a_shim_that_was_preloaded_is_early_enough() -> None:
    machine = FakeMachine()
    llama = machine.llama()
    loaded = load_shim()
    assert loaded.state is ShimState.READY
    held = CudaStreamPool([URGENT], loaded).acquire("urgent")
    context = lent_context(llama, held)
    assert llama.stream(context) == held.handle
    llama.free(context)


def without_a_shim_nothing_is_lent() -> None:
    machine = FakeMachine(with_shim=False)
    assert load_shim().state is ShimState.NOT_BUILT
    llama = machine.llama()
    pool = CudaStreamPool([URGENT], load_shim())
    held = pool.acquire("urgent")
    context = lent_context(llama, held)
    assert "was not built" in held.problem
    assert (held.lent, held.priority_enforced) == (False, False)
    llama.free(context)
    held.release()
    pool.close()


def a_damaged_shim_is_none() -> None:
    machine = FakeMachine()
    damaged = Path(machine.folder) / "_lend.damaged.so"
    damaged.write_bytes(b"nothing")
    shim.find_shim = lambda: damaged
    assert load_shim().state is ShimState.NOT_BUILT


def a_runtime_that_came_first_is_no_obstacle() -> None:
    machine = FakeMachine()
    ctypes.CDLL(str(machine.folder / "libcudart.so.13"))
    held = CudaStreamPool([URGENT], machine.shim()).acquire("urgent")
    llama = machine.llama()
    context = lent_context(llama, held)
    assert llama.stream(context) == held.handle
    llama.free(context)


def a_runtime_that_came_first_for_everyone_is_told() -> None:
    machine = FakeMachine()
    ctypes.CDLL(str(machine.folder / "libcudart.so.13"), mode=ctypes.RTLD_GLOBAL)
    held = CudaStreamPool([URGENT], machine.shim()).acquire("urgent")
    llama = machine.llama()
    context = lent_context(llama, held)
    assert llama.own_streams == 1
    assert "did not take it" in held.problem
    llama.free(context)

"""What the pool of streams does on the fake driver, through the real cuda-bindings and cuda-core."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

import pytest

from llamalane.errors import (
    CudaError,
    DeviceUnavailableError,
    LeaseReleasedError,
    PoolClosedError,
    PoolError,
    PoolExhaustedError,
    PoolForkedError,
    StreamLimitError,
    UnknownStreamError,
)
from llamalane.streams.cuda import CudaStreamPool, StreamClass, describe, free_memory
from llamalane.streams.cuda.driver import call
from tests.streams.cuda.machine import FakeMachine

CLASSES = [StreamClass(name="urgent", priority=1), StreamClass(name="batch", count=3, priority=5)]


def streams_are_created_at_once_and_held_one_by_one() -> None:
    machine = FakeMachine()
    with CudaStreamPool(CLASSES, machine.shim()) as pool:
        assert machine.alive("stream") == 4
        held = [pool.acquire("batch") for _ in range(3)]
        assert len({stream.handle for stream in held}) == 3
        assert not any(machine.is_blocking(stream.handle) for stream in held)
        with pytest.raises(PoolExhaustedError, match="no stream 'batch' is free: all 3 are held"):
            pool.acquire("batch")
        assert pool.statistics().free == 1
        first = held[0].handle
        held[0].release()
        with pool.acquire("batch") as again:
            assert again.handle == first
        assert machine.alive("stream") == 4, "a pool creates none later"
        with pytest.raises(UnknownStreamError, match="no streams called 'chat'; it has urgent, batch"):
            pool.acquire("chat")
    assert machine.alive("stream") == 0


def priorities_are_spread_over_the_range_and_read_back() -> None:
    machine = FakeMachine()
    classes = [StreamClass(name=f"level {level}", priority=level) for level in range(1, 6)]
    with CudaStreamPool([*classes, StreamClass(name="unnamed")], machine.shim()) as pool:
        priorities = [stream.priority for stream in pool.statistics().streams]
        assert priorities == [-5, -4, -2, -1, 0, 0]
        held = [pool.acquire(stream.name) for stream in pool.statistics().streams]
        assert [machine.priority(stream.handle) for stream in held] == priorities
        assert not any(stream.priority_enforced for stream in held), "no context computes on them"


def a_device_without_priorities_enforces_none() -> None:
    machine = FakeMachine()
    shim = machine.shim()
    llama = machine.llama()
    with CudaStreamPool(CLASSES, shim) as pool:
        held = pool.acquire("urgent")
        with held.lend():
            context = llama.context()
        assert held.lent
        assert (held.priority, held.problem, held.priority_enforced) == (0, "", False)
        llama.free(context)


def a_stream_is_given_back_once() -> None:
    machine = FakeMachine()
    pool = CudaStreamPool(CLASSES, machine.shim())
    first = pool.acquire("urgent")
    first.release()
    second = pool.acquire("urgent")
    for use in (first.release, lambda: first.handle, lambda: first.lend().__enter__()):
        with pytest.raises(LeaseReleasedError, match="stream 'urgent' was released before"):
            use()
    assert second.handle, "the one that released before did not release it for the next one"
    pool.close()
    pool.close()
    for later in (second.release, lambda: second.handle, lambda: pool.acquire("batch")):
        with pytest.raises(PoolClosedError):
            later()
    assert machine.alive("stream") == 0


def a_pool_is_not_used_across_a_fork() -> None:
    machine = FakeMachine()
    pool = CudaStreamPool(CLASSES, machine.shim())
    held = pool.acquire("urgent")
    child = os.fork()
    if not child:
        refused = 0
        for use in (held.release, pool.close, lambda: pool.acquire("batch"), lambda: held.lend().__enter__()):
            try:
                use()
            except PoolForkedError as error:
                refused += error.owner == os.getppid()
        os._exit(refused)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 4
    held.release()
    pool.close()


def a_failure_at_the_last_stream_leaves_nothing() -> None:
    machine = FakeMachine()
    machine.fail("cuStreamCreateWithPriority", 3)
    with pytest.raises(CudaError, match=r"to create stream 'batch'.*OUT_OF_MEMORY"):
        CudaStreamPool(CLASSES, machine.shim())
    assert machine.alive("stream") == 0


def a_failure_in_a_partition_leaves_nothing() -> None:
    machine = FakeMachine()
    machine.fail("cuGreenCtxCreate", 1)
    classes = [StreamClass(name="all"), StreamClass(name="part", count=2, multiprocessors=32)]
    with pytest.raises(CudaError, match="to create a green context"):
        CudaStreamPool(classes, machine.shim())
    assert (machine.alive("stream"), machine.alive("green")) == (0, 0)
    machine.fail("cuGreenCtxCreate", 100)
    machine.fail("cuGreenCtxStreamCreate", 1)
    with pytest.raises(CudaError, match="to create stream 'part'"):
        CudaStreamPool(classes, machine.shim())
    assert (machine.alive("stream"), machine.alive("green")) == (0, 0)


def the_multiprocessors_are_divided_once_and_what_was_granted_is_read_back() -> None:
    machine = FakeMachine()
    classes = [
        StreamClass(name="urgent", priority=1, multiprocessors=60),
        StreamClass(name="batch", count=2, multiprocessors=16),
        StreamClass(name="shared"),
    ]
    pool = CudaStreamPool(classes, machine.shim())
    granted = [(stream.name, stream.multiprocessors, stream.priority) for stream in pool.statistics().streams]
    assert granted == [("urgent", 64, -5), ("batch", 16, 0), ("batch", 16, 0), ("shared", None, 0)]
    assert machine.alive("green") == 3, "each lane has its own part"
    pool.close()
    assert (machine.alive("stream"), machine.alive("green")) == (0, 0)


def _limit(machine: FakeMachine, *classes: StreamClass) -> StreamLimitError:
    with pytest.raises(StreamLimitError) as caught:
        CudaStreamPool(classes, machine.shim())
    assert (machine.alive("stream"), machine.alive("green")) == (0, 0)
    return caught.value


def what_a_device_cannot_give_is_refused_with_what_it_can() -> None:
    machine = FakeMachine()
    too_many = _limit(machine, StreamClass(name="a", multiprocessors=200))
    assert str(too_many) == "streams 'a': multiprocessors must be from 8 to 132, what the device has; got 200"
    parts = [StreamClass(name=name, multiprocessors=64) for name in "abc"]
    assert "'c': multiprocessors must be from 4 to 4, what the others leave of the device's 132" in str(
        _limit(machine, *parts)
    )
    priority = _limit(machine, StreamClass(name="a", priority=6))
    assert (priority.what, priority.value, priority.lowest, priority.highest) == ("priority", 6, 1, 5)
    for classes, message in (
        ([], "at least one"),
        ([StreamClass(name="a"), StreamClass(name="a")], "a name of its own"),
        ([StreamClass(name="a", count=0)], "count must be at least 1; got 0"),
    ):
        with pytest.raises(PoolError, match=message):
            CudaStreamPool(classes, machine.shim())
    with pytest.raises(DeviceUnavailableError, match="'cuda:1' cannot be used: GPUs go from 0 to 0"):
        CudaStreamPool([StreamClass(name="a", device=1)], machine.shim())


def _on_four_devices() -> Sequence[StreamClass]:
    return [StreamClass(name=f"gpu {device}", device=device, priority=1) for device in range(4)]


def four_devices_share_one_pool() -> None:
    machine = FakeMachine()
    shim = machine.shim()
    llama = machine.llama()
    pool = CudaStreamPool(_on_four_devices(), shim)
    lanes: dict[int, int] = {}

    def run(device: int) -> None:
        held = pool.acquire(f"gpu {device}")
        with held.lend():
            context = llama.context(device)
        assert llama.stream(context, device) == held.handle
        assert machine.device(held.handle) == device
        assert held.priority_enforced
        lanes[device] = context

    threads = [threading.Thread(target=run, args=(device,)) for device in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(lanes) == [0, 1, 2, 3]
    assert all(stream.lent and stream.priority_enforced for stream in pool.statistics().streams)
    assert llama.own_streams == 0
    for context in lanes.values():
        llama.free(context)
    pool.close()
    assert machine.alive("stream") == 0


def a_device_that_fails_leaves_the_others_serving() -> None:
    machine = FakeMachine()
    shim = machine.shim()
    llama = machine.llama()
    pool = CudaStreamPool(_on_four_devices(), shim)
    held = [pool.acquire(f"gpu {device}") for device in range(4)]
    machine.driver.fake_fail_device(2)
    with pytest.raises(DeviceUnavailableError, match="'cuda:2' cannot be used"), held[2].lend():
        raise AssertionError("llama.cpp must not get hold of it")
    for device in (0, 1, 3):
        with held[device].lend():
            context = llama.context(device)
        assert held[device].priority_enforced
        llama.free(context)
    held[2].release()
    with pytest.raises(DeviceUnavailableError):
        pool.acquire("gpu 2")
    assert pool.statistics().failed == (2,)
    pool.close()


def this_threads_device_stays_as_it_was() -> None:
    machine = FakeMachine()
    call("cuInit", 0)
    with CudaStreamPool([StreamClass(name="a", device=1, multiprocessors=16)], machine.shim()):
        assert int(call("cuCtxGetCurrent")) == 0
        assert free_memory(1) == (1 << 30) - 2000
        assert int(call("cuCtxGetCurrent")) == 0
    gpu = describe(1)
    assert (gpu.name, gpu.compute_capability, gpu.multiprocessors) == ("fake GPU 1", (9, 0), 132)
    assert (gpu.memory, gpu.free) == (1 << 30, (1 << 30) - 2000)
    assert (gpu.priorities.least, gpu.priorities.greatest) == (0, -5)
    with pytest.raises(DeviceUnavailableError):
        free_memory(2)


def equal_parts_only() -> None:
    machine = FakeMachine()
    equal = StreamClass(name="equal", count=2, multiprocessors=30)
    with CudaStreamPool([equal], machine.shim()) as pool:
        assert [stream.multiprocessors for stream in pool.statistics().streams] == [32, 32]
    with pytest.raises(CudaError, match="to divide 132 multiprocessors into 32, 32, 64"):
        CudaStreamPool([equal, StreamClass(name="other", multiprocessors=64)], machine.shim())
    assert (machine.alive("stream"), machine.alive("green")) == (0, 0)

"""The pool of CUDA streams: all of them created in one constructor, or none."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from llamalane.errors import (
    CudaError,
    DeviceUnavailableError,
    PoolClosedError,
    PoolError,
    PoolExhaustedError,
    PoolForkedError,
    StreamInUseError,
    StreamLimitError,
    UnknownStreamError,
)
from llamalane.ids import LEAST_URGENT, MOST_URGENT
from llamalane.streams.cuda.driver import PriorityRange, call, current_device, priority_range, translated
from llamalane.streams.cuda.partition import Partition, split
from llamalane.streams.cuda.shim import Shim
from llamalane.streams.cuda.stream import CudaStream, HeldStream

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamClass:
    """Streams that are alike.

    Attributes:
        name: what `CudaStreamPool.acquire` calls them, unique within the pool.
        device: the GPU, counted from 0 as CUDA does.
        count: how many there are.
        priority: from 1, the most urgent, to 5; None takes the device's least urgent, as llama.cpp's own streams have.
        multiprocessors: how many of the GPU's each of the streams has for itself; the driver may round up. None lets
            them use all, also those that are others'.
    """

    name: str
    device: int = 0
    count: int = 1
    priority: int | None = None
    multiprocessors: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaStreamStatistics:
    """One stream at one moment.

    Attributes:
        priority: the device's own number, read back; lower is more urgent.
        multiprocessors: how many the driver granted to it alone; None where it shares all of them.
        held: whether someone has acquired it.
        lent: whether a llama context holds it.
        priority_enforced: whether the context computes on it, and on no other, with the priority that was wanted.
    """

    name: str
    device: int
    priority: int
    multiprocessors: int | None
    held: bool
    lent: bool
    priority_enforced: bool


@dataclass(frozen=True, slots=True)
class CudaPoolStatistics:
    """The pool at one moment; `failed` lists GPUs that no longer work."""

    streams: tuple[CudaStreamStatistics, ...]
    failed: tuple[int, ...]

    @property
    def free(self) -> int:
        """How many streams can be acquired."""
        return sum(not stream.held and stream.device not in self.failed for stream in self.streams)


def device_priority(level: int | None, available: PriorityRange) -> int:
    """Return the device's number for a priority from 1 to 5, spread evenly over what the device has."""
    if level is None:
        return available.least
    share = (LEAST_URGENT - level) / (LEAST_URGENT - MOST_URGENT)
    return available.least + round(share * (available.greatest - available.least))


class CudaStreamPool:
    """CUDA streams, each held by one at a time.

    The constructor creates every stream, or none and raises: `StreamLimitError` for what a device cannot give,
    `DeviceUnavailableError` for a GPU that is not there, `CudaError` for what its driver refuses. On any thread.
    """

    def __init__(self, classes: Sequence[StreamClass], shim: Shim) -> None:
        _check(classes)
        self.shim = shim
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._closed = False
        self._failed: dict[int, str] = {}
        self._streams: dict[str, list[CudaStream]] = {entry.name: [] for entry in classes}
        self._partitions: list[Partition] = []
        try:
            for device in sorted({entry.device for entry in classes}):
                self._create(device, [entry for entry in classes if entry.device == device])
        except BaseException:
            self._destroy()
            raise

    def _create(self, index: int, classes: Sequence[StreamClass]) -> None:
        with current_device(index) as device:
            available = priority_range()
            each = [entry for entry in classes for _ in range(entry.count)]
            wanted = [(entry.name, entry.multiprocessors) for entry in each if entry.multiprocessors is not None]
            partitions = split(device, wanted)
            self._partitions += partitions
            parts = iter(partitions)
            for entry in each:
                partition = None if entry.multiprocessors is None else next(parts)
                self._streams[entry.name].append(_create_stream(device, entry, available, partition))

    def acquire(self, name: str) -> HeldStream:
        """Return a hold on a stream of that class, which is its holder's alone until it is released.

        Raises `UnknownStreamError`, `PoolExhaustedError` when all are held, and `DeviceUnavailableError` when the GPU
        has failed.
        """
        self.check_usable()
        if name not in self._streams:
            raise UnknownStreamError(name, self._streams)
        with self._lock:
            for stream in self._streams[name]:
                if stream.holder is None:
                    self.check_device(stream.device)
                    stream.holder = HeldStream(self, stream)
                    return stream.holder
        raise PoolExhaustedError(f"no stream {name!r} is free: all {len(self._streams[name])} are held")

    def statistics(self) -> CudaPoolStatistics:
        """Return the numbers of this moment; it makes no call of the driver."""
        return CudaPoolStatistics(
            tuple(
                CudaStreamStatistics(
                    name=stream.name,
                    device=stream.device,
                    priority=stream.priority,
                    multiprocessors=stream.partition.granted if stream.partition else None,
                    held=stream.holder is not None,
                    lent=self.shim.is_lent(stream.handle),
                    priority_enforced=stream.holder is not None and stream.holder.priority_enforced,
                )
                for stream in self._all
            ),
            tuple(sorted(self._failed)),
        )

    def close(self) -> None:
        """Destroy the streams, held or not. May be repeated.

        Raises `StreamInUseError`, and destroys none, while a llama context holds one: the context would end the
        process.
        """
        self._check_process()
        if self._closed:
            return
        lent = [stream for stream in self._all if self.shim.is_lent(stream.handle)]
        if lent:
            raise StreamInUseError(f"llama contexts hold {len(lent)} streams: free the contexts first")
        self._closed = True
        self._destroy()

    def check_usable(self) -> None:
        """Raise `PoolClosedError` after closing, `PoolForkedError` in a process that was forked off."""
        self._check_process()
        if self._closed:
            raise PoolClosedError("the pool of CUDA streams is closed")

    def check_device(self, device: int) -> None:
        """Raise `DeviceUnavailableError` if that GPU has failed."""
        if device in self._failed:
            raise DeviceUnavailableError(f"cuda:{device}", self._failed[device])

    def mark_failed(self, device: int, reason: str) -> None:
        """Note that a GPU works no longer; the others do."""
        if device not in self._failed:
            logger.error("GPU %d has failed (%s); streams on other GPUs are not affected", device, reason)
            self._failed[device] = reason

    @property
    def _all(self) -> list[CudaStream]:
        return [stream for streams in self._streams.values() for stream in streams]

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise PoolForkedError(self._process)

    def _destroy(self) -> None:
        """Destroy streams before the partitions that they are in; a GPU that fails in it keeps nobody from it."""
        everything: list[CudaStream | Partition] = [*self._all, *self._partitions]
        for owned in everything:
            try:
                with translated("to destroy what it had made"):
                    owned.destroy()
            except CudaError as error:
                logger.warning("%r: %s", owned, error)
        self._partitions.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(StreamInUseError) if kind is not None else contextlib.nullcontext():
            self.close()

    def __repr__(self) -> str:
        return f"<CudaStreamPool of {', '.join(f'{len(streams)} {name}' for name, streams in self._streams.items())}>"


def _create_stream(
    device: Any, entry: StreamClass, available: PriorityRange, partition: Partition | None
) -> CudaStream:
    from cuda.core import StreamOptions  # noqa: PLC0415

    wanted = device_priority(entry.priority, available)
    maker = device if partition is None else partition.context
    with translated(f"to create stream {entry.name!r}"):
        raw = maker.create_stream(options=StreamOptions(nonblocking=True, priority=wanted))
        # cuda.core only tells what was asked for.
        priority = call("cuStreamGetPriority", raw.handle)
    return CudaStream(
        name=entry.name,
        device=entry.device,
        raw=raw,
        handle=int(raw.handle),
        priority=priority,
        as_wanted=priority == wanted and available.least != available.greatest,
        partition=partition,
    )


def _check(classes: Sequence[StreamClass]) -> None:
    names = [entry.name for entry in classes]
    if not names or len(set(names)) != len(names):
        raise PoolError(f"a pool needs at least one class of streams, each with a name of its own; got {names}")
    for entry in classes:
        if entry.count < 1:
            raise PoolError(f"streams {entry.name!r}: count must be at least 1; got {entry.count}")
        if entry.priority is not None and not MOST_URGENT <= entry.priority <= LEAST_URGENT:
            raise StreamLimitError(entry.name, "priority", entry.priority, MOST_URGENT, LEAST_URGENT)

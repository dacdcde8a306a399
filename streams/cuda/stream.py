"""A CUDA stream that the pool owns, and the hold on it that whoever acquires it gets."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

from llamalane.errors import CudaError, LeaseReleasedError, StreamInUseError
from llamalane.streams.cuda.driver import call, translated
from llamalane.streams.cuda.partition import Partition
from llamalane.streams.cuda.shim import Shim, ShimState, Takings

logger = logging.getLogger(__name__)

_NOT_YET = "no llama context has taken it yet"


@dataclass(slots=True, eq=False, kw_only=True)
class CudaStream:
    """One stream of the pool.

    Attributes:
        name: its class.
        device: the GPU, counted from 0 as CUDA does.
        raw: the `cuda.core.Stream`.
        handle: the `CUstream` as a number.
        priority: the device's own number, read back from the driver; lower is more urgent.
        as_wanted: whether that is the priority that was asked for, on a device that has more than one.
        partition: the multiprocessors that it has for itself; None where it shares all.
        holder: who has acquired it.
    """

    name: str
    device: int
    raw: Any
    handle: int
    priority: int
    as_wanted: bool
    partition: Partition | None = None
    holder: HeldStream | None = None

    def destroy(self) -> None:
        """Destroy the stream, which no context may hold."""
        raw, self.raw = self.raw, None  # a closed one would keep its partition alive
        raw.close()

    def __repr__(self) -> str:
        return f"<CudaStream {self.name!r} on GPU {self.device}, priority {self.priority}>"


class Owner(Protocol):
    """What a hold on a stream asks of the pool."""

    shim: Shim

    def check_usable(self) -> None:
        """Raise when the pool is closed, or was made in another process."""

    def check_device(self, device: int) -> None:
        """Raise when a GPU has failed."""

    def mark_failed(self, device: int, reason: str) -> None:
        """Note that a GPU has failed."""


class HeldStream:
    """A stream that `CudaStreamPool.acquire` has given. `release` gives it back, exactly once.

    While a llama context holds the stream, only the thread of that context may call the driver about it: another
    thread's call would break a CUDA graph that llama.cpp is recording. So nothing here does, between the making of the
    context and its end.
    """

    def __init__(self, owner: Owner, stream: CudaStream) -> None:
        self._owner = owner
        self._stream = stream
        self._problem = _NOT_YET
        self.released = False

    @property
    def name(self) -> str:
        """The stream's class."""
        return self._stream.name

    @property
    def device(self) -> int:
        """The GPU, counted from 0 as CUDA does."""
        return self._stream.device

    @property
    def priority(self) -> int:
        """The device's own number, read back from the driver; lower is more urgent."""
        return self._stream.priority

    @property
    def multiprocessors(self) -> int | None:
        """How many multiprocessors the driver granted to this stream alone; None where it shares all."""
        return self._stream.partition.granted if self._stream.partition else None

    @property
    def handle(self) -> int:
        """The `CUstream` as a number; raises after `release`, and after closing the pool."""
        self._check()
        return self._stream.handle

    @property
    def lent(self) -> bool:
        """Whether a llama context holds the stream."""
        return not self.released and self._owner.shim.is_lent(self._stream.handle)

    @property
    def problem(self) -> str:
        """Why the last context does not compute on this stream, or not only; empty when there is nothing to say."""
        return self._problem

    @property
    def priority_enforced(self) -> bool:
        """Whether a context computes on this stream, and on no other, with the priority that was asked for."""
        return self._stream.as_wanted and not self._problem and self.lent

    @contextlib.contextmanager
    def lend(self) -> Iterator[None]:
        """Lend the stream to the llama context that the calling thread makes inside, until that context is freed.

        What the context has taken is looked up in the end, never assumed; `problem` then says what is wrong. A GPU
        that has failed raises `DeviceUnavailableError` before llama.cpp, which would end the process, can touch it.
        Raises `StreamInUseError` while another context holds the stream.
        """
        self._check()
        self._check_free()
        self._check_device()
        self._problem = _NOT_YET
        shim = self._owner.shim
        if shim.state is not ShimState.READY:
            yield
            self._note(f"the shim that lends streams was {shim.state.value}")
            return
        shim.arm(self._stream.handle, self.device)
        try:
            yield
        finally:
            takings = shim.disarm()
        self._note(self._judge(takings))

    def release(self) -> None:
        """Give the stream back, after what was queued on it is done.

        Raises `LeaseReleasedError` the second time, and `StreamInUseError` while a llama context holds it.
        """
        self._check()
        self._check_free()
        try:
            with translated("to wait for a stream"):
                self._stream.raw.sync()
        except CudaError as error:
            self._owner.mark_failed(self.device, error.reason)
        self.released = True
        self._stream.holder = None

    def _check(self) -> None:
        self._owner.check_usable()
        if self.released:
            raise LeaseReleasedError(f"stream {self.name!r} was released before")

    def _check_free(self) -> None:
        if self.lent:
            raise StreamInUseError(f"a llama context holds stream {self.name!r}: free the context first")

    def _check_device(self) -> None:
        self._owner.check_device(self.device)
        try:
            call("cuStreamSynchronize", self._stream.raw.handle)
        except CudaError as error:
            self._owner.mark_failed(self.device, error.reason)
            self._owner.check_device(self.device)

    def _judge(self, takings: Takings) -> str:
        if not self.lent:
            return "llama.cpp did not take it; it may be linked with the static CUDA runtime"
        if takings.others:
            return f"llama.cpp made {takings.others} of its own beside it; the model may be spread over several GPUs"
        if os.environ.get("GGML_CUDA_GRAPH_OPT") == "1":
            return "GGML_CUDA_GRAPH_OPT=1 lets llama.cpp make more of its own"
        return ""

    def _note(self, problem: str) -> None:
        self._problem = problem
        if problem:
            logger.warning("stream %s on GPU %d: %s", self.name, self.device, problem)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.released:
            self.release()

    def __repr__(self) -> str:
        return f"<HeldStream of {self._stream!r}>"

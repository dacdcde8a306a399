"""Streams: what a lane's work runs on, created before any request comes."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from llamalane.streams.device import Device

if TYPE_CHECKING:
    from llamalane.streams.cuda import HeldStream


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """One entry of the pool.

    Attributes:
        name: the lane's name, unique within the pool.
        device: where it computes.
        places: how many sequences can run on it at once.
        cores: the CPU cores that its thread may use; empty: any.
        threads: how many threads llama.cpp uses.
        adaptive: whether it uses fewer while other processes want its cores; on a CPU only.
        cuda: the CUDA stream that was acquired for it; None leaves llama.cpp its own.
        gpu: what the GPU is, such as `NVIDIA H200`; empty where there is none, or llama.cpp spreads the model.
        speed: how quick it is thought to be beside other lanes, until that is measured.
        model: the name of the model that embeds there; empty for the one that generates.
    """

    name: str
    device: Device
    places: int
    cores: tuple[int, ...]
    threads: int
    cuda: HeldStream | None = None
    gpu: str = ""
    speed: float = 1.0
    model: str = ""
    adaptive: bool = False


class Stream(Protocol):
    """What a lane lends to its llama context for the life of that context."""

    @property
    def options(self) -> StreamOptions:
        """What the stream was created from."""

    @property
    def kind(self) -> str:
        """What it really is, for statistics and logs."""

    @property
    def priority_enforced(self) -> bool:
        """Whether the device itself runs more urgent streams first."""

    def enter(self) -> None:
        """Bind the calling thread to the stream. The lane's thread calls it once, before it creates its context."""

    def lend(self) -> contextlib.AbstractContextManager[None]:
        """Let the context that the calling thread creates inside compute on the stream, until that context is freed."""


class CpuStream:
    """A set of CPU cores and a number of threads on them. It is no CUDA stream and has no priority of its own."""

    kind = "cpu"
    priority_enforced = False

    def __init__(self, options: StreamOptions) -> None:
        self.options = options

    def enter(self) -> None:
        """Keep the calling thread, and the OpenMP team that it will start, on the stream's cores."""
        if self.options.cores and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, self.options.cores)

    def lend(self) -> contextlib.AbstractContextManager[None]:
        """Do nothing: a context's threads take the cores of the thread that creates it."""
        return contextlib.nullcontext()

    def __repr__(self) -> str:
        return f"<CpuStream {self.options.name!r}: {self.options.threads} threads on cores {self.options.cores}>"


class OffloadStream:
    """The stream that llama.cpp makes for itself on a GPU; nothing can be said about its priority."""

    kind = "llama.cpp's own GPU stream"
    priority_enforced = False

    def __init__(self, options: StreamOptions) -> None:
        self.options = options

    def enter(self) -> None:
        """Do nothing: llama.cpp creates the stream with its context."""

    def lend(self) -> contextlib.AbstractContextManager[None]:
        """Do nothing: there is nothing to lend."""
        return contextlib.nullcontext()

    def __repr__(self) -> str:
        return f"<OffloadStream {self.options.name!r}>"


class LentStream:
    """A CUDA stream of the pool, which the lane's context computes on, if llama.cpp has taken it: `kind` tells."""

    def __init__(self, options: StreamOptions, held: HeldStream) -> None:
        self.options = options
        self.held = held

    @property
    def kind(self) -> str:
        """What the context computes on, as it was looked up when the context took it."""
        if self.held.problem:
            return f"{OffloadStream.kind}: {self.held.problem}"
        part = f", {self.held.multiprocessors} multiprocessors" if self.held.multiprocessors else ""
        return f"CUDA stream on GPU {self.held.device}, priority {self.held.priority}{part}"

    @property
    def priority_enforced(self) -> bool:
        """Whether the context computes on this stream and no other, with the priority that was asked for."""
        return self.held.priority_enforced

    def enter(self) -> None:
        """Do nothing: llama.cpp chooses the GPU itself, and no other call is made on this thread."""

    def lend(self) -> contextlib.AbstractContextManager[None]:
        """Lend the stream to the context that the calling thread creates inside."""
        return self.held.lend()

    def __repr__(self) -> str:
        return f"<LentStream {self.options.name!r}: {self.kind}>"


def create_stream(options: StreamOptions) -> Stream:
    """Create the kind of stream that `options` ask for."""
    if options.device is Device.CPU:
        return CpuStream(options)
    return OffloadStream(options) if options.cuda is None else LentStream(options, options.cuda)

"""Streams: what a lane's work runs on, created before any request comes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Protocol

from llamalane.streams.device import Device


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """One entry of the pool.

    Attributes:
        name: the lane's name, unique within the pool.
        device: where it computes.
        places: how many sequences can run on it at once.
        cores: the CPU cores that its thread may use; empty: any.
        threads: how many threads llama.cpp uses.
    """

    name: str
    device: Device
    places: int
    cores: tuple[int, ...]
    threads: int


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

    def __repr__(self) -> str:
        return f"<OffloadStream {self.options.name!r}>"


def create_stream(options: StreamOptions) -> Stream:
    """Create the kind of stream that `options.device` has."""
    return CpuStream(options) if options.device is Device.CPU else OffloadStream(options)

"""What can be measured, and how it is set up. Imports nothing, because the command line reads it for its options."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path


class Peer(enum.Enum):
    """A server that can be started here."""

    LLAMALANE = "llamalane"
    XLLAMACPP = "xllamacpp"
    """llama-server as a wheel from PyPI."""
    LLAMA_SERVER = "llama-server"
    """llama.cpp's own server, wherever it was built."""
    ONE_LOCK = "llama_cpp.server"
    """llama-cpp-python's own server: one sequence, behind one lock."""
    THREAD_POOL = "thread-pool"
    """A FastAPI app that hands each request to a thread, with one sequence behind a lock."""
    EXAMPLES_SERVER = "examples-server"
    """The batching server among llama-cpp-python's examples, which no wheel has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What all servers have in common.

    Attributes:
        model: the GGUF file.
        places: how many sequences run at once, where a server has more than one.
        threads: llama.cpp's threads.
        cells: KV cells for all sequences together, a multiple of 256 × `places`.
        queue: how many requests may wait at llamalane; None for its default. The others have no bound.
    """

    model: Path
    places: int
    threads: int
    cells: int
    queue: int | None = None


class Traffic(enum.Enum):
    """What the clients ask for."""

    FRESH = "fresh"
    SHORT_CHAT = "short-chat"
    LONG_PROMPT = "long-prompt"
    SHARED_PREFIX = "shared-prefix"
    REPEATED = "repeated"
    MIXED = "mixed"


class Arrivals(enum.Enum):
    """When they ask."""

    CLOSED = "closed"
    """Each client sends its next request when the one before has ended."""
    POISSON = "poisson"
    """Requests arrive at random, at a given rate."""

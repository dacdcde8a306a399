"""Loads the shim (lend.c), through which llama.cpp takes a stream that it is lent instead of making one."""

from __future__ import annotations

import ctypes
import enum
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent


class ShimState(enum.Enum):
    """Whether streams can be lent."""

    READY = "loaded before llama.cpp"
    NOT_BUILT = "not built"
    TOO_LATE = "loaded after llama.cpp"


@dataclass(frozen=True, slots=True)
class Takings:
    """What the contexts that a thread made while it was armed have taken.

    Attributes:
        given: how often the armed stream was given out.
        others: how many streams the CUDA runtime made, for want of the armed one or on another device.
    """

    given: int
    others: int


class Shim:
    """The loaded shim; whatever its state, it can be asked what is lent.

    Only in the state READY can it be armed.
    """

    def __init__(self, state: ShimState, library: Any = None) -> None:
        self.state = state
        self._library = library

    def arm(self, handle: int, device: int) -> None:
        """Lend the stream at `handle` to contexts that the calling thread makes on `device`, until it disarms."""
        self._library.llamalane_arm(ctypes.c_void_p(handle), ctypes.c_int(device))

    def disarm(self) -> Takings:
        """Lend no more from the calling thread; returns what was taken."""
        given, others = ctypes.c_uint(), ctypes.c_uint()
        self._library.llamalane_disarm(ctypes.byref(given), ctypes.byref(others))
        return Takings(given.value, others.value)

    def is_lent(self, handle: int) -> bool:
        """Whether a context holds the stream at `handle`."""
        return self._library is not None and bool(self._library.llamalane_is_lent(ctypes.c_void_p(handle)))

    def __repr__(self) -> str:
        return f"<Shim {self.state.value}>"


@functools.cache
def load_shim() -> Shim:
    """Return the shim, loading it at the first call, which must come before llama.cpp is loaded. Never raises."""
    path = find_shim()
    if path is None:
        return Shim(ShimState.NOT_BUILT)
    # Preloaded (LD_PRELOAD), it was there before everything else.
    late = is_loaded("libggml-cuda") and not is_loaded(path.name)
    try:
        library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    except OSError:  # built for another machine
        return Shim(ShimState.NOT_BUILT)
    return Shim(ShimState.TOO_LATE if late else ShimState.READY, library)


def find_shim() -> Path | None:
    """Return where the shim is installed, None where it was not built."""
    return next(_FOLDER.glob("_lend.*so"), None)


def is_loaded(library: str) -> bool:
    """Whether this process has loaded a library whose file name begins with `library`."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:  # not Linux
        return False
    return any(line.rpartition("/")[2].startswith(library) for line in maps.splitlines() if "/" in line)

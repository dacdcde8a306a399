"""Tells how long a thread waits for the interpreter after a step: a call returns to Python only when nobody else runs.

llama.cpp's own counters stop at the next call, which comes after that wait. So a few lines of C look at the clock as
soon as the step is done. They are compiled when they are wanted; without a compiler, or elsewhere than on Linux, whose
clocks Python and C have in common, the wait is not known.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from llamalane.streams.llama import library

_SOURCE = """
#include <stdint.h>
#include <time.h>

struct llama_batch {
    int32_t n_tokens;
    int32_t *token;
    float *embd;
    int32_t *pos;
    int32_t *n_seq_id;
    int32_t **seq_id;
    int8_t *logits;
};

int32_t timed_decode(int32_t (*decode)(void *, struct llama_batch), void (*synchronize)(void *), void *context,
                     struct llama_batch batch, int64_t *end) {
    struct timespec now;
    int32_t code = decode(context, batch);
    synchronize(context);
    clock_gettime(CLOCK_MONOTONIC, &now);
    *end = now.tv_sec * 1000000000LL + now.tv_nsec;
    return code;
}
"""


class DecodeWatch:
    """Adds up, while it is `on`, how long a lane's thread has waited for the interpreter after its steps."""

    def __init__(self) -> None:
        self.on = False
        self._function = _compile()
        self._waited = 0

    @property
    def waited(self) -> float | None:
        """Seconds so far; None where it is not known."""
        return None if self._function is None else self._waited / 1e9

    def around(self, api: Any) -> Any:
        """Return the functions of llama.h, with its `llama_decode` watched."""
        return api if self._function is None else _WatchedApi(api, self)

    def decode(self, api: Any, pointer: Any, batch: Any) -> int:
        """Compute a step, and wait for its results."""
        assert self._function is not None
        end = ctypes.c_int64()
        code = self._function(_address(api, "llama_decode"), _address(api, "llama_synchronize"), pointer, batch, end)
        self._waited += time.monotonic_ns() - end.value
        return int(code)


class _WatchedApi:
    def __init__(self, api: Any, watch: DecodeWatch) -> None:
        self._api = api
        self._watch = watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._api, name)

    def llama_decode(self, pointer: Any, batch: Any) -> int:
        return (
            self._watch.decode(self._api, pointer, batch) if self._watch.on else self._api.llama_decode(pointer, batch)
        )


def _address(api: Any, name: str) -> Any:
    return ctypes.cast(getattr(api, name), ctypes.c_void_p)


def _compile() -> Any:
    """Return the function `timed_decode`, None where it cannot be had."""
    if sys.platform != "linux":
        return None
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "timed.c"), Path(folder, "timed.so")
        source.write_text(_SOURCE)
        command = ["cc", "-O2", "-shared", "-fPIC", "-o", str(target), str(source)]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            return None
        function = ctypes.CDLL(str(target)).timed_decode
    pointer = ctypes.c_void_p
    function.argtypes = [pointer, pointer, pointer, library().api.llama_batch, ctypes.POINTER(ctypes.c_int64)]
    function.restype = ctypes.c_int32
    return function

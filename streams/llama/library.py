"""Loads llama.cpp: its low-level bindings, with a bounded OpenMP spin and its log sent to `logging`."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import math
import os
import threading
from collections.abc import Iterator, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

logger = logging.getLogger("llamalane.llama")

# llama.cpp's INFO is a page for each model and context, so it counts as detail here (ggml.h: ggml_log_level).
_LEVELS = {1: logging.DEBUG, 2: logging.DEBUG, 3: logging.WARNING, 4: logging.ERROR}
_CONTINUES_LINE = 5
# In a unified cache the context is the whole region; that no sequence outgrows the model is checked elsewhere.
_MISLEADING = ("possible training context overflow",)

_QUICK = ("llama_get_logits", "llama_memory_seq_pos_max", "llama_memory_seq_pos_min", "llama_memory_seq_rm")
"""Functions that never wait and take some microseconds, once a step is computed."""

SPIN_COUNT = "1000"
"""How often an OpenMP thread looks for work before it sleeps: long enough for the next operation of a step, on a quiet
machine. With 300,000, libgomp's default, llama.cpp's threads take turns burning the cores as soon as another process is
busy, and a step takes several times longer; with 10,000 twice as long as with this. With 0 it does on a quiet one."""


class _Log:
    """Receives llama.cpp's log, which comes in pieces, from any thread."""

    def __init__(self) -> None:
        self._local = threading.local()

    def receive(self, level: int, text: bytes, _data: object) -> None:
        local = self._local.__dict__
        if level != _CONTINUES_LINE:
            local["level"] = _LEVELS.get(level, logging.DEBUG)
        line = local.get("line", "") + text.decode(errors="replace")
        *whole, local["line"] = line.split("\n")
        for message in whole:
            self._emit(local.get("level", logging.DEBUG), message, local)

    @staticmethod
    def _emit(level: int, message: str, local: dict[str, Any]) -> None:
        if level >= local.get("collected", math.inf):
            local["messages"].append(message)
        elif message.strip():
            misleading = any(text in message for text in _MISLEADING)
            logger.log(logging.DEBUG if misleading else level, "%s", message)

    @contextlib.contextmanager
    def collect(self, level: int) -> Iterator[list[str]]:
        """Gather what this thread is told at `level` and above into a list instead of logging it."""
        messages: list[str] = []
        local = self._local.__dict__
        before: dict[str, Any] = {name: local[name] for name in ("collected", "messages") if name in local}
        local["collected"], local["messages"] = level, messages
        try:
            yield messages
        finally:
            del local["collected"], local["messages"]
            local.update(before)


class Library:
    """llama.cpp, loaded once in a process; `api` holds the functions of llama.h.

    Those in `quick` let no other Python code run meanwhile. Others do, and then have to wait until the interpreter is
    free again: a thousand times as long as these few take, when an event loop is busy.
    """

    def __init__(self) -> None:
        with _bounded_spin():
            import llama_cpp  # noqa: PLC0415  (must come after the environment is set)
        self.api: Any = llama_cpp.llama_cpp
        self.quick: Any = _keeping_interpreter(self.api, _QUICK)
        self.version: str = llama_cpp.__version__
        self._log = _Log()
        # llama.cpp keeps the pointer for the life of the process, so the callback must live as long.
        self._callback = self.api.llama_log_callback(self._log.receive)
        self.api.llama_log_set(self._callback, ctypes.c_void_p(0))
        self.api.llama_backend_init()

    def collect_errors(self) -> contextlib.AbstractContextManager[list[str]]:
        """Gather what llama.cpp logs as errors on this thread, to be told in an exception instead."""
        return self._log.collect(logging.ERROR)

    def collect_details(self) -> contextlib.AbstractContextManager[list[str]]:
        """Gather all that llama.cpp says to this thread, in a list."""
        return self._log.collect(logging.DEBUG)

    def collect_warnings(self) -> contextlib.AbstractContextManager[list[str]]:
        """Gather what llama.cpp logs as warnings and errors on this thread."""
        return self._log.collect(logging.WARNING)

    @staticmethod
    def tell(messages: list[str]) -> None:
        """Log what was collected."""
        for message in messages:
            logger.warning("%s", message)

    @property
    def supports_gpu_offload(self) -> bool:
        """Whether this build of llama.cpp can put layers on a GPU, and there is one."""
        return bool(self.api.llama_supports_gpu_offload())

    @property
    def chat_format(self) -> ModuleType:
        """llama-cpp-python's chat formatters."""
        from llama_cpp import llama_chat_format  # noqa: PLC0415

        return llama_chat_format  # type: ignore[no-any-return]


def _keeping_interpreter(api: Any, names: Sequence[str]) -> Any:
    """Return those functions of llama.h as they are called without letting go of the interpreter."""
    loaded = ctypes.PyDLL(None, handle=api._lib._handle)
    functions = {name: getattr(loaded, name) for name in names}
    for name, function in functions.items():
        function.argtypes, function.restype = getattr(api, name).argtypes, getattr(api, name).restype
    return SimpleNamespace(**functions)


@functools.cache
def library() -> Library:
    """Return llama.cpp, loading it at the first call."""
    return Library()


@contextlib.contextmanager
def _bounded_spin() -> Iterator[None]:
    """Let libgomp, which reads its environment when it is loaded, find a bounded spin count.

    Whoever set one of libgomp's own variables has decided otherwise. Nothing stays in the environment.
    """
    decided = "GOMP_SPINCOUNT" in os.environ or "OMP_WAIT_POLICY" in os.environ
    if not decided:
        os.environ["GOMP_SPINCOUNT"] = SPIN_COUNT
    try:
        yield
    finally:
        if not decided:
            del os.environ["GOMP_SPINCOUNT"]

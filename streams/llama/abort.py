"""The flag by which a computation on the CPU is broken off."""

from __future__ import annotations

import ctypes
from typing import Any

from llamalane.streams.llama.library import library

ABANDONED = 2
"""What llama.cpp's functions return after the flag was up."""


class AbortFlag:
    """A flag that the context made with `params` looks at; it has to live as long as the context.

    llama.cpp asks before each node of the graph whether to go on. A function of libc answers, so that nobody waits for
    the interpreter: the length of a text, 0 until its first byte is written.
    """

    def __init__(self, params: Any) -> None:
        self._text = ctypes.create_string_buffer(2)
        self._strlen = ctypes.cast(ctypes.CDLL(None).strlen, library().api.ggml_abort_callback)
        params.abort_callback = self._strlen
        params.abort_callback_data = ctypes.cast(self._text, ctypes.c_void_p)

    def set(self, up: bool) -> None:
        """Raise or lower it; on any thread."""
        self._text[0] = b"\1" if up else b"\0"

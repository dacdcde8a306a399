"""Which tensors a GGUF file holds."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

from llamalane.errors import ModelLoadError
from llamalane.streams.llama.library import library


class _Parameters(ctypes.Structure):
    """How a file is opened (gguf.h: gguf_init_params)."""

    _fields_ = (("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p))


def has_tensor(path: Path, name: str) -> bool:
    """Return whether a file holds a tensor of that name; of a split model, only its first part is looked at."""
    gguf = _functions()
    file = gguf.gguf_init_from_file(os.fsencode(path), _Parameters(no_alloc=True, ctx=None))
    if not file:
        raise ModelLoadError(f"cannot read the tensors of {path}")
    try:
        return bool(gguf.gguf_find_tensor(file, name.encode()) >= 0)
    finally:
        gguf.gguf_free(file)


def _functions() -> Any:
    """Return ggml's functions, which llama-cpp-python does not bind, from the library that llama.cpp itself uses."""
    gguf = library().api._lib
    gguf.gguf_init_from_file.argtypes = [ctypes.c_char_p, _Parameters]
    gguf.gguf_init_from_file.restype = ctypes.c_void_p
    gguf.gguf_find_tensor.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    gguf.gguf_find_tensor.restype = ctypes.c_int64
    gguf.gguf_free.argtypes, gguf.gguf_free.restype = [ctypes.c_void_p], None
    return gguf

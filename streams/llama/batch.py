"""The rows of one step, as `llama_decode` takes them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from llamalane.errors import ContextError
from llamalane.ids import SequenceId
from llamalane.streams.llama.library import library


class Batch:
    """Room for `capacity` tokens, filled again for every step.

    The arrays are numpy's, and the struct that llama.cpp gets only points at them, so that filling a batch costs no
    call per token and nothing has to be freed.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ContextError(f"a batch needs room for at least 1 token; got {capacity}")
        api = library().api
        self.capacity = capacity
        self.size = 0
        self.outputs = 0
        """How many rows of logits the step will give, in the order in which they were asked for."""
        self.parts: list[tuple[SequenceId, int, int]] = []
        """What was added: sequence, first position, and the position after the last."""
        self._tokens = np.zeros(capacity, np.int32)
        self._positions = np.zeros(capacity, np.int32)
        self._sequence_counts = np.ones(capacity, np.int32)
        self._sequences = np.zeros(capacity, np.int32)
        self._wanted = np.zeros(capacity, np.int8)
        # Each token has a pointer to its list of sequence ids; ours are lists of one, laid end to end.
        addresses = self._sequences.ctypes.data + 4 * np.arange(capacity, dtype=np.uintp)
        self._sequence_pointers = addresses.astype(np.uintp)
        self._struct = api.llama_batch()
        self._struct.token = _pointer(self._tokens, ctypes.c_int32)
        self._struct.pos = _pointer(self._positions, ctypes.c_int32)
        self._struct.n_seq_id = _pointer(self._sequence_counts, ctypes.c_int32)
        self._struct.seq_id = ctypes.cast(
            self._sequence_pointers.ctypes.data, ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))
        )
        self._struct.logits = _pointer(self._wanted, ctypes.c_int8)

    def clear(self) -> None:
        """Take every row out."""
        self.size = 0
        self.outputs = 0
        self.parts.clear()

    def add(self, sequence: SequenceId, tokens: Sequence[int], position: int, *, output: int) -> None:
        """Add `tokens` at `position` of `sequence`; logits are wanted after the last `output` of them.

        Raises `ContextError` when they do not fit.
        """
        start, end = self.size, self.size + len(tokens)
        if not start < end <= self.capacity:
            raise ContextError(f"{len(tokens)} tokens do not fit a batch with {start} of {self.capacity} taken")
        if not 0 <= output <= len(tokens):
            raise ContextError(f"{len(tokens)} tokens cannot give logits for {output}")
        try:
            if len(tokens) == 1:  # as of every row that decodes: it takes a fifth of the time
                self._tokens[start] = tokens[0]
                self._positions[start] = position
                self._sequences[start] = sequence
                self._wanted[start] = 0
            else:
                self._tokens[start:end] = tokens
                self._positions[start:end] = np.arange(position, position + len(tokens), dtype=np.int32)
                self._sequences[start:end] = sequence
                self._wanted[start:end] = 0
        except OverflowError as error:
            raise ContextError(f"a token is outside every vocabulary: {error}") from None
        self._wanted[end - output : end] = 1
        self.outputs += output
        self.size = end
        self.parts.append((sequence, position, position + len(tokens)))

    @property
    def tokens(self) -> npt.NDArray[np.int32]:
        """The tokens added so far, shape (size,)."""
        return self._tokens[: self.size]

    @property
    def struct(self) -> Any:
        """The batch as llama.h's `llama_batch`; valid until the batch changes."""
        self._struct.n_tokens = self.size
        return self._struct


def _pointer(array: npt.NDArray[Any], kind: Any) -> Any:
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))

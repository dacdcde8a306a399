"""A llama context that turns texts into vectors: each step computes whole texts, and nothing of them stays.

As in `llamalane.streams.llama.context`, whatever would let llama.cpp end the process is raised as `ContextError`. A
context belongs to one thread, which creates, uses and frees it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from llamalane.errors import ContextError, DecodeError, StepAbandonedError
from llamalane.ids import MAX_SEQUENCES, SequenceId
from llamalane.streams.llama.abort import ABANDONED, AbortFlag
from llamalane.streams.llama.batch import Batch
from llamalane.streams.llama.context import FLASH_ATTENTION
from llamalane.streams.llama.library import library
from llamalane.streams.llama.model import Model
from llamalane.streams.llama.pooling import POOLING_NUMBERS, Pooling

Vector = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingOptions:
    """How a context that embeds is created.

    Attributes:
        sequences: how many texts there can be in a step, 1 … 256.
        step_tokens: the most tokens of a step, which llama.cpp computes in one pass; at least `sequences` and `limit`.
        limit: the most tokens of one text, no more than the model was trained for.
        threads: CPU threads.
        pooling: what stands for a text; `RANK` only with a model that has a head for it.
        flash_attention: a name from `FLASH_ATTENTION`.
    """

    sequences: int
    step_tokens: int
    limit: int
    threads: int
    pooling: Pooling
    flash_attention: str = "auto"

    def __post_init__(self) -> None:
        if not 1 <= self.sequences <= MAX_SEQUENCES:
            raise ContextError(f"a context has from 1 to {MAX_SEQUENCES} sequences; got {self.sequences}")
        if self.limit < 1 or self.threads < 1:
            raise ContextError("limit and threads must be at least 1")
        # llama.cpp aborts the process when it has room for fewer output rows than sequences.
        if self.step_tokens < max(self.sequences, self.limit):
            raise ContextError(
                f"step_tokens must be at least {max(self.sequences, self.limit)}, as there are {self.sequences} "
                f"sequences of up to {self.limit} tokens; got {self.step_tokens}"
            )
        if self.flash_attention not in FLASH_ATTENTION:
            known = ", ".join(FLASH_ATTENTION)
            raise ContextError(f"flash_attention must be one of {known}; got {self.flash_attention!r}")

    def parameters(self) -> Any:
        """Return them as llama.cpp takes them."""
        api = library().api
        params = api.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = params.n_outputs_max = self.step_tokens
        params.n_seq_max = self.sequences
        params.n_threads = params.n_threads_batch = self.threads
        params.embeddings = True
        params.pooling_type = POOLING_NUMBERS[self.pooling]
        params.flash_attn_type = FLASH_ATTENTION[self.flash_attention]
        params.kv_unified = True
        params.swa_full = True
        return params


class EmbeddingContext:
    """A context that embeds. Closing twice is allowed; use after closing raises `ContextError`.

    A model with a KV cache computes whole texts in it, and it is emptied after each step.
    """

    def __init__(self, model: Model, options: EmbeddingOptions) -> None:
        model.check_embeds(options.pooling)
        if model.train_context and options.limit > model.train_context:
            raise ContextError(f"limit must be at most {model.train_context}, what the model was trained for")
        self._library = library()
        self._api = api = self._library.api
        self.options = options
        self.width = model.scores if options.pooling is Pooling.RANK else model.width
        """How many numbers stand for a text."""
        self._vocabulary_size = model.vocabulary.size
        params = options.parameters()
        self._flag = AbortFlag(params)
        with self._library.collect_errors() as errors:
            self._pointer: Any = api.llama_init_from_model(model.pointer, params)
        if not self._pointer:
            raise ContextError("llama.cpp could not create a context: " + ("; ".join(errors) or "it gave no reason"))
        self._memory = api.llama_get_memory(self._pointer)
        self._compute = api.llama_encode if model.encoder_only else api.llama_decode

    def embed(self, batch: Batch) -> list[Vector]:
        """Compute one step, and return the vector of each part of `batch`, which is a whole text, in their order.

        Raises `StepAbandonedError` after `interrupt`, and `DecodeError` with llama.cpp's code when it failed.
        """
        self._check(batch)
        # What llama.cpp has to say of an abandoned step is no news.
        with self._library.collect_warnings() as messages:
            code = self._compute(self._pointer, batch.struct)
        try:
            if code == ABANDONED:
                raise StepAbandonedError
            self._library.tell(messages)
            if code != 0:
                raise DecodeError(code)
            return [self._vector(sequence) for sequence, _, _ in batch.parts]
        finally:
            if self._memory:
                self._api.llama_memory_clear(self._memory, False)

    def interrupt(self, on: bool) -> None:
        """Let the step under way, or else the next one, be abandoned; or no more. On any thread.

        Only what is computed on the CPU can be abandoned.
        """
        self._flag.set(on)

    def set_threads(self, threads: int) -> None:
        """Compute the next steps with so many CPU threads, at least 1."""
        if not self._pointer:
            raise ContextError("the context is closed")
        if threads < 1:
            raise ContextError(f"a context computes with at least 1 thread; got {threads}")
        self._api.llama_set_n_threads(self._pointer, threads, threads)

    def close(self) -> None:
        """Free the context."""
        if self._pointer:
            self._api.llama_free(self._pointer)
            self._pointer = None

    def _vector(self, sequence: SequenceId) -> Vector:
        numbers = self._api.llama_get_embeddings_seq(self._pointer, sequence)
        if not numbers:
            raise ContextError(f"llama.cpp gave no vector for sequence {sequence}")
        return np.ctypeslib.as_array(numbers, (self.width,)).copy()

    def _check(self, batch: Batch) -> None:
        if not self._pointer:
            raise ContextError("the context is closed")
        if not 0 < batch.size <= self.options.step_tokens:
            raise ContextError(f"a step has from 1 to {self.options.step_tokens} tokens; got {batch.size}")
        if batch.tokens.min() < 0 or batch.tokens.max() >= self._vocabulary_size:
            raise ContextError(f"a token is outside the vocabulary of {self._vocabulary_size}")
        sequences = [sequence for sequence, _, _ in batch.parts]
        if len(set(sequences)) < len(sequences) or not all(0 <= one < self.options.sequences for one in sequences):
            raise ContextError(
                f"each text needs a sequence of its own, from 0 to {self.options.sequences - 1}; got {sequences}"
            )
        for sequence, start, end in batch.parts:
            if start or end > self.options.limit:
                raise ContextError(
                    f"sequence {sequence} must begin at position 0 and have at most {self.options.limit} tokens; "
                    f"got positions {start} to {end - 1}"
                )


def normalized(vector: Vector) -> Vector:
    """Return the vector of length 1 with the same direction; that of zeros has none, and stays as it is."""
    length = float(np.linalg.norm(vector.astype(np.float64)))
    return (vector / length).astype(np.float32) if length else vector

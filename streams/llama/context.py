"""A llama context: the KV cells of one lane, and the decode steps on them.

llama.cpp answers a broken precondition with `abort()`, which ends the process. Everything that could lead there is
checked here first and raised as `ContextError`. A context belongs to one thread, which creates, uses and frees it.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from llamalane.errors import ContextError, DecodeError, StepAbandonedError
from llamalane.ids import MAX_SEQUENCES, SequenceId
from llamalane.streams.llama.abilities import Abilities, probe
from llamalane.streams.llama.abort import ABANDONED, AbortFlag
from llamalane.streams.llama.batch import Batch
from llamalane.streams.llama.library import library
from llamalane.streams.llama.model import Model
from llamalane.streams.llama.states import PART_BYTES, SequenceStates
from llamalane.streams.parts import Parts, at_once

CACHE_TYPES = {"f32": 0, "f16": 1, "bf16": 30, "q8_0": 8, "q5_1": 7, "q5_0": 6, "q4_1": 3, "q4_0": 2}
"""Names of KV cache types (ggml.h: ggml_type)."""
FLASH_ATTENTION = {"auto": -1, "off": 0, "on": 1}
"""When flash attention is used (llama.h: llama_flash_attn_type)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextOptions:
    """How a context is created.

    Attributes:
        cells: KV cells for all sequences together, a multiple of 256; with `partitioned`, each one's equal part is.
        sequences: how many sequences can be computed, 1 … 256.
        keepers: how many more can hold cells that others have computed. Their ids come after one that the context
            needs for itself: from ``sequences + 1`` to ``sequences + keepers``, 255 at most. Not with `partitioned`,
            and only for models that can share cells.
        partitioned: each sequence has its equal part of the cells for itself; else all take what they need of one
            cache. A step's rows should then come in the order of their sequences: llama.cpp computes each run of
            consecutive ones in a pass of its own.
        max_step_tokens: the most tokens in one step, at least `sequences`, and one more with keepers.
        micro_batch: the most tokens that llama.cpp computes in one pass.
        output_rows: for how many tokens a step can give logits; at least one for each sequence in any case.
        threads: CPU threads.
        key_type, value_type: names from `CACHE_TYPES`; a quantized value type needs flash attention.
        flash_attention: `"auto"`, `"on"` or `"off"`.
        part_bytes: about so many bytes of a sequence are saved at a time, if it can be saved in parts.
    """

    cells: int
    sequences: int
    max_step_tokens: int
    micro_batch: int
    threads: int
    partitioned: bool = False
    keepers: int = 0
    output_rows: int = 0
    key_type: str = "f16"
    value_type: str = "f16"
    flash_attention: str = "auto"
    part_bytes: int = PART_BYTES

    def __post_init__(self) -> None:
        if not 1 <= self.sequences <= MAX_SEQUENCES:
            raise ContextError(f"a context has from 1 to {MAX_SEQUENCES} sequences; got {self.sequences}")
        unit = 256 * self.sequences if self.partitioned else 256
        if self.cells < unit or self.cells % unit:
            raise ContextError(f"cells must be a multiple of {unit}; got {self.cells}")
        most = 0 if self.partitioned else MAX_SEQUENCES - 1 - self.sequences
        if self.keepers and not 0 < self.keepers <= most:
            raise ContextError(f"{self.sequences} sequences can have {most} keepers at most; got {self.keepers}")
        # llama.cpp aborts the process when it has room for fewer output rows than sequences.
        if self.max_step_tokens < self.computable:
            raise ContextError(
                f"max_step_tokens must be at least {self.computable}, the number of sequences; "
                f"got {self.max_step_tokens}"
            )
        if self.outputs > self.max_step_tokens:
            raise ContextError(
                f"output_rows must be at most max_step_tokens, which is {self.max_step_tokens}; got {self.output_rows}"
            )
        if min(self.micro_batch, self.threads, self.part_bytes) < 1:
            raise ContextError("micro_batch, threads and part_bytes must be at least 1")
        for name, known in (
            ("key_type", CACHE_TYPES),
            ("value_type", CACHE_TYPES),
            ("flash_attention", FLASH_ATTENTION),
        ):
            if getattr(self, name) not in known:
                raise ContextError(f"{name} must be one of {', '.join(known)}; got {getattr(self, name)!r}")

    @property
    def computable(self) -> int:
        """How many sequences llama.cpp has to be ready to compute: one more if there are keepers, see `save`."""
        return self.sequences + (self.keepers > 0)

    @property
    def outputs(self) -> int:
        """For how many tokens llama.cpp has to be ready to give logits in one step."""
        return max(self.computable, self.output_rows)


class Context:
    """A llama context on `model`. Closing twice is allowed; use after closing raises `ContextError`."""

    def __init__(self, model: Model, options: ContextOptions) -> None:
        model.check_generates()
        lib = library()
        self._library = lib
        self._api = api = lib.api
        self._quick = lib.quick
        self.options = options
        self._vocabulary_size = model.vocabulary.size
        self._rows: dict[int, Any] = {}
        self._outputs = 0
        params = api.llama_context_default_params()
        params.n_ctx = options.cells
        params.n_batch = options.max_step_tokens
        params.n_ubatch = min(options.micro_batch, options.max_step_tokens)
        params.n_seq_max = options.computable
        params.n_outputs_max = options.outputs
        params.n_threads = params.n_threads_batch = options.threads
        params.type_k = CACHE_TYPES[options.key_type]
        params.type_v = CACHE_TYPES[options.value_type]
        params.flash_attn_type = FLASH_ATTENTION[options.flash_attention]
        params.kv_unified = not options.partitioned
        params.swa_full = True
        self._flag = AbortFlag(params)
        with lib.collect_errors() as errors:
            self._pointer: Any = api.llama_init_from_model(model.pointer, params)
        if not self._pointer:
            raise ContextError("llama.cpp could not create a context: " + ("; ".join(errors) or "it gave no reason"))
        self._memory = api.llama_get_memory(self._pointer)
        if not self._memory:
            self.close()
            raise model.cannot_generate()
        self._window: int = api.llama_model_n_swa(model.pointer)
        self._lengths: dict[SequenceId, int] = {}
        self._sharing: set[SequenceId] = set()
        """Sequences that may have cells in common with others."""
        self.cells: int = api.llama_n_ctx(self._pointer)
        """KV cells that the context really has; llama.cpp may round up."""
        spare = SequenceId(options.sequences) if options.keepers else None
        # Cells that have left a sliding window are used for others' tokens: such a sequence does not stay as it is.
        self._states = SequenceStates(
            api, self._pointer, self._memory, spare, in_parts=not self._window, part_bytes=options.part_bytes
        )

    def decode(self, batch: Batch) -> None:
        """Compute one step and wait for its results.

        Raises `StepAbandonedError` after `interrupt`, with some rows perhaps computed, and `DecodeError` with
        llama.cpp's code when it failed.
        """
        self._check_open()
        if not 0 < batch.size <= self.options.max_step_tokens:
            raise ContextError(f"a step has from 1 to {self.options.max_step_tokens} tokens; got {batch.size}")
        if batch.outputs > self.options.outputs:
            raise ContextError(f"a step gives logits for {self.options.outputs} rows at most; got {batch.outputs}")
        tokens = batch.tokens
        if tokens.min() < 0 or tokens.max() >= self._vocabulary_size:
            raise ContextError(f"a token is outside the vocabulary of {self._vocabulary_size}")
        lengths = self._continued(batch)
        self._outputs = 0
        # What llama.cpp has to say of an abandoned step is no news.
        with self._library.collect_warnings() as messages:
            code = self._api.llama_decode(self._pointer, batch.struct)
        if code != ABANDONED:
            self._library.tell(messages)
        if code != 0:
            self._lengths.update((sequence, self.length(sequence)) for sequence in lengths)
            raise StepAbandonedError if code == ABANDONED else DecodeError(code)
        self._api.llama_synchronize(self._pointer)
        self._lengths.update(lengths)
        self._outputs = batch.outputs

    def logits(self, batch: Batch) -> npt.NDArray[np.float32]:
        """Return the logits that the last step gave for `batch`, shape (outputs, vocabulary size).

        A view into llama.cpp's memory: valid until the next step.
        """
        self._check_open()
        if batch.outputs != self._outputs:  # llama.cpp's memory holds no more rows than these
            raise ContextError(f"the last step gave logits for {self._outputs} rows, not for {batch.outputs}")
        count = batch.outputs * self._vocabulary_size
        if count == 0:
            return np.empty((0, self._vocabulary_size), np.float32)
        kind = self._rows.get(count)
        if kind is None:
            kind = self._rows[count] = ctypes.c_float * count
        address = ctypes.cast(self._quick.llama_get_logits(self._pointer), ctypes.c_void_p).value
        if address is None:
            raise ContextError("llama.cpp has no logits: the step before did not finish")
        memory: Any = kind.from_address(address)
        flat: npt.NDArray[np.float32] = np.frombuffer(memory, np.float32)
        return flat.reshape(batch.outputs, self._vocabulary_size)

    @property
    def can_shift(self) -> bool:
        """Whether llama.cpp can move cells to other positions; with a model that cannot, it ends the process."""
        self._check_open()
        return bool(self._api.llama_memory_can_shift(self._memory))

    def probe(self) -> Abilities:
        """Find out, on a context that holds nothing yet, what it can do; it holds nothing afterwards."""
        return probe(self)

    def remove(self, sequence: SequenceId, start: int = 0) -> bool:
        """Remove a sequence's cells from position `start` on.

        Returns False when the sequence could not go on from there: the model cannot remove a part of a sequence, or
        the cells before `start` are not all there that it would look at; nothing is removed then. Removing a whole
        sequence never fails.
        """
        self._check_open()
        self._check_sequence(sequence)
        if start and not self._can_go_on(sequence, start):
            return False
        removed = bool(self._quick.llama_memory_seq_rm(self._memory, sequence, start, -1))
        self._lengths[sequence] = self.length(sequence)
        if start == 0:
            self._sharing.discard(sequence)
        return removed

    def shift(self, sequence: SequenceId, keep: int, drop: int) -> bool:
        """Drop `drop` tokens of a sequence after its first `keep`, and move what follows down in their place.

        The next step turns the moved keys to their new positions, so nothing may be saved or copied before it, and it
        must not be abandoned. Returns False when the sequence is empty now: the cells that it shared with others could
        not be copied, or a sliding window would not be whole.
        """
        length = self.length(sequence)
        if keep < 0 or drop < 1 or keep + drop >= length:
            raise ContextError(f"{drop} tokens after {keep} cannot be dropped of the {length} of sequence {sequence}")
        if not self.can_shift:
            raise ContextError("the model cannot move what it has computed to other positions")
        removed = bool(self._api.llama_memory_seq_rm(self._memory, sequence, keep, keep + drop))
        # A cell has one position, for all that share it.
        if not removed or (sequence in self._sharing and not self.restore(sequence, self.save(sequence))):
            self.remove(sequence)
            return False
        self._api.llama_memory_seq_add(self._memory, sequence, keep + drop, -1, -drop)
        if not self._can_go_on(sequence, length - drop):
            self.remove(sequence)
            return False
        self._lengths[sequence] = length - drop
        return True

    def clear(self) -> None:
        """Remove the cells of all sequences."""
        self._check_open()
        self._api.llama_memory_clear(self._memory, False)
        self._lengths.clear()
        self._sharing.clear()

    def save(self, sequence: SequenceId) -> bytearray:
        """Return a copy of a sequence's cells, which `restore` takes; only contexts of the same options can."""
        return at_once(self.saving(sequence))

    def saving(self, sequence: SequenceId) -> Parts[bytearray]:
        """Do what `save` does, in parts where that can be: between two of them others may be computed.

        The sequence must stay as it is until then.
        """
        self._check_open()
        self._check_sequence(sequence)
        return (yield from self._states.saving(sequence, self.length(sequence)))

    def restore(self, sequence: SequenceId, data: bytearray) -> bool:
        """Put saved cells into a sequence, in place of its own; returns whether it holds them now, else it is empty.

        They do not get there when they were damaged, when another kind of context saved them, or for want of room.
        """
        return at_once(self.restoring(sequence, data))

    def restoring(self, sequence: SequenceId, data: bytearray) -> Parts[bool]:
        """Do what `restore` does, in as many parts as there were when the cells were saved."""
        self._check_computable(sequence)
        self.remove(sequence)
        done = yield from self._states.restoring(sequence, data)
        if not done:  # of several parts, or of a model's two caches, one may have got there
            self.remove(sequence)
        self._lengths[sequence] = self.length(sequence)
        return done

    def interrupt(self, on: bool) -> None:
        """Let the step under way, or else the next one, be abandoned; or no more. On any thread.

        Only what is computed on the CPU can be abandoned.
        """
        self._flag.set(on)

    def set_threads(self, threads: int) -> None:
        """Compute the next steps with so many CPU threads, at least 1."""
        self._check_open()
        if threads < 1:
            raise ContextError(f"a context computes with at least 1 thread; got {threads}")
        self._api.llama_set_n_threads(self._pointer, threads, threads)

    def copy(self, source: SequenceId, target: SequenceId, length: int) -> bool:
        """Let an empty sequence hold the first `length` tokens of another one.

        In one cache they share the cells, which costs nothing; partitioned, all cells of the other one are copied.
        Only for models that can drop the end of a sequence. Returns False when the target could not go on from there,
        and stays empty: a model with a sliding window does not keep what lies before it.
        """
        self._check_open()
        if source == target or self.length(target) or not 0 < length <= self.length(source):
            raise ContextError(
                f"sequence {target}, which holds {self.length(target)} tokens, cannot take {length} of the "
                f"{self.length(source)} of sequence {source}"
            )
        if not self._can_go_on(source, length):
            return False
        if self.options.partitioned:
            # llama.cpp's own copy between two parts waits for the next step: a save of the one or a restoring of the
            # other before it would find or leave the wrong cells. And it is of all that a part can hold.
            if not self.restore(target, self.save(source)):
                raise ContextError(f"sequence {source} could not be copied to sequence {target}")
            if not self.remove(target, length):
                self.remove(target)
                return False
        else:
            self._api.llama_memory_seq_cp(self._memory, source, target, 0, length)
            self._lengths[target] = self.length(target)
            self._sharing.update((source, target))
        return True

    def merge(self, source: SequenceId, target: SequenceId, start: int, end: int) -> None:
        """Let a sequence share the cells of another one from `start` to `end`, where both hold the same tokens.

        Only in one cache, and for models without a sliding window.
        """
        self._check_open()
        if source == target or not 0 <= start < end <= min(self.length(source), self.length(target)):
            raise ContextError(
                f"sequence {target}, which holds {self.length(target)} tokens, cannot share those from {start} to "
                f"{end} with sequence {source}, which holds {self.length(source)}"
            )
        if self.options.partitioned or self._window:
            raise ContextError("sequences that have parts of their own, or a sliding window, cannot share cells")
        self._api.llama_memory_seq_rm(self._memory, target, start, end)
        self._api.llama_memory_seq_cp(self._memory, source, target, start, end)
        self._sharing.update((source, target))

    def try_spare(self, source: SequenceId, length: int) -> bool:
        """Return whether a sequence that cannot decode could hold the first `length` tokens of `source`."""
        self._check_open()
        self._check_sequence(source)
        spare = MAX_SEQUENCES - 1
        # With parts for each, llama.cpp ends the process when there is none for a sequence.
        if self.options.partitioned or self.options.sequences > spare:
            return False
        # A recurrent state has no room for such a sequence; llama.cpp copies nothing then, and says so only later.
        with self._library.collect_warnings():
            self._api.llama_memory_seq_cp(self._memory, source, spare, 0, length)
            held = int(self._api.llama_memory_seq_pos_max(self._memory, spare)) + 1
            removed = bool(self._api.llama_memory_seq_rm(self._memory, spare, 0, -1))
        return held == length and removed

    def length(self, sequence: SequenceId) -> int:
        """Return how many tokens a sequence's cells hold."""
        self._check_open()
        self._check_sequence(sequence)
        return int(self._quick.llama_memory_seq_pos_max(self._memory, sequence)) + 1

    def close(self) -> None:
        """Free the context and its cells."""
        if self._pointer:
            self._api.llama_free(self._pointer)
            self._pointer = None

    def _can_go_on(self, sequence: SequenceId, length: int) -> bool:
        """Return whether the cells of a sequence's first `length` tokens are there, as far as the next one needs them.

        Cells that have left a sliding window are used for other tokens, whatever sequence they belong to, and are not
        saved. llama.cpp would go on without them, and compute nonsense. Those that are left have no gap.
        """
        first = int(self._quick.llama_memory_seq_pos_min(self._memory, sequence))
        return length <= self.length(sequence) and (not self._window or first <= max(0, length - self._window + 1))

    def _continued(self, batch: Batch) -> dict[SequenceId, int]:
        """Return how long each sequence of `batch` will be, once it is seen to go on where its cells end.

        llama.cpp takes a first position above 0 on an empty sequence for granted, and computes nonsense.
        """
        lengths: dict[SequenceId, int] = {}
        for sequence, start, end in batch.parts:
            self._check_computable(sequence)
            length = lengths.get(sequence, self._lengths.get(sequence, 0))
            if start != length:
                raise ContextError(f"sequence {sequence} holds {length} tokens, and cannot go on at position {start}")
            lengths[sequence] = end
        return lengths

    def _check_open(self) -> None:
        if not self._pointer:
            raise ContextError("the context is closed")

    def _check_computable(self, sequence: SequenceId) -> None:
        if not 0 <= sequence < self.options.sequences:
            raise ContextError(f"sequence ids go from 0 to {self.options.sequences - 1}; got {sequence}")

    def _check_sequence(self, sequence: SequenceId) -> None:
        first = self.options.sequences + 1
        if not first <= sequence < first + self.options.keepers:
            self._check_computable(sequence)

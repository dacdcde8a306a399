"""What contexts of each kind of model can do: what they find out by themselves, and what llama.cpp does when asked."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from llamalane.ids import SequenceId
from llamalane.streams.llama import Abilities, Batch, Context, ContextOptions, Model, ModelOptions, library
from tests.models.tiny_gguf import Kind
from tests.streams.llama.conftest import OPTIONS, PROMPT, step

FIRST, SECOND, SPARE = 0, 1, 255
ABANDONED = 2
CLOSE = 0.03
"""Rounding turns logits by no more than this part of their range; a token more or less turns them by half of it."""
EXACT = dataclasses.replace(OPTIONS, key_type="f32", value_type="f32", flash_attention="off")
PARTITIONED = dataclasses.replace(EXACT, cells=768, partitioned=True)
ALONE = dataclasses.replace(EXACT, sequences=1, max_step_tokens=1, micro_batch=1)

ATTENTION = Abilities(share=True, copy=True, roll_back=True, swap=True, shift=True, abandon=True)
STATE = Abilities(share=False, copy=False, roll_back=False, swap=True, shift=False, abandon=False)
TABLE: Mapping[Kind, Abilities] = {
    Kind.DENSE: ATTENTION,
    Kind.SLIDING: ATTENTION,
    Kind.RECURRENT: STATE,
    Kind.HYBRID: STATE,
}

Logits = npt.NDArray[np.float32]
every_kind = pytest.mark.parametrize("kind", list(Kind))


def probed(model: Model, options: ContextOptions) -> Abilities:
    context = Context(model, options)
    abilities = context.probe()
    context.close()
    return abilities


@every_kind
def test_what_a_model_can_do_is_found_out(models: Mapping[Kind, Model], kind: Kind) -> None:
    assert probed(models[kind], EXACT) == TABLE[kind]


@every_kind
def test_with_parts_of_their_own_sequences_share_no_cells(models: Mapping[Kind, Model], kind: Kind) -> None:
    assert probed(models[kind], PARTITIONED) == dataclasses.replace(TABLE[kind], share=False)


@every_kind
def test_a_sequence_alone_has_no_other_to_take_from(models: Mapping[Kind, Model], kind: Kind) -> None:
    assert probed(models[kind], ALONE) == dataclasses.replace(TABLE[kind], copy=False)


@every_kind
@pytest.mark.parametrize("options", [EXACT, PARTITIONED, ALONE], ids=["paged", "partitioned", "alone"])
def test_nothing_is_left_of_what_was_tried(models: Mapping[Kind, Model], kind: Kind, options: ContextOptions) -> None:
    tried, untouched = Context(models[kind], options), Context(models[kind], options)
    tried.probe()
    sequences = [SequenceId(number) for number in range(options.sequences)]
    assert [tried.length(sequence) for sequence in sequences] == [0] * options.sequences
    for token in (1, 70, 71):
        assert (step(tried, (sequences[-1], [token])) == step(untouched, (sequences[-1], [token]))).all()
    tried.close()
    untouched.close()


@every_kind
def test_llama_cpp_does_what_was_found_out(models: Mapping[Kind, Model], kind: Kind) -> None:
    check_driven(models[kind], PROMPT)


@pytest.fixture(scope="session")
def gemma(gemma3: Path) -> Iterator[Model]:
    with Model(ModelOptions(path=gemma3)) as model:
        yield model


def test_a_real_model_with_a_sliding_window_can_do_what_the_tiny_one_can(gemma: Model) -> None:
    assert probed(gemma, EXACT) == TABLE[Kind.SLIDING]
    text = "The river runs down from the mountains, and past the old mill it"
    check_driven(gemma, [2, *gemma.vocabulary.tokenize(text, add_special=False, parse_special=False)])


def test_smollm2_can_do_what_the_tiny_dense_model_can(smollm2: Path) -> None:
    with Model(ModelOptions(path=smollm2)) as model:
        assert probed(model, EXACT) == TABLE[Kind.DENSE]


def check_driven(model: Model, tokens: Sequence[int]) -> None:
    """Check each ability that a context claims, and lacks, by what llama.cpp does."""
    abilities = probed(model, EXACT)
    drives: Mapping[str, Callable[[Driven], bool]] = {
        "share": shares,
        "copy": copies,
        "roll_back": rolls_back,
        "swap": swaps,
        "shift": shifts,
        "abandon": abandons,
    }
    assert drives.keys() == {field.name for field in dataclasses.fields(Abilities)}
    for name, drive in drives.items():
        driven = Driven(model, tokens)
        assert drive(driven) == getattr(abilities, name), name
        driven.context.close()


class Driven:
    """A context in which the first sequence holds `tokens`, and which is driven through llama.cpp's own functions."""

    def __init__(self, model: Model, tokens: Sequence[int]) -> None:
        self.model = model
        self.tokens = list(tokens)
        self.half = len(self.tokens) // 2
        self.context = Context(model, EXACT)
        self.api: Any = library().api
        self.pointer: Any = self.context._pointer
        self.memory: Any = self.context._memory
        self.compute(FIRST, self.tokens, 0)

    def compute(self, sequence: int, tokens: Sequence[int], position: int) -> Logits | None:
        """Compute tokens, whatever the sequence holds; None when llama.cpp was told to stop."""
        batch = Batch(OPTIONS.max_step_tokens)
        batch.add(SequenceId(sequence), tokens, position, output=True)
        code = self.api.llama_decode(self.pointer, batch.struct)
        assert code in (0, ABANDONED)
        if code == ABANDONED:
            return None
        address = ctypes.cast(self.api.llama_get_logits(self.pointer), ctypes.POINTER(ctypes.c_float))
        logits: Logits = np.ctypeslib.as_array(address, (self.model.vocabulary.size,)).copy()
        return logits

    def goes_on(self, sequence: int, tokens: Sequence[int]) -> bool:
        """Whether a sequence goes on as one that holds `tokens` does."""
        logits = self.compute(sequence, [self.tokens[0]], len(tokens))
        other = Driven(self.model, tokens)
        expected = other.compute(FIRST, [self.tokens[0]], len(tokens))
        other.context.close()
        return close(logits, expected)

    def length(self, sequence: int) -> int:
        return int(self.api.llama_memory_seq_pos_max(self.memory, sequence)) + 1

    def remove(self, sequence: int, start: int, end: int = -1) -> bool:
        return bool(self.api.llama_memory_seq_rm(self.memory, sequence, start, end))

    def copy(self, source: int, target: int) -> None:
        self.api.llama_memory_seq_cp(self.memory, source, target, 0, self.half)


def close(logits: Logits | None, expected: Logits | None) -> bool:
    assert logits is not None
    assert expected is not None
    return bool(np.abs(logits - expected).max() < CLOSE * np.ptp(expected))


def rolls_back(driven: Driven) -> bool:
    return driven.remove(FIRST, driven.half) and driven.goes_on(FIRST, driven.tokens[: driven.half])


def copies(driven: Driven) -> bool:
    driven.copy(FIRST, SECOND)
    return driven.length(SECOND) == driven.half and driven.goes_on(SECOND, driven.tokens[: driven.half])


def shares(driven: Driven) -> bool:
    driven.copy(FIRST, SPARE)
    held = driven.length(SPARE) == driven.half
    driven.remove(FIRST, 0)
    driven.copy(SPARE, SECOND)
    return held and driven.goes_on(SECOND, driven.tokens[: driven.half])


def swaps(driven: Driven) -> bool:
    size = int(driven.api.llama_state_seq_get_size(driven.pointer, FIRST))
    data = (ctypes.c_uint8 * size)()
    assert driven.api.llama_state_seq_get_data(driven.pointer, data, size, FIRST) == size
    driven.remove(FIRST, 0)
    read = int(driven.api.llama_state_seq_set_data(driven.pointer, data, size, SECOND))
    return read == size and driven.goes_on(SECOND, driven.tokens)


def shifts(driven: Driven) -> bool:
    """Positions count only relative to each other, so what was moved goes on as if it had not been."""
    if not driven.api.llama_memory_can_shift(driven.memory):
        return False
    drop, length = 3, len(driven.tokens)
    moved, unmoved = driven, Driven(driven.model, driven.tokens)
    for each in (moved, unmoved):
        each.remove(FIRST, 0, drop)
    moved.api.llama_memory_seq_add(moved.memory, FIRST, drop, -1, -drop)
    after = moved.compute(FIRST, [driven.tokens[0]], length - drop)
    expected = unmoved.compute(FIRST, [driven.tokens[0]], length)
    unmoved.context.close()
    again = Driven(driven.model, driven.tokens)
    can_drop = rolls_back(again)
    again.context.close()
    return can_drop and close(after, expected)


def abandons(driven: Driven) -> bool:
    length = len(driven.tokens)
    driven.context.interrupt(True)
    stopped = driven.compute(FIRST, [driven.tokens[0]], length) is None
    driven.context.interrupt(False)
    return stopped and driven.remove(FIRST, length) and driven.goes_on(FIRST, driven.tokens)

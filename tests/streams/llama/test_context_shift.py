"""Sequences that are full, of which the middle is dropped and the rest moved down."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt
import pytest

from llamalane.errors import ContextError
from llamalane.ids import SequenceId
from llamalane.streams.llama import Context, Model
from tests.models.tiny_gguf import Kind
from tests.streams.llama.conftest import OPTIONS, step

FIRST, SECOND, THIRD = SequenceId(0), SequenceId(1), SequenceId(2)
EXACT = dataclasses.replace(OPTIONS, max_step_tokens=256, key_type="f32", value_type="f32", flash_attention="off")
LAYOUTS = {"paged": EXACT, "partitioned": dataclasses.replace(EXACT, cells=768, partitioned=True)}
TOKENS = [1, *range(60, 160)]
KEEP, DROP = 5, 40
LEFT = len(TOKENS) - DROP
ROUNDING = 1e-3


@pytest.fixture(params=LAYOUTS)
def context(request: pytest.FixtureRequest, model: Model) -> Iterator[Context]:
    """A context in which the first sequence holds the tokens."""
    context = Context(model, LAYOUTS[request.param])
    step(context, (FIRST, TOKENS))
    yield context
    context.close()


def shifted_alone(model: Model, tokens: list[int]) -> npt.NDArray[np.float32]:
    """The logits after `tokens`, in a context of its own that did the same shift before them."""
    alone = Context(model, EXACT)
    step(alone, (FIRST, TOKENS))
    assert alone.shift(FIRST, KEEP, DROP)
    logits = step(alone, (FIRST, tokens))
    alone.close()
    return logits


def test_a_shifted_sequence_goes_on_at_its_new_length(context: Context, model: Model) -> None:
    assert context.shift(FIRST, KEEP, DROP)
    assert context.length(FIRST) == LEFT
    logits = step(context, (FIRST, [99]))
    assert context.length(FIRST) == LEFT + 1
    assert abs(logits - shifted_alone(model, [99])).max() < ROUNDING


def test_positions_count_only_relative_to_each_other(context: Context, model: Model) -> None:
    """So a sequence that lost its beginning and was moved is like one that lost it and stayed where it was."""
    assert context.shift(FIRST, 0, DROP)
    stayed = Context(model, EXACT)
    step(stayed, (FIRST, TOKENS))
    stayed._api.llama_memory_seq_rm(stayed._memory, FIRST, 0, DROP)
    assert abs(step(context, (FIRST, [99])) - step(stayed, (FIRST, [99]))).max() < ROUNDING
    stayed.close()


def test_what_was_dropped_is_forgotten(context: Context, model: Model) -> None:
    assert context.shift(FIRST, KEEP, DROP)
    unshifted = Context(model, EXACT)
    step(unshifted, (FIRST, TOKENS))
    assert abs(step(context, (FIRST, [99])) - step(unshifted, (FIRST, [99]))).max() > 10 * ROUNDING
    unshifted.close()


def test_other_sequences_stay_as_they_are(context: Context, model: Model) -> None:
    step(context, (SECOND, TOKENS[::-1]))
    assert context.shift(FIRST, KEEP, DROP)
    alone = Context(model, EXACT)
    step(alone, (FIRST, TOKENS[::-1]))
    assert abs(step(context, (SECOND, [99])) - step(alone, (FIRST, [99]))).max() < ROUNDING
    alone.close()


@pytest.mark.parametrize("shifted", [FIRST, SECOND])
def test_a_sequence_that_shares_cells_leaves_them_to_the_others(
    context: Context, model: Model, shifted: SequenceId
) -> None:
    other = SECOND if shifted == FIRST else FIRST
    assert context.copy(FIRST, SECOND, len(TOKENS))
    assert context.shift(shifted, KEEP, DROP)
    assert context.length(other) == len(TOKENS)
    alone = Context(model, EXACT)
    step(alone, (FIRST, TOKENS))
    logits, expected = step(context, (shifted, [99]), (other, [99])), step(alone, (FIRST, [99]))
    assert abs(logits[0] - shifted_alone(model, [99])).max() < ROUNDING
    assert abs(logits[1] - expected).max() < ROUNDING
    alone.close()


def test_a_sequence_without_room_for_cells_of_its_own_is_empty(model: Model) -> None:
    context = Context(model, EXACT)
    step(context, (FIRST, TOKENS))
    assert context.copy(FIRST, SECOND, len(TOKENS))
    step(context, (THIRD, (TOKENS * 2)[: EXACT.cells - len(TOKENS) - 10]))
    assert not context.shift(FIRST, KEEP, DROP)
    assert context.length(FIRST) == 0
    assert context.length(SECOND) == len(TOKENS)
    context.close()


def test_a_shifted_sequence_can_be_saved_after_its_next_step(context: Context, model: Model) -> None:
    assert context.shift(FIRST, KEEP, DROP)
    step(context, (FIRST, [99]))
    saved = context.save(FIRST)
    assert context.restore(SECOND, saved)
    alone = Context(model, EXACT)
    step(alone, (FIRST, TOKENS))
    assert alone.shift(FIRST, KEEP, DROP)
    step(alone, (FIRST, [99]))
    assert abs(step(context, (SECOND, [98])) - step(alone, (FIRST, [98]))).max() < ROUNDING
    alone.close()


def test_a_sliding_window_moves_too(models: Mapping[Kind, Model]) -> None:
    context, stayed = Context(models[Kind.SLIDING], EXACT), Context(models[Kind.SLIDING], EXACT)
    for each in (context, stayed):
        step(each, (FIRST, TOKENS))
    assert context.shift(FIRST, 0, DROP)
    stayed._api.llama_memory_seq_rm(stayed._memory, FIRST, 0, DROP)
    assert abs(step(context, (FIRST, [99])) - step(stayed, (FIRST, [99]))).max() < ROUNDING
    context.close()
    stayed.close()


@pytest.mark.parametrize(("keep", "drop"), [(-1, 5), (0, 0), (5, -1), (0, len(TOKENS)), (len(TOKENS) - 1, 1)])
def test_what_cannot_be_dropped_is_refused(context: Context, keep: int, drop: int) -> None:
    with pytest.raises(ContextError, match=f"{drop} tokens after {keep} cannot be dropped of the {len(TOKENS)}"):
        context.shift(FIRST, keep, drop)
    assert context.length(FIRST) == len(TOKENS)

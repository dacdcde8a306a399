"""Sequences that are saved and put back."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llamalane.errors import ContextError
from llamalane.ids import SequenceId
from llamalane.streams.llama import Context, Model
from llamalane.streams.llama.checksum import checksum
from tests.models.tiny_gguf import Kind
from tests.streams.llama.conftest import OPTIONS, PROMPT, step

FIRST, SECOND, THIRD = SequenceId(0), SequenceId(1), SequenceId(2)
ROUNDING = 0.05


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("target", [FIRST, SECOND])
def test_a_restored_sequence_goes_on_as_if_nothing_had_happened(
    models: Mapping[Kind, Model], kind: Kind, target: SequenceId
) -> None:
    context, undisturbed = Context(models[kind], OPTIONS), Context(models[kind], OPTIONS)
    for each in (context, undisturbed):
        step(each, (FIRST, PROMPT))
    data = context.save(FIRST)
    context.remove(FIRST)
    assert context.restore(target, data)
    assert context.length(target) == len(PROMPT)
    for token in (99, 98, 97):
        difference = step(context, (target, [token])) - step(undisturbed, (FIRST, [token]))
        assert abs(difference).max() < ROUNDING
    context.close()
    undisturbed.close()


@pytest.mark.parametrize("kind", list(Kind))
def test_saving_changes_nothing(models: Mapping[Kind, Model], kind: Kind) -> None:
    context, undisturbed = Context(models[kind], OPTIONS), Context(models[kind], OPTIONS)
    for each in (context, undisturbed):
        step(each, (FIRST, PROMPT), (SECOND, PROMPT[:5]))
    context.save(FIRST)
    assert (context.length(FIRST), context.length(SECOND)) == (len(PROMPT), 5)
    rows = [(FIRST, [99]), (SECOND, [98])]
    assert abs(step(context, *rows) - step(undisturbed, *rows)).max() < ROUNDING
    context.close()
    undisturbed.close()


def test_sequences_are_put_back_into_whatever_cells_are_free(context: Context, model: Model) -> None:
    step(context, (FIRST, PROMPT))
    data = context.save(FIRST)
    context.remove(FIRST)
    for token in range(3, 33):  # two sequences with their cells in turns, one of which leaves gaps
        step(context, (SECOND, [token] * 3), (THIRD, [token]))
    context.remove(THIRD)
    assert context.restore(FIRST, data)
    undisturbed = Context(model, OPTIONS)
    step(undisturbed, (FIRST, PROMPT))
    assert abs(step(context, (FIRST, [99])) - step(undisturbed, (FIRST, [99]))).max() < ROUNDING
    undisturbed.close()


def test_saved_cells_take_the_place_of_what_the_sequence_held(context: Context, model: Model) -> None:
    step(context, (FIRST, PROMPT), (SECOND, PROMPT[::-1][:7]))
    assert context.restore(SECOND, context.save(FIRST))
    assert context.length(SECOND) == len(PROMPT)
    assert abs(step(context, (SECOND, [99])) - step(context, (FIRST, [99]))).max() < ROUNDING


def test_nothing_saved_is_nothing_restored(context: Context) -> None:
    data = context.save(FIRST)
    step(context, (SECOND, PROMPT))
    assert context.restore(SECOND, data)
    assert context.length(SECOND) == 0


def test_saved_cells_outlive_their_context(model: Model, context: Context) -> None:
    other = Context(model, OPTIONS)
    expected = step(other, (FIRST, PROMPT))
    data = other.save(FIRST)
    other.close()
    assert context.restore(THIRD, data)
    assert context.length(THIRD) == len(PROMPT)
    context.remove(THIRD, len(PROMPT) - 1)
    assert abs(step(context, (THIRD, PROMPT[-1:])) - expected).max() < ROUNDING


def test_saved_cells_of_a_part_go_to_another_part(model: Model) -> None:
    options = dataclasses.replace(OPTIONS, cells=768, partitioned=True)
    context = Context(model, options)
    step(context, (FIRST, PROMPT))
    assert context.restore(THIRD, context.save(FIRST))
    assert abs(step(context, (THIRD, [99])) - step(context, (FIRST, [99]))).max() < ROUNDING
    context.close()


def is_refused(context: Context, data: bytearray) -> bool:
    """Whether data cannot be restored, which leaves no trace, and the other sequence as it was."""
    neighbour = context.length(SECOND)
    refused = not context.restore(FIRST, data)
    assert context.length(FIRST) == 0
    assert context.length(SECOND) == neighbour
    return refused


def check_that_it_serves_on(context: Context, model: Model) -> None:
    """Check that sequences come out right, and that no cell was lost."""
    undisturbed = Context(model, OPTIONS)
    step(undisturbed, (SECOND, PROMPT[:5]))
    rows = [(FIRST, PROMPT), (SECOND, [99])]
    assert abs(step(context, *rows) - step(undisturbed, *rows)).max() < ROUNDING
    undisturbed.close()
    context.remove(SECOND)
    context.remove(FIRST)
    check_that_no_cell_is_lost(context)


def check_that_no_cell_is_lost(context: Context) -> None:
    """Check that an empty context can be filled to the last cell."""
    for _ in range(8):
        step(context, (THIRD, [5] * 32))
    assert context.length(THIRD) == context.cells


def test_damaged_data_is_refused_and_the_others_are_left_alone(model: Model, context: Context) -> None:
    step(context, (FIRST, PROMPT), (SECOND, PROMPT[:5]))
    data = context.save(FIRST)
    header = 16 + 12 * len(PROMPT)  # kind, sequence, streams and count of cells; then each cell's position and sequence
    dice = random.Random(0)
    for place in [*range(header + 40), *(dice.randrange(len(data)) for _ in range(50)), len(data) - 1]:
        damaged = data.copy()
        damaged[place] ^= 1 << dice.randrange(8)
        assert is_refused(context, damaged), f"byte {place}"
    check_that_it_serves_on(context, model)


def test_data_that_was_cut_short_is_refused(model: Model, context: Context) -> None:
    step(context, (FIRST, PROMPT), (SECOND, PROMPT[:5]))
    data = context.save(FIRST)
    for length in [*range(40), len(data) // 2, len(data) - 4, len(data) - 1]:
        assert is_refused(context, data[:length]), f"{length} bytes"
    check_that_it_serves_on(context, model)


def test_data_that_grew_is_refused(model: Model, context: Context) -> None:
    step(context, (FIRST, PROMPT), (SECOND, PROMPT[:5]))
    data = context.save(FIRST)
    for damaged in (data + b"\0", data + data, bytearray(4) + data):
        assert is_refused(context, damaged)
    check_that_it_serves_on(context, model)


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=300))
def test_no_data_at_all_can_harm_the_context(context: Context, data: bytes) -> None:
    assert is_refused(context, bytearray(data))


@pytest.mark.parametrize(
    "change",
    [{"key_type": "f32"}, {"value_type": "f32"}, {"flash_attention": "off"}, {"partitioned": True, "cells": 768}],
    ids=lambda change: ", ".join(change),
)
def test_what_another_kind_of_context_saved_is_refused(model: Model, context: Context, change: dict[str, Any]) -> None:
    other = Context(model, dataclasses.replace(OPTIONS, **change))
    step(other, (FIRST, PROMPT))
    step(context, (SECOND, PROMPT[:5]))
    assert is_refused(context, other.save(FIRST))
    check_that_it_serves_on(context, model)
    other.close()


@pytest.mark.parametrize("kind", [Kind.DENSE, Kind.SLIDING, Kind.HYBRID])
def test_what_finds_no_room_is_refused(models: Mapping[Kind, Model], kind: Kind) -> None:
    context = Context(models[kind], OPTIONS)
    step(context, (FIRST, PROMPT))
    data = context.save(FIRST)
    context.remove(FIRST)
    for _ in range(8):
        step(context, (SECOND, [5] * 31))
    assert is_refused(context, data)
    context.remove(SECOND)
    assert context.restore(FIRST, data)
    context.close()


def test_of_a_model_with_two_caches_neither_keeps_its_part(models: Mapping[Kind, Model]) -> None:
    context = Context(models[Kind.SLIDING], OPTIONS)
    step(context, (FIRST, PROMPT))
    saved = context.save(FIRST)
    half = saved[: len(saved) * 3 // 4]  # all of the first cache, and some of the second
    assert is_refused(context, half + checksum(half).to_bytes(4, "little"))
    check_that_no_cell_is_lost(context)
    context.close()


@pytest.mark.parametrize("sequence", [-1, 3])
def test_only_sequences_of_the_context_are_saved_and_restored(context: Context, sequence: int) -> None:
    step(context, (FIRST, PROMPT))
    data = context.save(FIRST)
    with pytest.raises(ContextError, match=f"from 0 to 2; got {sequence}"):
        context.save(SequenceId(sequence))
    with pytest.raises(ContextError, match=f"from 0 to 2; got {sequence}"):
        context.restore(SequenceId(sequence), data)


def test_a_closed_context_saves_and_restores_nothing(model: Model) -> None:
    context = Context(model, OPTIONS)
    data = context.save(FIRST)
    context.close()
    with pytest.raises(ContextError, match="the context is closed"):
        context.save(FIRST)
    with pytest.raises(ContextError, match="the context is closed"):
        context.restore(FIRST, data)

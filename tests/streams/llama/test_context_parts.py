"""Sequences that are saved and put back in parts."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator

import pytest

from llamalane.errors import ContextError
from llamalane.ids import SequenceId
from llamalane.streams.llama import Context, Model
from llamalane.streams.parts import Parts, T
from tests.streams.llama.conftest import OPTIONS, PROMPT, step

FIRST, SECOND, THIRD, KEEPER = SequenceId(0), SequenceId(1), SequenceId(2), SequenceId(4)
WITH_KEEPERS = dataclasses.replace(OPTIONS, keepers=2)
ROUNDING = 0.05


@pytest.fixture
def context(model: Model) -> Iterator[Context]:
    """A context that saves about four tokens at a time."""
    whole = Context(model, WITH_KEEPERS)
    step(whole, (FIRST, PROMPT))
    size = len(whole.save(FIRST))
    whole.close()
    context = Context(model, dataclasses.replace(WITH_KEEPERS, part_bytes=size * 4 // len(PROMPT)))
    yield context
    context.close()


def counted(work: Parts[T]) -> tuple[int, T]:
    """Do all parts, and return how many these were, and what came of them."""
    parts = 1
    while True:
        try:
            next(work)
        except StopIteration as end:
            return parts, end.value
        parts += 1


@pytest.mark.parametrize("source", [FIRST, KEEPER])
def test_what_was_saved_in_parts_goes_on_as_if_nothing_had_happened(
    model: Model, context: Context, source: SequenceId
) -> None:
    undisturbed = Context(model, OPTIONS)
    for each in (context, undisturbed):
        step(each, (FIRST, PROMPT))
    if source != FIRST:
        context.copy(FIRST, source, len(PROMPT))
    saved, data = counted(context.saving(source))
    for sequence in (FIRST, source):
        context.remove(sequence)
    restored, done = counted(context.restoring(SECOND, data))
    assert done
    assert saved == restored
    assert saved > 4
    assert context.length(SECOND) == len(PROMPT)
    for token in (99, 98, 97):
        difference = step(context, (SECOND, [token])) - step(undisturbed, (FIRST, [token]))
        assert abs(difference).max() < ROUNDING
    undisturbed.close()


def test_others_are_computed_between_the_parts(model: Model, context: Context) -> None:
    undisturbed = Context(model, OPTIONS)
    for each in (context, undisturbed):
        step(each, (FIRST, PROMPT), (SECOND, PROMPT[:5]))
    tokens = iter(range(200, 250))
    data, saving = None, context.saving(FIRST)
    while data is None:
        try:
            next(saving)
        except StopIteration as end:
            data = end.value
        token = next(tokens)
        assert abs(step(context, (SECOND, [token])) - step(undisturbed, (SECOND, [token]))).max() < ROUNDING
    context.remove(FIRST)
    restoring = context.restoring(THIRD, data)
    for _ in restoring:
        token = next(tokens)
        assert abs(step(context, (SECOND, [token])) - step(undisturbed, (SECOND, [token]))).max() < ROUNDING
    assert context.length(THIRD) == len(PROMPT)
    rows = [(99, FIRST, THIRD)]
    for token, there, here in rows:
        assert abs(step(context, (here, [token])) - step(undisturbed, (there, [token]))).max() < ROUNDING
    undisturbed.close()


def test_a_short_sequence_is_saved_whole(context: Context) -> None:
    step(context, (FIRST, PROMPT[:3]))
    parts, data = counted(context.saving(FIRST))
    assert parts == 1
    context.remove(FIRST)
    assert counted(context.restoring(FIRST, data)) == (1, True)


def test_damage_is_found_in_whichever_part_it_is_and_nothing_stays(context: Context) -> None:
    step(context, (FIRST, PROMPT))
    data = context.save(FIRST)
    dice = random.Random(0)
    for place in [*range(100), *(dice.randrange(len(data)) for _ in range(60)), len(data) - 1]:
        damaged = data.copy()
        damaged[place] ^= 1 << dice.randrange(8)
        assert not context.restore(SECOND, damaged), f"byte {place}"
        assert context.length(SECOND) == 0
    for length in (*range(40), len(data) // 2, len(data) - 1):
        assert not context.restore(SECOND, data[:length])
    for grown in (data + b"\0", data + data):
        assert not context.restore(SECOND, grown)
    context.remove(FIRST)
    for _ in range(8):
        step(context, (THIRD, [5] * 32))
    assert context.length(THIRD) == context.cells, "some cell is lost"


def test_what_finds_room_for_some_parts_only_is_refused(context: Context) -> None:
    step(context, (FIRST, PROMPT))
    data = context.save(FIRST)
    context.remove(FIRST)
    for _ in range(8):
        step(context, (THIRD, [5] * 31))
    assert context.cells - context.length(THIRD) == 8
    assert not context.restore(FIRST, data)
    assert context.length(FIRST) == 0
    context.remove(THIRD)
    assert context.restore(FIRST, data)


def test_a_context_without_a_spare_sequence_refuses_parts(model: Model, context: Context) -> None:
    step(context, (FIRST, PROMPT))
    other = Context(model, OPTIONS)
    assert not other.restore(FIRST, context.save(FIRST))
    assert other.length(FIRST) == 0
    other.close()


def test_parts_have_a_size(model: Model) -> None:
    with pytest.raises(ContextError, match="part_bytes must be at least 1"):
        dataclasses.replace(OPTIONS, part_bytes=0)

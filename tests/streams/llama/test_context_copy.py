"""Sequences that take the first tokens of others."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping

import pytest

from llamalane.errors import ContextError, StepAbandonedError
from llamalane.ids import SequenceId
from llamalane.streams.llama import Context, Model
from tests.models.tiny_gguf import Kind
from tests.streams.llama.conftest import OPTIONS, PROMPT, step

FIRST, SECOND, THIRD = SequenceId(0), SequenceId(1), SequenceId(2)
SHARED = 12
OTHER = PROMPT[::-1]
ROUNDING = 0.05
LAYOUTS = {"paged": OPTIONS, "partitioned": dataclasses.replace(OPTIONS, cells=768, partitioned=True)}


@pytest.fixture(params=LAYOUTS)
def context(request: pytest.FixtureRequest, model: Model) -> Iterator[Context]:
    """A context in which the first sequence holds the prompt."""
    context = Context(model, LAYOUTS[request.param])
    step(context, (FIRST, PROMPT))
    yield context
    context.close()


def check(context: Context, model: Model, sequence: SequenceId, tokens: list[int]) -> None:
    """Check that a sequence holds `tokens`, by how it goes on."""
    assert context.length(sequence) == len(tokens)
    undisturbed = Context(model, OPTIONS)
    step(undisturbed, (FIRST, tokens))
    difference = step(context, (sequence, [99])) - step(undisturbed, (FIRST, [99]))
    assert abs(difference).max() < ROUNDING
    undisturbed.close()


@pytest.mark.parametrize("length", [1, SHARED, len(PROMPT)])
def test_a_sequence_goes_on_from_what_another_holds(context: Context, model: Model, length: int) -> None:
    context.copy(FIRST, SECOND, length)
    check(context, model, SECOND, PROMPT[:length])
    check(context, model, FIRST, PROMPT)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_sliding_window_is_copied_too(models: Mapping[Kind, Model], layout: str) -> None:
    model = models[Kind.SLIDING]
    context = Context(model, LAYOUTS[layout])
    step(context, (FIRST, PROMPT))
    context.copy(FIRST, SECOND, SHARED)
    check(context, model, SECOND, PROMPT[:SHARED])
    context.close()


def test_both_go_their_own_ways(context: Context, model: Model) -> None:
    context.copy(FIRST, SECOND, SHARED)
    step(context, (FIRST, [50, 51]), (SECOND, [60, 61]))
    check(context, model, FIRST, [*PROMPT, 50, 51])
    check(context, model, SECOND, [*PROMPT[:SHARED], 60, 61])


def test_a_copy_outlives_what_it_was_taken_from(context: Context, model: Model) -> None:
    context.copy(FIRST, SECOND, SHARED)
    context.remove(FIRST)
    step(context, (FIRST, OTHER))
    check(context, model, SECOND, PROMPT[:SHARED])


def test_a_copy_can_be_copied_at_once(context: Context, model: Model) -> None:
    context.copy(FIRST, SECOND, SHARED)
    context.copy(SECOND, THIRD, 5)
    check(context, model, THIRD, PROMPT[:5])


def test_a_copy_can_be_saved_at_once(context: Context, model: Model) -> None:
    context.copy(FIRST, SECOND, SHARED)
    assert context.restore(THIRD, context.save(SECOND))
    check(context, model, THIRD, PROMPT[:SHARED])


def test_others_can_be_restored_at_once_where_a_copy_was_taken(context: Context, model: Model) -> None:
    step(context, (THIRD, OTHER))
    saved = context.save(THIRD)
    context.copy(FIRST, SECOND, SHARED)
    assert context.restore(FIRST, saved)
    check(context, model, SECOND, PROMPT[:SHARED])
    check(context, model, FIRST, OTHER)


def test_a_copy_survives_an_abandoned_step(context: Context, model: Model) -> None:
    context.copy(FIRST, SECOND, SHARED)
    context.interrupt(True)
    with pytest.raises(StepAbandonedError):
        step(context, (SECOND, [50]))
    context.interrupt(False)
    context.remove(SECOND, SHARED)
    check(context, model, SECOND, PROMPT[:SHARED])


def test_shared_cells_are_there_once_in_one_cache(model: Model) -> None:
    context = Context(model, OPTIONS)
    for _ in range(7):
        step(context, (FIRST, [5] * 32))
    context.copy(FIRST, SECOND, 224)
    step(context, (SECOND, [6] * 32))
    assert (context.length(FIRST), context.length(SECOND)) == (224, 256)
    context.close()


MISUSES: dict[str, tuple[Callable[[Context], object], str]] = {
    "nothing": (lambda context: context.copy(FIRST, SECOND, 0), "cannot take 0 of the 21"),
    "less than nothing": (lambda context: context.copy(FIRST, SECOND, -1), "cannot take -1 of the 21"),
    "more than there is": (lambda context: context.copy(FIRST, SECOND, 22), "cannot take 22 of the 21"),
    "from an empty one": (lambda context: context.copy(THIRD, SECOND, 1), "cannot take 1 of the 0"),
    "from itself": (lambda context: context.copy(FIRST, FIRST, 5), "which holds 21 tokens, cannot take 5"),
    "from beyond the last": (lambda context: context.copy(SequenceId(3), SECOND, 5), "from 0 to 2; got 3"),
    "to before the first": (lambda context: context.copy(FIRST, SequenceId(-1), 5), "from 0 to 2; got -1"),
}


@pytest.mark.parametrize("misuse", MISUSES)
def test_a_copy_that_cannot_be_is_refused(context: Context, model: Model, misuse: str) -> None:
    act, message = MISUSES[misuse]
    with pytest.raises(ContextError, match=message):
        act(context)
    assert [context.length(SequenceId(i)) for i in range(3)] == [len(PROMPT), 0, 0]
    check(context, model, FIRST, PROMPT)


def test_only_an_empty_sequence_takes_a_copy(context: Context, model: Model) -> None:
    step(context, (SECOND, OTHER))
    with pytest.raises(ContextError, match="sequence 1, which holds 21 tokens, cannot take 5"):
        context.copy(FIRST, SECOND, 5)
    check(context, model, SECOND, OTHER)

"""A sliding window: what lies before it is gone, and no sequence may go on from there."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

import pytest

from llamalane.ids import SequenceId
from llamalane.streams.llama import Context, Model
from tests.models.tiny_gguf import WINDOW, Kind
from tests.streams.llama.conftest import OPTIONS, step

FIRST, SECOND, THIRD = SequenceId(0), SequenceId(1), SequenceId(2)
WIDE = dataclasses.replace(OPTIONS, cells=512, max_step_tokens=256, micro_batch=256)
LAYOUTS = {"paged": WIDE, "partitioned": dataclasses.replace(WIDE, cells=768, partitioned=True)}
LONG = [1, *(3 + number for number in range(4 * WINDOW))]
EARLY, RECENT = WINDOW + 8, len(LONG) - 1
ROUNDING = 0.05

both_layouts = pytest.mark.parametrize("layout", LAYOUTS)


@pytest.fixture
def sliding(models: Mapping[Kind, Model]) -> Model:
    return models[Kind.SLIDING]


@pytest.fixture(params=LAYOUTS)
def context(request: pytest.FixtureRequest, sliding: Model) -> Iterator[Context]:
    """A context in which the first sequence holds a long prompt."""
    context = Context(sliding, LAYOUTS[request.param])
    step(context, (FIRST, LONG))
    yield context
    context.close()


def check(context: Context, model: Model, sequence: SequenceId, tokens: list[int]) -> None:
    """Check that a sequence holds `tokens`, by how it goes on."""
    assert context.length(sequence) == len(tokens)
    undisturbed = Context(model, WIDE)
    step(undisturbed, (FIRST, tokens))
    assert abs(step(context, (sequence, [99])) - step(undisturbed, (FIRST, [99]))).max() < ROUNDING
    undisturbed.close()


def test_where_all_cells_are_left_a_sequence_goes_on_from_anywhere(context: Context, sliding: Model) -> None:
    assert context.remove(FIRST, EARLY)
    check(context, sliding, FIRST, LONG[:EARLY])


def test_a_sequence_that_was_saved_cannot_go_on_from_before_its_window(context: Context, sliding: Model) -> None:
    assert context.restore(SECOND, context.save(FIRST))
    assert not context.remove(SECOND, EARLY)
    check(context, sliding, SECOND, LONG)


def test_a_sequence_that_was_saved_goes_on_from_its_end(context: Context, sliding: Model) -> None:
    assert context.restore(SECOND, context.save(FIRST))
    assert context.remove(SECOND, RECENT)
    check(context, sliding, SECOND, LONG[:RECENT])


def test_what_lies_before_a_window_is_used_for_other_tokens(sliding: Model) -> None:
    context = Context(sliding, WIDE)
    step(context, (SECOND, LONG[:20]))
    step(context, (THIRD, LONG))
    assert context.remove(SECOND)
    step(context, (FIRST, LONG))  # more than fits before the third one's cells, so it takes some of these
    assert not context.remove(THIRD, EARLY)
    assert not context.copy(THIRD, SECOND, EARLY)
    assert context.length(SECOND) == 0
    check(context, sliding, THIRD, LONG)
    context.close()


def test_the_beginning_of_a_long_sequence_is_copied_only_where_it_can_be(sliding: Model) -> None:
    context = Context(sliding, LAYOUTS["partitioned"])
    step(context, (FIRST, LONG))
    assert not context.copy(FIRST, SECOND, EARLY)
    assert context.length(SECOND) == 0
    assert context.copy(FIRST, SECOND, RECENT)
    check(context, sliding, SECOND, LONG[:RECENT])
    context.close()


@both_layouts
def test_no_more_is_kept_of_a_sequence_than_it_holds(model: Model, layout: str) -> None:
    context = Context(model, LAYOUTS[layout])
    step(context, (FIRST, LONG[:20]))
    assert not context.remove(FIRST, 21)
    assert context.length(FIRST) == 20
    assert context.remove(FIRST, 20)
    context.close()

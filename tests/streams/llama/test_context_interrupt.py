"""Steps that are broken off."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping

import pytest

from llamalane.errors import ContextError, StepAbandonedError
from llamalane.ids import SequenceId
from llamalane.streams.llama import Batch, Context, Model
from tests.models.tiny_gguf import Kind
from tests.streams.llama.conftest import OPTIONS, PROMPT, step

FIRST, SECOND = SequenceId(0), SequenceId(1)
ROUNDING = 0.05


def abandon(context: Context, *rows: tuple[SequenceId, list[int]]) -> None:
    """Begin a step that is broken off."""
    context.interrupt(True)
    with pytest.raises(StepAbandonedError):
        step(context, *rows)
    context.interrupt(False)


@pytest.mark.parametrize("kind", list(Kind))
def test_a_context_goes_on_after_an_abandoned_step(models: Mapping[Kind, Model], kind: Kind) -> None:
    context, undisturbed = Context(models[kind], OPTIONS), Context(models[kind], OPTIONS)
    for _ in range(3):
        abandon(context, (FIRST, PROMPT))
        context.remove(FIRST)
    assert abs(step(context, (FIRST, PROMPT)) - step(undisturbed, (FIRST, PROMPT))).max() < ROUNDING
    context.close()
    undisturbed.close()


def test_an_abandoned_step_leaves_what_was_there_before(model: Model, context: Context) -> None:
    undisturbed = Context(model, OPTIONS)
    for each in (context, undisturbed):
        step(each, (FIRST, PROMPT[:8]), (SECOND, PROMPT[:5]))
    abandon(context, (FIRST, PROMPT[8:]))
    context.remove(FIRST, 8)
    assert (context.length(FIRST), context.length(SECOND)) == (8, 5)
    rows = [(FIRST, PROMPT[8:]), (SECOND, [99])]
    assert abs(step(context, *rows) - step(undisturbed, *rows)).max() < ROUNDING
    undisturbed.close()


def test_every_step_is_abandoned_until_it_is_taken_back(context: Context) -> None:
    context.interrupt(True)
    for _ in range(3):
        with pytest.raises(StepAbandonedError):
            step(context, (FIRST, PROMPT))
    context.interrupt(False)
    step(context, (FIRST, PROMPT))


def test_an_interruption_that_is_taken_back_in_time_does_nothing(context: Context) -> None:
    context.interrupt(True)
    context.interrupt(False)
    step(context, (FIRST, PROMPT))
    assert context.length(FIRST) == len(PROMPT)


def test_an_abandoned_step_has_no_logits(context: Context) -> None:
    batch = Batch(8)
    batch.add(FIRST, [5], 0, output=True)
    context.decode(batch)
    abandon(context, (FIRST, [6]))
    with pytest.raises(ContextError, match="gave logits for 0 rows, not for 1"):
        context.logits(batch)


def test_one_context_is_interrupted_and_not_another(model: Model, context: Context) -> None:
    other = Context(model, OPTIONS)
    context.interrupt(True)
    step(other, (FIRST, PROMPT))
    other.close()


def test_an_abandoned_step_is_no_news(context: Context, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        abandon(context, (FIRST, PROMPT))
    assert caplog.messages == []


def test_a_step_can_be_abandoned_at_any_moment(model: Model, context: Context) -> None:
    undisturbed = Context(model, OPTIONS)
    tokens = [3 + i % 250 for i in range(224)]
    for start in range(0, len(tokens), 32):  # two passes each
        rows = (FIRST, tokens[start : start + 32])
        try:  # whether it is in time, only the threads know
            timer = threading.Timer(0.0001 * start / 32, context.interrupt, [True])
            timer.start()
            logits = step(context, rows)
        except StepAbandonedError:
            assert start <= context.length(FIRST) < start + 32
            logits = None
        timer.join()
        context.interrupt(False)
        if logits is None:
            context.remove(FIRST, start)
            logits = step(context, rows)
        assert abs(logits - step(undisturbed, rows)).max() < ROUNDING
    undisturbed.close()

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from llamalane.errors import ContextError, DecodeError
from llamalane.ids import SequenceId
from llamalane.streams.llama import Batch, Context, Model
from tests.models.tiny_gguf import Kind
from tests.streams.llama.conftest import OPTIONS, PROMPT, step

FIRST, SECOND = SequenceId(0), SequenceId(1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sequences": 0}, "from 1 to 256 sequences; got 0"),
        ({"sequences": 257}, "from 1 to 256 sequences; got 257"),
        ({"cells": 0}, "multiple of 256; got 0"),
        ({"cells": -256}, "multiple of 256; got -256"),
        ({"cells": 300}, "multiple of 256; got 300"),
        ({"max_step_tokens": 2}, "at least 3, the number of sequences; got 2"),
        ({"output_rows": 33}, "at most max_step_tokens, which is 32; got 33"),
        ({"micro_batch": 0}, "at least 1"),
        ({"threads": 0}, "at least 1"),
        ({"key_type": "f17"}, "key_type must be one of f32, f16.*; got 'f17'"),
        ({"value_type": ""}, "value_type must be one of f32, f16.*; got ''"),
        ({"flash_attention": "maybe"}, "flash_attention must be one of auto, off, on; got 'maybe'"),
    ],
)
def test_options_out_of_range_are_refused_with_the_range(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ContextError, match=message):
        dataclasses.replace(OPTIONS, **change)


def test_a_step_gives_logits_for_as_many_tokens_as_the_options_say(model: Model, context: Context) -> None:
    wide = Context(model, dataclasses.replace(OPTIONS, output_rows=8))
    tokens = list(range(40, 49))
    batch = Batch(32)
    batch.add(FIRST, tokens, 0, output=8)
    wide.decode(batch)
    together = wide.logits(batch).copy()
    one_by_one = [step(context, (FIRST, [token]))[0] for token in tokens]
    assert together == pytest.approx(np.stack(one_by_one[1:]), abs=0.01)
    batch.clear()
    batch.add(SECOND, tokens, 0, output=9)
    with pytest.raises(ContextError, match="logits for 8 rows at most; got 9"):
        wide.decode(batch)
    wide.close()


def test_what_llama_cpp_refuses_is_told_in_its_own_words(model: Model) -> None:
    options = dataclasses.replace(OPTIONS, value_type="q8_0", flash_attention="off")
    with pytest.raises(ContextError, match="quantized V cache requires flash_attn"):
        Context(model, options)


@pytest.mark.parametrize("flash_attention", ["auto", "on", "off"])
@pytest.mark.parametrize("cache_type", ["f32", "f16", "bf16"])
def test_cache_types_and_flash_attention_change_the_output_little(
    model: Model, context: Context, cache_type: str, flash_attention: str
) -> None:
    options = dataclasses.replace(OPTIONS, key_type=cache_type, value_type=cache_type, flash_attention=flash_attention)
    other = Context(model, options)
    difference = step(other, (FIRST, PROMPT)) - step(context, (FIRST, PROMPT))
    assert abs(difference).max() < 0.1
    other.close()


@pytest.mark.parametrize("kind", list(Kind))
def test_a_context_has_the_cells_and_sequences_that_were_asked_for(models: Mapping[Kind, Model], kind: Kind) -> None:
    context = Context(models[kind], dataclasses.replace(OPTIONS, cells=768))
    assert context.cells == 768
    assert [context.length(SequenceId(i)) for i in range(3)] == [0, 0, 0]
    context.close()


@pytest.mark.parametrize("kind", list(Kind))
def test_a_prompt_at_once_and_token_by_token_give_the_same(models: Mapping[Kind, Model], kind: Kind) -> None:
    context = Context(models[kind], OPTIONS)
    at_once = step(context, (FIRST, PROMPT))
    for token in PROMPT:
        one_by_one = step(context, (SECOND, [token]))
    assert abs(at_once - one_by_one).max() < 0.05
    assert at_once.std() > 0.1
    context.close()


@pytest.mark.parametrize("kind", list(Kind))
def test_sequences_in_one_step_do_not_see_each_other(models: Mapping[Kind, Model], kind: Kind) -> None:
    prompts = [PROMPT[:9], PROMPT[:3], list(reversed(PROMPT))[:15]]
    together = Context(models[kind], OPTIONS)
    logits = step(together, *((SequenceId(i), prompt) for i, prompt in enumerate(prompts)))
    for i, prompt in enumerate(prompts):
        alone = Context(models[kind], OPTIONS)
        assert abs(step(alone, (FIRST, prompt)) - logits[i]).max() < 0.05, f"sequence {i}"
        alone.close()
    together.close()


def test_logits_come_in_the_order_in_which_they_were_asked_for(context: Context) -> None:
    expected = step(context, (SECOND, [1, 100]), (FIRST, [1, 200]))
    for sequence in (FIRST, SECOND):
        context.remove(sequence)
    swapped = step(context, (FIRST, [1, 200]), (SECOND, [1, 100]))
    assert abs(expected - swapped[::-1]).max() < 0.05
    assert abs(expected - swapped).max() > 0.1


def test_a_step_without_outputs_gives_no_logits(context: Context) -> None:
    batch = Batch(8)
    batch.add(FIRST, [1, 2, 3], 0, output=False)
    context.decode(batch)
    assert context.logits(batch).shape == (0, 260)
    assert context.length(FIRST) == 3


def _too_many_tokens(context: Context, batch: Batch) -> None:
    batch.add(FIRST, [5] * 33, 0, output=True)
    context.decode(batch)


def _no_token(context: Context, batch: Batch) -> None:
    context.decode(batch)


def _too_many_outputs(context: Context, batch: Batch) -> None:
    for position in range(4):
        batch.add(FIRST, [5], position, output=True)
    context.decode(batch)


def _token_beyond_the_vocabulary(context: Context, batch: Batch) -> None:
    batch.add(FIRST, [5, 260], 0, output=True)
    context.decode(batch)


def _negative_token(context: Context, batch: Batch) -> None:
    batch.add(FIRST, [-1, 5], 0, output=True)
    context.decode(batch)


def _sequence_beyond_the_last(context: Context, batch: Batch) -> None:
    batch.add(SequenceId(3), [5], 0, output=True)
    context.decode(batch)


def _negative_sequence(context: Context, batch: Batch) -> None:
    batch.add(SequenceId(-1), [5], 0, output=True)
    context.decode(batch)


def _gap_in_the_positions(context: Context, batch: Batch) -> None:
    step(context, (FIRST, [1, 2]))
    batch.add(FIRST, [5], 7, output=True)
    context.decode(batch)


def _position_before_the_end(context: Context, batch: Batch) -> None:
    step(context, (FIRST, [1, 2]))
    batch.add(FIRST, [5], 1, output=True)
    context.decode(batch)


def _begin_in_the_middle_of_an_empty_sequence(context: Context, batch: Batch) -> None:
    batch.add(FIRST, [5], 2, output=True)
    context.decode(batch)


def _remove_from_no_sequence(context: Context, batch: Batch) -> None:
    context.remove(SequenceId(3))


def _remove_from_a_negative_sequence(context: Context, batch: Batch) -> None:
    context.remove(SequenceId(-1))


def _length_of_no_sequence(context: Context, batch: Batch) -> None:
    context.length(SequenceId(3))


def _length_of_a_negative_sequence(context: Context, batch: Batch) -> None:
    context.length(SequenceId(-1))


def _logits_before_any_step(context: Context, batch: Batch) -> None:
    batch.add(FIRST, [5], 0, output=True)
    context.logits(batch)


def _logits_of_more_rows_than_were_asked_for(context: Context, batch: Batch) -> None:
    step(context, (FIRST, [1, 2]))
    batch.add(FIRST, [5], 2, output=True)
    batch.add(SECOND, [5], 0, output=True)
    context.logits(batch)


def _logits_of_a_step_that_failed(context: Context, batch: Batch) -> None:
    for _ in range(8):
        step(context, (FIRST, [5] * 32))
    batch.add(SECOND, [5], 0, output=True)
    with pytest.raises(DecodeError):
        context.decode(batch)
    context.logits(batch)


MISUSES: dict[Callable[[Context, Batch], None], str] = {
    _too_many_tokens: "from 1 to 32 tokens; got 33",
    _no_token: "from 1 to 32 tokens; got 0",
    _too_many_outputs: "logits for 3 rows at most; got 4",
    _token_beyond_the_vocabulary: "outside the vocabulary of 260",
    _negative_token: "outside the vocabulary of 260",
    _sequence_beyond_the_last: "from 0 to 2; got 3",
    _negative_sequence: "from 0 to 2; got -1",
    _gap_in_the_positions: "holds 2 tokens, and cannot go on at position 7",
    _position_before_the_end: "holds 2 tokens, and cannot go on at position 1",
    _begin_in_the_middle_of_an_empty_sequence: "holds 0 tokens, and cannot go on at position 2",
    _remove_from_no_sequence: "from 0 to 2; got 3",
    _remove_from_a_negative_sequence: "from 0 to 2; got -1",
    _length_of_no_sequence: "from 0 to 2; got 3",
    _length_of_a_negative_sequence: "from 0 to 2; got -1",
    _logits_before_any_step: "gave logits for 0 rows, not for 1",
    _logits_of_more_rows_than_were_asked_for: "gave logits for 1 rows, not for 2",
    _logits_of_a_step_that_failed: "gave logits for 0 rows, not for 1",
}


@pytest.mark.parametrize("misuse", MISUSES, ids=lambda misuse: misuse.__name__.strip("_"))
def test_a_misuse_is_refused_and_the_context_serves_on(
    model: Model, context: Context, misuse: Callable[[Context, Batch], None]
) -> None:
    with pytest.raises(ContextError, match=MISUSES[misuse]):
        misuse(context, Batch(64))
    context.remove(FIRST)
    untouched = Context(model, OPTIONS)
    assert abs(step(context, (FIRST, PROMPT)) - step(untouched, (FIRST, PROMPT))).max() < 0.05
    assert (context.length(FIRST), context.length(SECOND)) == (len(PROMPT), 0)
    untouched.close()


def test_a_full_context_tells_code_1_and_loses_nothing(context: Context) -> None:
    for _ in range(8):
        step(context, (FIRST, [5] * 32))
    with pytest.raises(DecodeError) as caught:
        step(context, (SECOND, [5]))
    assert caught.value.code == 1
    assert (context.length(FIRST), context.length(SECOND)) == (256, 0)
    context.remove(FIRST, 100)
    step(context, (SECOND, [5] * 30))
    assert (context.length(FIRST), context.length(SECOND)) == (100, 30)


def test_a_closed_context_is_not_used(model: Model) -> None:
    context = Context(model, OPTIONS)
    batch = Batch(8)
    batch.add(FIRST, [5], 0, output=True)
    context.close()
    context.close()
    uses: list[Callable[[], object]] = [
        lambda: context.decode(batch),
        lambda: context.logits(batch),
        lambda: context.remove(FIRST),
        lambda: context.length(FIRST),
    ]
    for use in uses:
        with pytest.raises(ContextError, match="the context is closed"):
            use()


@pytest.mark.parametrize("kind", list(Kind))
def test_removing_a_whole_sequence_leaves_the_others(models: Mapping[Kind, Model], kind: Kind) -> None:
    context = Context(models[kind], OPTIONS)
    step(context, (FIRST, PROMPT[:8]), (SECOND, PROMPT[:5]))
    assert context.remove(FIRST)
    assert context.remove(FIRST), "removing nothing"
    assert (context.length(FIRST), context.length(SECOND)) == (0, 5)
    again, other = step(context, (FIRST, PROMPT[:8]), (SECOND, [99]))
    context.remove(FIRST)
    context.remove(SECOND)
    assert abs(step(context, (FIRST, PROMPT[:8])) - again).max() < 0.05
    assert abs(step(context, (SECOND, [*PROMPT[:5], 99])) - other).max() < 0.05
    context.close()


@pytest.mark.parametrize("kind", [Kind.DENSE, Kind.SLIDING])
def test_attention_can_go_back_and_take_another_way(models: Mapping[Kind, Model], kind: Kind) -> None:
    # Further back than the sliding window reaches, and than a cache for no more than the window would.
    dice = random.Random(0)
    start, wrong, right = ([dice.randrange(3, 259) for _ in range(count)] for count in (100, 400, 5))
    context = Context(models[kind], dataclasses.replace(OPTIONS, cells=1024))
    for sequence, tokens in ((FIRST, start + wrong), (SECOND, start)):
        for i in range(0, len(tokens), 25):
            step(context, (sequence, tokens[i : i + 25]))
    assert context.remove(FIRST, len(start))
    assert context.length(FIRST) == len(start)
    there_and_back, straight = step(context, (FIRST, right), (SECOND, right))
    assert abs(there_and_back - straight).max() < 0.05
    context.close()


@pytest.mark.parametrize("kind", [Kind.RECURRENT, Kind.HYBRID])
def test_a_recurrent_state_cannot_go_back_and_keeps_everything(models: Mapping[Kind, Model], kind: Kind) -> None:
    context, other = Context(models[kind], OPTIONS), Context(models[kind], OPTIONS)
    for each in (context, other):
        step(each, (FIRST, PROMPT[:8]))
    for start in (1, 5, 7):
        assert not context.remove(FIRST, start)
    assert context.length(FIRST) == 8
    assert context.remove(FIRST, 8), "there is nothing after the end to remove"
    assert abs(step(context, (FIRST, [99])) - step(other, (FIRST, [99]))).max() < 0.05
    assert context.remove(FIRST)
    assert context.length(FIRST) == 0
    context.close()
    other.close()


def test_contexts_on_one_model_do_not_share_cells(model: Model, context: Context) -> None:
    other = Context(model, OPTIONS)
    step(context, (FIRST, PROMPT))
    assert other.length(FIRST) == 0
    other.close()
    assert context.length(FIRST) == len(PROMPT)

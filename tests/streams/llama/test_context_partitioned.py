"""Contexts whose sequences have equal parts of the cells, each for itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pytest

from llamalane.errors import ContextError, DecodeError
from llamalane.ids import SequenceId
from llamalane.streams.llama import Batch, Context, ContextOptions, Model
from tests.models.tiny_gguf import Kind
from tests.streams.llama.conftest import PROMPT, step

PART = 256
OPTIONS = ContextOptions(cells=4 * PART, sequences=4, partitioned=True, max_step_tokens=64, micro_batch=16, threads=1)
SOLO = dataclasses.replace(OPTIONS, cells=PART, sequences=1, partitioned=False)
FIRST, SECOND, THIRD, FOURTH = (SequenceId(i) for i in range(4))
ROUNDING = 0.05


@pytest.fixture
def partitioned(model: Model) -> Iterator[Context]:
    context = Context(model, OPTIONS)
    yield context
    context.close()


def fill(context: Context, sequence: SequenceId) -> None:
    """Fill a sequence's part to the last cell."""
    for _ in range(context.length(sequence), PART, 32):
        step(context, (sequence, [5] * 32))


@pytest.mark.parametrize(("cells", "sequences"), [(256, 2), (768, 2), (1024, 3), (0, 1), (-512, 2)])
def test_parts_that_are_no_multiple_of_256_are_refused(cells: int, sequences: int) -> None:
    with pytest.raises(ContextError, match=f"cells must be a multiple of {256 * sequences}; got {cells}"):
        dataclasses.replace(OPTIONS, cells=cells, sequences=sequences)


@pytest.mark.parametrize("kind", list(Kind))
def test_a_context_has_the_cells_that_were_asked_for(models: Mapping[Kind, Model], kind: Kind) -> None:
    context = Context(models[kind], OPTIONS)
    assert context.cells == OPTIONS.cells
    context.close()


def test_a_sequence_can_fill_its_part_and_no_more(partitioned: Context) -> None:
    step(partitioned, (SECOND, PROMPT))
    fill(partitioned, FIRST)
    with pytest.raises(DecodeError) as caught:
        step(partitioned, (FIRST, [5]))
    assert caught.value.code == 1
    assert (partitioned.length(FIRST), partitioned.length(SECOND)) == (PART, len(PROMPT))


def test_all_parts_can_be_full_at_once(partitioned: Context) -> None:
    for sequence in (THIRD, FIRST, FOURTH, SECOND):
        fill(partitioned, sequence)
    assert [partitioned.length(SequenceId(i)) for i in range(4)] == [PART] * 4
    partitioned.remove(THIRD, 100)
    step(partitioned, (THIRD, [5] * 32))


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize(
    "sequences",
    [(0, 1, 2, 3), (0, 2), (1, 3), (3,), (3, 2, 1, 0), (2, 0, 3)],
    ids=lambda sequences: "".join(map(str, sequences)),
)
def test_each_sequence_comes_out_as_if_it_were_alone(
    models: Mapping[Kind, Model], kind: Kind, sequences: Sequence[int]
) -> None:
    context = Context(models[kind], OPTIONS)
    alone = {sequence: Context(models[kind], SOLO) for sequence in sequences}
    lengths = [(5, 9, 1, 3), (1, 1, 1, 1), (1, 12, 1, 7), (1, 1, 1, 1), (13, 1, 1, 1)]
    for number, counts in enumerate(lengths):  # prompts, outputs, and both together
        rows = {
            sequence: [3 + (31 * sequence + 7 * number + i) % 250 for i in range(counts[sequence])]
            for sequence in sequences
        }
        together = step(context, *((SequenceId(sequence), tokens) for sequence, tokens in rows.items()))
        solo = np.concatenate([step(alone[sequence], (FIRST, tokens)) for sequence, tokens in rows.items()])
        assert abs(together - solo).max() < ROUNDING, f"step {number}"
    for each in (context, *alone.values()):
        each.close()


def test_a_prompt_in_several_passes_beside_an_output(model: Model, partitioned: Context) -> None:
    alone = [Context(model, SOLO) for _ in range(2)]
    prompt = [3 + i for i in range(50)]
    step(partitioned, (THIRD, PROMPT))
    step(alone[1], (FIRST, PROMPT))
    together = step(partitioned, (FIRST, prompt), (THIRD, [99]))
    solo = np.concatenate([step(alone[0], (FIRST, prompt)), step(alone[1], (FIRST, [99]))])
    assert abs(together - solo).max() < ROUNDING
    for each in alone:
        each.close()


def test_rows_without_logits_may_stand_between_others(model: Model, partitioned: Context) -> None:
    batch = Batch(64)
    batch.add(FIRST, PROMPT, 0, output=True)
    batch.add(SECOND, PROMPT[:3], 0, output=False)
    batch.add(FOURTH, PROMPT[::-1], 0, output=True)
    partitioned.decode(batch)
    logits = partitioned.logits(batch).copy()
    solo = Context(model, SOLO)
    for row, prompt in zip(logits, (PROMPT, PROMPT[::-1]), strict=True):
        assert abs(row - step(solo, (FIRST, prompt))).max() < ROUNDING
        solo.remove(FIRST)
    solo.close()

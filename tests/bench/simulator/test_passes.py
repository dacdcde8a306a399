"""Into which passes a step falls."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamalane.bench.simulator.passes import Part, Pass, attended, passes_of

parts_of_steps = st.dictionaries(
    st.integers(0, 11), st.tuples(st.integers(0, 600), st.one_of(st.just(1), st.integers(1, 90))), min_size=1
).map(lambda parts: [Part(sequence, *rest) for sequence, rest in parts.items()])


@given(parts=parts_of_steps, partitioned=st.booleans(), micro_batch=st.integers(1, 64))
def test_passes_compute_every_token_once(parts: list[Part], partitioned: bool, micro_batch: int) -> None:
    passes = passes_of(parts, partitioned=partitioned, micro_batch=micro_batch)
    assert sum(one.tokens for one in passes) == sum(part.tokens for part in parts)
    assert sum(one.cells for one in passes) == sum(attended(part.start, part.tokens) for part in parts)
    assert all(1 <= one.sequences <= one.tokens <= micro_batch for one in passes)


@given(parts=parts_of_steps)
def test_keeping_sequences_apart_never_saves_a_pass(parts: list[Part]) -> None:
    together = passes_of(parts, partitioned=False, micro_batch=64)
    assert len(together) <= len(passes_of(parts, partitioned=True, micro_batch=64))


@given(start=st.integers(0, 100), tokens=st.integers(0, 30))
def test_each_token_attends_to_all_before_it_and_to_itself(start: int, tokens: int) -> None:
    assert attended(start, tokens) == sum(position + 1 for position in range(start, start + tokens))


@pytest.mark.parametrize(
    ("parts", "passes"),
    [
        ([Part(0, 9, 1), Part(1, 4, 1), Part(2, 0, 1)], [Pass(3, 3, 16)]),
        ([Part(2, 0, 1), Part(0, 9, 1), Part(1, 4, 1)], [Pass(3, 3, 16)]),  # in whatever order they are named
        ([Part(0, 9, 1), Part(2, 4, 1), Part(3, 0, 1)], [Pass(1, 1, 10), Pass(2, 2, 6)]),
        ([Part(0, 9, 1), Part(1, 0, 8)], [Pass(2, 2, 11), Pass(1, 7, 35)]),
        ([Part(0, 9, 1), Part(4, 0, 8)], [Pass(1, 1, 10), Pass(1, 8, 36)]),
        ([Part(0, 0, 3), Part(1, 0, 5)], [Pass(2, 6, 12), Pass(1, 2, 9)]),
        ([Part(0, 0, 20)], [Pass(1, 16, 136), Pass(1, 4, 74)]),
    ],
    ids=["one", "sorted", "gap", "chunk beside a row", "chunk apart", "two chunks", "more than a micro-batch"],
)
def test_a_pass_takes_equally_many_tokens_of_consecutive_sequences(parts: list[Part], passes: list[Pass]) -> None:
    assert passes_of(parts, partitioned=True, micro_batch=16) == passes


def test_shared_cells_take_a_step_in_one_pass() -> None:
    parts = [Part(0, 9, 1), Part(4, 0, 8)]
    assert passes_of(parts, partitioned=False, micro_batch=16) == [Pass(2, 9, 46)]
    assert passes_of(parts, partitioned=False, micro_batch=4) == [Pass(2, 4, 16), Pass(1, 4, 22), Pass(1, 1, 8)]

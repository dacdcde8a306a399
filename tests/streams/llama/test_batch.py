from __future__ import annotations

import numpy as np
import pytest

from llamalane.errors import ContextError
from llamalane.ids import SequenceId
from llamalane.streams.llama import Batch


def test_llama_cpp_sees_what_was_added() -> None:
    batch = Batch(8)
    batch.add(SequenceId(2), [10, 11, 12], 5, output=True)
    batch.add(SequenceId(0), [20, 21], 0, output=False)
    struct = batch.struct
    assert struct.n_tokens == batch.size == 5
    assert [struct.token[i] for i in range(5)] == [10, 11, 12, 20, 21]
    assert [struct.pos[i] for i in range(5)] == [5, 6, 7, 0, 1]
    assert [struct.n_seq_id[i] for i in range(5)] == [1] * 5
    assert [struct.seq_id[i][0] for i in range(5)] == [2, 2, 2, 0, 0]
    assert [struct.logits[i] for i in range(5)] == [0, 0, 1, 0, 0]
    assert batch.outputs == 1
    assert np.array_equal(batch.tokens, [10, 11, 12, 20, 21])


def test_a_cleared_batch_remembers_nothing() -> None:
    batch = Batch(4)
    batch.add(SequenceId(1), [1, 2, 3, 4], 0, output=True)
    batch.clear()
    assert (batch.size, batch.outputs) == (0, 0)
    batch.add(SequenceId(0), [7, 8, 9, 10], 3, output=False)
    struct = batch.struct
    assert struct.n_tokens == 4
    assert [struct.logits[i] for i in range(4)] == [0] * 4
    assert [struct.seq_id[i][0] for i in range(4)] == [0] * 4


@pytest.mark.parametrize("count", [0, 3, 1000])
def test_tokens_that_do_not_fit_are_refused_and_nothing_is_added(count: int) -> None:
    batch = Batch(4)
    batch.add(SequenceId(0), [1, 2], 0, output=True)
    with pytest.raises(ContextError, match=f"{count} tokens do not fit a batch with 2 of 4 taken"):
        batch.add(SequenceId(1), [1] * count, 0, output=True)
    assert (batch.size, batch.outputs) == (2, 1)
    batch.add(SequenceId(1), [3, 4], 0, output=True)
    assert (batch.size, batch.outputs) == (4, 2)


def test_logits_are_wanted_after_so_many_of_the_last_tokens() -> None:
    batch = Batch(8)
    batch.add(SequenceId(0), [1, 2], 0, output=0)
    batch.add(SequenceId(1), [1, 2, 3], 0, output=2)
    batch.add(SequenceId(2), [1, 2], 0, output=2)
    struct = batch.struct
    assert [struct.logits[i] for i in range(batch.size)] == [0, 0, 0, 1, 1, 1, 1]
    assert batch.outputs == 4


@pytest.mark.parametrize("output", [-1, 3])
def test_no_token_gives_logits_twice(output: int) -> None:
    batch = Batch(4)
    with pytest.raises(ContextError, match=f"2 tokens cannot give logits for {output}"):
        batch.add(SequenceId(0), [1, 2], 0, output=output)
    assert (batch.size, batch.outputs) == (0, 0)


@pytest.mark.parametrize("token", [2**31, 2**80, -(2**31) - 1])
def test_a_token_that_no_vocabulary_holds_is_refused(token: int) -> None:
    batch = Batch(4)
    with pytest.raises(ContextError, match="outside every vocabulary"):
        batch.add(SequenceId(0), [1, token], 0, output=True)
    assert (batch.size, batch.outputs) == (0, 0)


@pytest.mark.parametrize("capacity", [0, -1])
def test_a_batch_has_room_for_something(capacity: int) -> None:
    with pytest.raises(ContextError, match=f"at least 1 token; got {capacity}"):
        Batch(capacity)

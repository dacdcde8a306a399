"""Rows that take the beginning of their prompt from others, by a running set over cells that hold tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest

from llamalane.ids import RequestId, SequenceId
from llamalane.streams import Change, Join, Move, Parking, Restore, SharedPrefix, Stow
from llamalane.streams.llama import Batch, Sampler
from llamalane.streams.parts import Parts
from llamalane.streams.row import Row
from llamalane.streams.running_set import RunningSet
from tests.streams.fakes import FakeSampler
from tests.streams.plans import join, leave, park, plan, trim

PROMPT = list(range(10, 22))
A, B, C, D = (SequenceId(number) for number in range(4))


class TokenCells:
    """Cells that are the tokens which they were computed for."""

    def __init__(self) -> None:
        self.tokens: dict[SequenceId, list[int]] = {}

    def remove(self, sequence: SequenceId, start: int = 0) -> bool:
        del self.tokens.setdefault(sequence, [])[start:]
        return True

    def length(self, sequence: SequenceId) -> int:
        return len(self.tokens.get(sequence, []))

    def copy(self, source: SequenceId, target: SequenceId, length: int) -> bool:
        assert not self.tokens.get(target)
        self.tokens[target] = self.tokens[source][:length]
        return True

    def merge(self, source: SequenceId, target: SequenceId, start: int, end: int) -> None:
        assert self.tokens[source][start:end] == self.tokens[target][start:end]

    def saving(self, sequence: SequenceId) -> Parts[bytearray]:
        yield from ()
        return bytearray(self.tokens[sequence])

    def restoring(self, sequence: SequenceId, data: bytearray) -> Parts[bool]:
        yield from ()
        self.tokens[sequence] = list(data)
        return True


class Rig:
    def __init__(self) -> None:
        self.rows = RunningSet(lambda _: cast(Sampler, FakeSampler()))
        self.cells = TokenCells()
        self.batch = Batch(64)
        self.version = 0

    def apply(self, *changes: Change) -> None:
        self.version += 1
        self.rows.apply(plan(self.version, *changes), self.cells)

    def step(self, budget: int = 64) -> None:
        self.rows.prefill_tokens = budget
        work = self.rows.fill(self.batch)
        for row, count in work.computed:
            self.cells.tokens.setdefault(row.join.sequence, []).extend(row.tokens[row.computed : row.computed + count])
        self.rows.advance(work)
        self.rows.share_prefixes(self.cells)

    def row(self, request: str) -> Row:
        (row,) = (row for row in self.rows if row.join.request == request)
        return row


@pytest.fixture
def rig() -> Rig:
    return Rig()


def follower(request: str, sequence: SequenceId, source: SequenceId, length: int, leader: str | None = None) -> Join:
    share = SharedPrefix(source, length, None if leader is None else RequestId(leader))
    return replace(join(request, sequence, PROMPT), share=share)


def copied(rig: Rig) -> dict[str, int]:
    return {copy.request: copy.length for copy in rig.rows.take_news().copied}


TAKES_THE_SOURCE: dict[str, tuple[Change, ...]] = {
    "trimmed": (trim(A),),
    "moved and restored over": (Move(A, D), Restore(1, A, lambda: bytearray([99] * 12), 12)),
    "stowed": (Stow(1, A),),
    "joined by somebody else": (join("stranger", A, [99] * 12),),
}


@pytest.mark.parametrize("changes", TAKES_THE_SOURCE.values(), ids=TAKES_THE_SOURCE.keys())
def test_a_prefix_is_taken_before_a_later_edit_of_the_plan_uses_its_sequence(
    rig: Rig, changes: tuple[Change, ...]
) -> None:
    rig.cells.tokens[A] = list(PROMPT)
    rig.apply(follower("b", B, A, 8), *changes)
    assert rig.cells.tokens[B] == PROMPT[:8]
    assert rig.row("b").computed == 8
    assert copied(rig) == {"b": 8}


@pytest.mark.parametrize("how", Parking)
def test_a_prefix_is_taken_before_its_request_is_parked_in_the_same_plan(rig: Rig, how: Parking) -> None:
    rig.apply(join("a", A, PROMPT))
    rig.step()
    rig.apply(follower("b", B, A, 8, "a"), park("a", A, how))
    assert rig.cells.tokens[B] == PROMPT[:8]


def test_a_row_waits_until_its_leader_has_computed_the_prefix(rig: Rig) -> None:
    rig.apply(join("a", A, PROMPT), follower("b", B, A, 8, "a"))
    rig.step(budget=5)
    assert rig.row("b").ready == 0
    rig.step(budget=5)
    assert (rig.row("b").computed, rig.row("b").ready) == (8, 4)
    assert copied(rig) == {"b": 8}


def test_when_the_leader_leaves_one_follower_goes_on_and_the_others_wait_for_it(rig: Rig) -> None:
    rig.apply(join("a", A, PROMPT), follower("b", B, A, 6, "a"), follower("c", C, A, 9, "a"))
    rig.step(budget=4)
    rig.apply(leave("a"))
    assert copied(rig) == {"c": 4}
    assert (rig.row("b").ready, rig.row("c").ready) == (0, 8)
    rig.step(budget=4)
    assert rig.row("b").computed == 6
    assert rig.cells.tokens[B] == PROMPT[:6]


def test_when_a_leader_leaves_that_waits_itself_its_follower_waits_for_the_same(rig: Rig) -> None:
    rig.apply(join("a", A, PROMPT), follower("b", B, A, 8, "a"), follower("c", C, B, 10, "b"))
    rig.step(budget=2)
    rig.apply(leave("b"))
    assert rig.row("c").ready == 0
    rig.step(budget=8)
    assert rig.row("c").computed == 8
    assert rig.cells.tokens[C] == PROMPT[:8]


def test_what_a_source_has_lost_is_computed(rig: Rig) -> None:
    rig.cells.tokens[A] = PROMPT[:3]
    rig.apply(follower("b", B, A, 8))
    assert (rig.row("b").computed, rig.row("b").ready) == (3, 9)
    assert copied(rig) == {"b": 3}

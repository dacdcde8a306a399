"""Which lane a request is offered, and which conversations find their cells."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from llamalane.bench.simulator.places import ASK_ALL, Places


@dataclass
class Oracle:
    """Knows the free places of every lane, and looks at all of them."""

    free: list[int]
    taken: list[int] = field(default_factory=list)

    def emptiest(self) -> int:
        return max(range(len(self.free)), key=lambda lane: self.free[lane])


class ManyLanes(RuleBasedStateMachine):
    """Places of more lanes than are looked at one by one come and go."""

    @initialize(places=st.lists(st.integers(1, 3), min_size=ASK_ALL + 1, max_size=ASK_ALL + 6))
    def begin(self, places: list[int]) -> None:
        self.places = Places(places, [2 * count for count in places], cells=100)
        self.oracle = Oracle(list(places))

    @precondition(lambda self: any(self.oracle.free))
    @rule()
    def take(self) -> None:
        (lane,) = self.places.candidates("")
        assert lane == self.oracle.emptiest()
        assert self.places.take(lane, "", tokens=10, cells=20) == 0
        self.oracle.free[lane] -= 1
        self.oracle.taken.append(lane)

    @precondition(lambda self: self.oracle.taken)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        lane = data.draw(st.sampled_from(self.oracle.taken))
        self.oracle.taken.remove(lane)
        self.oracle.free[lane] += 1
        self.places.give_back(lane, "", kept=19, cells=20)

    @invariant()
    def nothing_is_lost(self) -> None:
        if hasattr(self, "places"):
            assert self.places.free == sum(self.oracle.free)
            assert [self.places.free_on(lane) for lane in range(len(self.oracle.free))] == self.oracle.free
            if not self.places.free:
                assert self.places.candidates("") == []


TestManyLanes = ManyLanes.TestCase
TestManyLanes.settings = settings(max_examples=40, stateful_step_count=60, deadline=None)


def test_of_few_lanes_all_that_have_a_free_place_are_candidates() -> None:
    places = Places([1, 3, 2], [2, 6, 4], cells=100)
    assert places.candidates("") == [0, 1, 2]
    places.take(0, "", tokens=10, cells=20)
    assert places.candidates("") == [1, 2]


def test_of_many_lanes_the_one_with_a_conversation_s_cells_is_the_candidate() -> None:
    places = Places([2] * (ASK_ALL + 1), [4] * (ASK_ALL + 1), cells=100)
    places.take(1, "talk", tokens=10, cells=20)
    places.take(1, "", tokens=10, cells=20)
    places.give_back(1, "talk", kept=19, cells=20)
    assert places.candidates("talk") == [1]
    assert places.take(1, "talk", tokens=15, cells=40) == 14  # never the last one
    assert places.candidates("talk") == [0]  # they are used


def test_a_conversation_that_goes_on_elsewhere_keeps_its_cells_until_newer_ones_are_there() -> None:
    places = Places([2, 2], [4, 4], cells=100)
    places.take(1, "talk", tokens=10, cells=20)
    places.give_back(1, "talk", kept=19, cells=20)
    assert places.take(0, "talk", tokens=30, cells=40) == 0
    assert places.cached(1, "talk", tokens=30) == 19
    places.give_back(0, "talk", kept=39, cells=40)
    assert places.cached(1, "talk", tokens=60) == 0
    assert places.cached(0, "talk", tokens=60) == 39


def test_only_the_newest_cells_of_a_conversation_are_kept() -> None:
    places = Places([2, 2], [4, 4], cells=100)
    for lane, kept in ((0, 19), (1, 39)):
        places.take(lane, "talk", tokens=10, cells=kept + 1)
        places.give_back(lane, "talk", kept=kept, cells=kept + 1)
    assert places.cached(0, "talk", tokens=100) == 0
    assert places.take(1, "talk", tokens=100, cells=110) == 39


def test_kept_cells_give_way_to_running_requests_the_oldest_first() -> None:
    places = Places([4], [8], cells=100)
    for session in ("old", "new"):
        places.take(0, session, tokens=10, cells=100)
        places.give_back(0, session, kept=99, cells=100)
    for cells in (150, 60):  # 190 cells are left, then 130
        places.take(0, "", tokens=10, cells=cells)
    assert places.take(0, "new", tokens=200, cells=50) == 99
    assert places.take(0, "old", tokens=200, cells=50) == 0


def test_no_more_conversations_are_kept_than_there_are_free_sequences() -> None:
    places = Places([2], [3], cells=100)
    for session in ("old", "new", "newest"):
        places.take(0, session, tokens=10, cells=20)
        places.give_back(0, session, kept=19, cells=20)
    assert places.sequences_on(0) == 3
    places.take(0, "", tokens=10, cells=20)
    assert places.sequences_on(0) == 2
    assert places.take(0, "old", tokens=30, cells=40) == 0
    places.pause(0)
    assert places.take(0, "newest", tokens=30, cells=40) == 19

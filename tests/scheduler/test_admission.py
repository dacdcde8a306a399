"""Who gets the next free place: the guaranteed share and the reserved places."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llamalane.ids import Level
from llamalane.scheduler.admission import AdmissionPolicy, Choice
from llamalane.scheduler.priority import LEVELS
from llamalane.scheduler.queue import WaitingQueue
from llamalane.scheduler.request import Request
from tests.scheduler.building import RequestMaker
from tests.scheduler.test_queue import bounded, put

Reserve = dict[Level, int]

reserves = st.dictionaries(st.sampled_from(LEVELS), st.integers(0, 2), max_size=3)
arrival_levels = st.lists(st.sampled_from(LEVELS), max_size=4)
rounds = st.lists(st.tuples(arrival_levels, st.booleans()), min_size=1, max_size=60)
"""For each round, the levels of those who arrive, and whether a running request ends."""


@dataclass
class Places:
    """As many places as `size`, and the requests on them; admits as the scheduler does."""

    size: int
    policy: AdmissionPolicy
    queue: WaitingQueue[Request]

    def __post_init__(self) -> None:
        self.running: list[Request] = []

    @property
    def free(self) -> int:
        return self.size - len(self.running)

    def choose(self) -> Choice[Request] | None:
        return self.policy.choose(self.queue, self.free, Counter(request.level for request in self.running))

    def admit(self) -> Choice[Request] | None:
        choice = self.choose()
        if choice is not None:
            self.policy.admitted(choice)
            self.queue.remove(choice.request)
            self.running.append(choice.request)
        return choice

    def kept_free(self, reserve: Reserve, better_than: int) -> int:
        """How many places must stay free for levels better than one, counted level by level."""
        most = 0
        for bound in range(1, better_than):
            promised = sum(count for level, count in reserve.items() if level <= bound)
            most = max(most, promised - sum(request.level <= bound for request in self.running))
        return most


@given(share=st.integers(0, 5), reserve=reserves, rounds=rounds)
@settings(deadline=None)
def test_reserved_places_stay_free_for_better_levels_and_no_others_do(
    share: int, reserve: Reserve, rounds: list[tuple[list[Level], bool]]
) -> None:
    maker, size = RequestMaker(), sum(reserve.values()) + 2
    places = Places(size, AdmissionPolicy(share, reserve), bounded())
    for arriving, one_ends in rounds:
        for level in arriving:
            put(places.queue, maker.make(level))
        if one_ends and places.running:
            places.running.pop(0)
        while (choice := places.admit()) is not None:
            assert places.free >= places.kept_free(reserve, choice.request.level)
        for head in places.queue.heads():
            assert places.free <= places.kept_free(reserve, head.next.level), "a place is left empty for nobody"


@given(share=st.integers(2, 6), urgent=st.integers(20, 60))
def test_one_admission_in_so_many_goes_to_whoever_has_waited_longest(share: int, urgent: int) -> None:
    maker = RequestMaker()
    places = Places(1, AdmissionPolicy(share, {}), bounded())
    for _ in range(urgent):
        put(places.queue, maker.make(5))
    choices = []
    for _ in range(urgent):
        put(places.queue, maker.make(1))
        places.running.clear()
        choices.append(places.admit())
    by_share = [choice is not None and choice.by_share for choice in choices]
    assert by_share == [number % share == 0 for number in range(1, urgent + 1)]
    assert all(choice and choice.request.level == (5 if choice.by_share else 1) for choice in choices)


def test_without_a_share_urgent_work_goes_first_for_ever() -> None:
    maker = RequestMaker()
    places = Places(1, AdmissionPolicy(0, {}), bounded())
    put(places.queue, maker.make(5))
    for _ in range(100):
        put(places.queue, maker.make(1))
        places.running.clear()
        choice = places.admit()
        assert choice is not None
        assert choice.request.level == 1
        assert not choice.by_share


def test_a_reserved_place_is_not_given_away_by_share() -> None:
    maker = RequestMaker()
    places = Places(1, AdmissionPolicy(1, {Level(1): 1}), bounded())
    batch = put(places.queue, maker.make(5))
    assert places.choose() is None
    urgent = put(places.queue, maker.make(1))
    choice = places.admit()
    assert choice is not None
    assert choice.request is urgent
    assert list(places.queue) == [batch]


def test_a_share_that_is_due_waits_for_a_place_that_its_request_may_take() -> None:
    maker = RequestMaker()
    places = Places(2, AdmissionPolicy(2, {Level(1): 1}), bounded())
    places.running.append(maker.make(5))
    batch = put(places.queue, maker.make(5))
    for _ in range(5):
        put(places.queue, maker.make(1))
    assert places.admit() is not None
    for _ in range(2):  # the share is due, but the free place is reserved
        places.running.pop()
        choice = places.admit()
        assert choice is not None
        assert choice.request.level == 1
    places.running.pop(0)
    assert places.admit() == Choice(batch, by_share=True, open_to=Level(5))


def test_a_middle_level_does_not_wait_behind_one_that_may_not_take_the_place() -> None:
    """The place that comes free is open to level 2 only; level 5 is older, and waits for the other one."""
    maker = RequestMaker()
    places = Places(2, AdmissionPolicy(4, {Level(2): 1}), bounded())
    places.running.append(maker.make(5))
    put(places.queue, maker.make(5))
    agent = put(places.queue, maker.make(2))
    admissions = 0
    while agent.id in places.queue:
        put(places.queue, maker.make(1))
        choice = places.admit()
        assert choice is not None
        assert choice.open_to == 2
        places.running.remove(choice.request)
        admissions += 1
    assert admissions == 4


def test_admissions_to_reserved_places_use_up_no_share_of_levels_that_may_not_take_them() -> None:
    """After each admission to the open place come three to the reserved one, the last of them by share."""
    maker = RequestMaker()
    places = Places(2, AdmissionPolicy(4, {Level(1): 1}), bounded())
    batch = put(places.queue, maker.make(5))
    for _ in range(3):
        put(places.queue, maker.make(2))
        choice = places.admit()
        assert choice is not None
        assert (choice.request.level, choice.open_to) == (2, 5)
        for _ in range(3):
            put(places.queue, maker.make(1))
            choice = places.admit()
            assert choice is not None
            assert (choice.request.level, choice.open_to) == (1, 1)
            places.running.remove(choice.request)
        places.running.clear()
    put(places.queue, maker.make(2))
    assert places.admit() == Choice(batch, by_share=True, open_to=Level(5))


def test_the_most_urgent_one_may_want_a_place_that_is_not_there() -> None:
    maker = RequestMaker()
    places = Places(0, AdmissionPolicy(1, {}), bounded())
    assert places.policy.most_urgent(places.queue) is None
    for level in (5, 2, 3):
        put(places.queue, maker.make(level))
    urgent = places.policy.most_urgent(places.queue)
    assert urgent is not None
    assert (urgent.request.level, urgent.by_share, urgent.open_to) == (2, False, 2)


def test_the_share_goes_to_the_oldest_whosever_turn_it_is() -> None:
    maker = RequestMaker()
    places = Places(2, AdmissionPolicy(2, {}), bounded())
    old = put(places.queue, maker.make(3, tenant="one"))
    for _ in range(2):
        put(places.queue, maker.make(3, tenant="two"))
    places.queue.fairness.charge(Level(3), "one", prompt_tokens=1000)
    first, second = places.admit(), places.admit()
    assert first is not None
    assert (first.request.tenant, first.by_share) == ("two", False)
    assert second == Choice(old, by_share=True, open_to=Level(5))


@pytest.mark.parametrize("free", [0, -1])
def test_nobody_is_chosen_without_a_free_place(free: int) -> None:
    queue = bounded()
    put(queue, RequestMaker().make(1))
    assert AdmissionPolicy(1, {}).choose(queue, free, {}) is None


def test_nobody_is_chosen_from_an_empty_queue() -> None:
    assert AdmissionPolicy(1, {}).choose(bounded(), 8, {}) is None


def test_running_requests_of_a_better_level_use_up_the_reserve() -> None:
    maker = RequestMaker()
    places = Places(4, AdmissionPolicy(0, {Level(2): 2}), bounded())
    places.running = [maker.make(1), maker.make(1)]
    for _ in range(2):
        put(places.queue, maker.make(5))
    assert places.admit() is not None
    assert places.admit() is not None
    assert places.free == 0

"""Who gets the next free place: the guaranteed share and the reserved places."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llamalane.ids import LEAST_URGENT, Level
from llamalane.scheduler.admission import AdmissionPolicy, Choice
from llamalane.scheduler.priority import LEVELS
from llamalane.scheduler.queue import WaitingQueue
from llamalane.scheduler.request import Request
from tests.scheduler.building import RequestMaker
from tests.scheduler.test_queue import put, unbounded

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
    queue: WaitingQueue

    def __post_init__(self) -> None:
        self.running: list[Request] = []

    @property
    def free(self) -> int:
        return self.size - len(self.running)

    def choose(self) -> Choice | None:
        return self.policy.choose(self.queue, self.free, Counter(request.level for request in self.running))

    def admit(self) -> Choice | None:
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


@given(share=st.integers(1, 6), reserve=reserves, rounds=rounds)
@settings(deadline=None)
def test_everybody_is_admitted_within_the_bound_of_the_guaranteed_share(
    share: int, reserve: Reserve, rounds: list[tuple[list[Level], bool]]
) -> None:
    """A request with r older ones waiting sees at most share × (r + 1) admissions to places that nobody reserved."""
    maker, size = RequestMaker(), sum(reserve.values()) + 2
    places = Places(size, AdmissionPolicy(share, reserve), unbounded())
    bounds: dict[Request, int] = {}
    seen: Counter[Request] = Counter()
    drain: list[tuple[list[Level], bool]] = [([Level(1)], True)] * (3 * share)
    for arriving, one_ends in rounds + drain:
        for level in arriving:
            request = put(places.queue, maker.make(level))
            bounds[request] = share * len(places.queue)
        if one_ends and places.running:
            places.running.pop(0)
        while True:
            unreserved = places.free > places.kept_free(reserve, LEAST_URGENT + 1)
            waiting = list(places.queue)
            if places.admit() is None:
                break
            if unreserved:
                seen.update(waiting)
    assert all(count <= bounds[request] for request, count in seen.items())


@given(share=st.integers(0, 5), reserve=reserves, rounds=rounds)
@settings(deadline=None)
def test_reserved_places_stay_free_for_better_levels_and_no_others_do(
    share: int, reserve: Reserve, rounds: list[tuple[list[Level], bool]]
) -> None:
    maker, size = RequestMaker(), sum(reserve.values()) + 2
    places = Places(size, AdmissionPolicy(share, reserve), unbounded())
    for arriving, one_ends in rounds:
        for level in arriving:
            put(places.queue, maker.make(level))
        if one_ends and places.running:
            places.running.pop(0)
        while (choice := places.admit()) is not None:
            assert places.free >= places.kept_free(reserve, choice.request.level)
        for head in places.queue.heads():
            assert places.free <= places.kept_free(reserve, head.level), "a place is left empty for nobody"


@given(share=st.integers(2, 6), urgent=st.integers(20, 60))
def test_one_admission_in_so_many_goes_to_whoever_has_waited_longest(share: int, urgent: int) -> None:
    maker = RequestMaker()
    places = Places(1, AdmissionPolicy(share, {}), unbounded())
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
    places = Places(1, AdmissionPolicy(0, {}), unbounded())
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
    places = Places(1, AdmissionPolicy(1, {Level(1): 1}), unbounded())
    batch = put(places.queue, maker.make(5))
    assert places.choose() is None
    urgent = put(places.queue, maker.make(1))
    choice = places.admit()
    assert choice is not None
    assert choice.request is urgent
    assert list(places.queue) == [batch]


def test_a_share_that_is_due_waits_for_a_place_that_its_request_may_take() -> None:
    maker = RequestMaker()
    places = Places(2, AdmissionPolicy(2, {Level(1): 1}), unbounded())
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
    assert places.admit() == Choice(batch, by_share=True)


@pytest.mark.parametrize("free", [0, -1])
def test_nobody_is_chosen_without_a_free_place(free: int) -> None:
    queue = unbounded()
    put(queue, RequestMaker().make(1))
    assert AdmissionPolicy(1, {}).choose(queue, free, {}) is None


def test_nobody_is_chosen_from_an_empty_queue() -> None:
    assert AdmissionPolicy(1, {}).choose(unbounded(), 8, {}) is None


def test_running_requests_of_a_better_level_use_up_the_reserve() -> None:
    maker = RequestMaker()
    places = Places(4, AdmissionPolicy(0, {Level(2): 2}), unbounded())
    places.running = [maker.make(1), maker.make(1)]
    for _ in range(2):
        put(places.queue, maker.make(5))
    assert places.admit() is not None
    assert places.admit() is not None
    assert places.free == 0

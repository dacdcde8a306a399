"""The order in which requests wait, and the bounds of the queue."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from llamalane.clock import VirtualClock
from llamalane.errors import QueueFullError
from llamalane.ids import Level
from llamalane.scheduler.admission import AdmissionPolicy
from llamalane.scheduler.priority import LEVELS, Aging
from llamalane.scheduler.queue import LevelQueue, WaitingQueue
from llamalane.scheduler.request import Request
from tests.scheduler.building import RequestMaker

INTERVAL = 32
"""A power of two, so that the oracle's divisions are exact."""


def unbounded() -> WaitingQueue:
    return WaitingQueue(max_requests=10**9, max_tokens=10**9, retry_after=lambda: 1.5)


def put(queue: WaitingQueue, request: Request) -> Request:
    with queue.reserve_nowait() as slot:
        slot.fill(request)
    return request


def pop(queue: WaitingQueue) -> Request:
    """Take out whoever is next when nothing but urgency counts."""
    choice = AdmissionPolicy(share=0, reserve={}).choose(queue, free=1, running={})
    assert choice is not None
    queue.remove(choice.request)
    return choice.request


@dataclass
class Oracle:
    """Knows who is next by working out everybody's priority anew whenever it is asked."""

    ceiling: int
    waiting: list[Request] = field(default_factory=list)

    def next(self, now: float) -> Request:
        return min(self.waiting, key=lambda request: self.place(request, now))

    def place(self, request: Request, now: float) -> tuple[float, float, int]:
        if request.level < self.ceiling:  # strict
            return request.level, request.arrival, request.order
        priority = max(self.ceiling, request.level - (now - request.arrival) / INTERVAL)
        at_ceiling_since = request.arrival + (request.level - self.ceiling) * INTERVAL
        return priority, at_ceiling_since if priority == self.ceiling else 0, request.order


class OrderOfWaiting(RuleBasedStateMachine):
    """Requests come, are admitted, give up and come back after a lane's failure while time passes."""

    @initialize(ceiling=st.sampled_from(LEVELS))
    def begin(self, ceiling: int) -> None:
        self.clock = VirtualClock()
        self.maker = RequestMaker(Aging(ceiling, INTERVAL))
        self.queue = unbounded()
        self.oracle = Oracle(ceiling)
        self.admitted: list[Request] = []

    @rule(level=st.sampled_from(LEVELS), length=st.integers(1, 5))
    def arrive(self, level: Level, length: int) -> None:
        request = self.maker.make(level, self.clock.now(), prompt="x" * length)
        self.oracle.waiting.append(put(self.queue, request))

    @rule(seconds=st.integers(0, 3 * INTERVAL))
    def wait(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @precondition(lambda self: self.oracle.waiting)
    @rule()
    def admit(self) -> None:
        expected = self.oracle.next(self.clock.now())
        assert pop(self.queue) is expected
        self.oracle.waiting.remove(expected)
        self.admitted.append(expected)

    @precondition(lambda self: self.oracle.waiting)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.oracle.waiting))
        self.queue.remove(request)
        self.oracle.waiting.remove(request)

    @precondition(lambda self: self.admitted)
    @rule(data=st.data())
    def come_back(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.admitted))
        self.admitted.remove(request)
        self.queue.requeue(request)
        self.oracle.waiting.append(request)

    @invariant()
    def everybody_is_counted(self) -> None:
        if not hasattr(self, "queue"):
            return
        waiting = self.oracle.waiting
        assert len(self.queue) == len(waiting)
        assert {request.id for request in self.queue} == {request.id for request in waiting}
        assert self.queue.tokens == sum(len(request.tokens) for request in waiting)
        for level, size in self.queue.sizes.items():
            assert size == sum(request.level == level for request in waiting)

    def teardown(self) -> None:
        while self.oracle.waiting:
            self.admit()
        assert not list(self.queue.heads())


TestOrderOfWaiting = OrderOfWaiting.TestCase
TestOrderOfWaiting.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(levels=st.lists(st.sampled_from(LEVELS), min_size=2, max_size=12))
def test_equals_are_first_come_first_served(levels: list[Level]) -> None:
    maker, queue = RequestMaker(), unbounded()
    arrived = [put(queue, maker.make(level)) for level in levels]
    served = [pop(queue) for _ in arrived]
    for level in LEVELS:
        assert [r for r in served if r.level == level] == [r for r in arrived if r.level == level]


def test_urgent_work_overtakes_what_has_not_reached_the_ceiling() -> None:
    maker, queue = RequestMaker(Aging(ceiling=3, interval=INTERVAL)), unbounded()
    batch = put(queue, maker.make(5, arrival=0))
    normal = put(queue, maker.make(3, arrival=2 * INTERVAL - 1))
    late = put(queue, maker.make(3, arrival=2 * INTERVAL + 1))
    interactive = put(queue, maker.make(1, arrival=1000 * INTERVAL))
    assert [pop(queue) for _ in range(4)] == [interactive, normal, batch, late]


def test_a_level_forgets_those_that_left_from_its_middle() -> None:
    maker, level = RequestMaker(), LevelQueue()
    requests = [maker.make() for _ in range(1000)]
    for request in requests:
        level.push(request)
    for request in requests[1:]:
        level.remove(request)
    assert level.head() is requests[0]
    assert len(level._heap) < 100, "the dead outnumber the living"


def test_the_queue_is_bounded_in_requests() -> None:
    maker, queue = RequestMaker(), WaitingQueue(2, 10**9, retry_after=lambda: 7.5)
    first = put(queue, maker.make())
    put(queue, maker.make())
    with pytest.raises(QueueFullError, match="2 requests") as caught:
        queue.reserve_nowait()
    assert (caught.value.reason, caught.value.limit, caught.value.retry_after) == ("requests", 2, 7.5)
    queue.remove(first)
    put(queue, maker.make())


def test_a_slot_counts_until_it_is_filled_or_given_back() -> None:
    maker, queue = RequestMaker(), WaitingQueue(1, 10**9, retry_after=lambda: 1.0)
    with queue.reserve_nowait(), pytest.raises(QueueFullError):
        queue.reserve_nowait()
    with pytest.raises(ZeroDivisionError), queue.reserve_nowait():
        raise ZeroDivisionError  # as when a prompt turns out to be invalid
    with queue.reserve_nowait() as slot:
        slot.fill(maker.make())
        with pytest.raises(QueueFullError):
            queue.reserve_nowait()
    assert len(queue) == 1
    with pytest.raises(QueueFullError):
        queue.reserve_nowait()


def test_the_queue_is_bounded_in_tokens() -> None:
    maker, queue = RequestMaker(), WaitingQueue(10, max_tokens=10, retry_after=lambda: 2.5)
    first = put(queue, maker.make(prompt="x" * 6))
    put(queue, maker.make(prompt="x" * 4))
    with pytest.raises(QueueFullError, match="10 tokens") as caught:
        put(queue, maker.make(prompt="x"))
    assert (caught.value.reason, caught.value.limit, caught.value.retry_after) == ("tokens", 10, 2.5)
    assert queue.tokens == 10
    queue.remove(first)
    for _ in range(8 - len(queue)):  # the slot of the refused request came back
        put(queue, maker.make(prompt=""))
    put(queue, maker.make(prompt="x" * 6))


def test_a_prompt_larger_than_the_bound_may_wait_alone() -> None:
    maker, queue = RequestMaker(), WaitingQueue(10, max_tokens=10, retry_after=lambda: 1.0)
    huge = put(queue, maker.make(prompt="x" * 11))
    with pytest.raises(QueueFullError):
        put(queue, maker.make(prompt="x"))
    queue.remove(huge)
    put(queue, maker.make(prompt="x"))
    with pytest.raises(QueueFullError):
        put(queue, maker.make(prompt="x" * 11))


def test_coming_back_ignores_the_bounds_and_takes_the_old_place() -> None:
    maker, queue = RequestMaker(), WaitingQueue(2, max_tokens=12, retry_after=lambda: 1.0)
    oldest = put(queue, maker.make())
    assert pop(queue) is oldest
    younger = [put(queue, maker.make()) for _ in range(2)]
    queue.requeue(oldest)
    assert len(queue) == 3
    assert [pop(queue) for _ in range(3)] == [oldest, *younger]

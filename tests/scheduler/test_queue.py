"""The order in which requests wait, and the bounds of the queue."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from llamalane.clock import VirtualClock
from llamalane.errors import QueueFullError
from llamalane.ids import Level, RequestId
from llamalane.scheduler.admission import AdmissionPolicy
from llamalane.scheduler.level_queue import Head
from llamalane.scheduler.priority import LEVELS, Aging
from llamalane.scheduler.queue import QueueBounds, WaitingQueue
from llamalane.scheduler.request import Request
from tests.scheduler.building import RequestMaker
from tests.scheduler.oracle import INTERVAL, Oracle

TENANTS = ("one", "two", "three")


def bounded(max_requests: int = 10**9, max_tokens: int = 10**9, retry_after: float = 1.5) -> WaitingQueue[Request]:
    return WaitingQueue(QueueBounds(max_requests, max_tokens), lambda *_: retry_after)


def put(queue: WaitingQueue[Request], request: Request) -> Request:
    with queue.reserve_nowait(request.level) as slot:
        slot.fill(request)
    return request


def pop(queue: WaitingQueue[Request]) -> Request:
    """Take out whoever is next when nothing but urgency counts."""
    choice = AdmissionPolicy(share=0, reserve={}).choose(queue, free=1, running={})
    assert choice is not None
    queue.remove(choice.request)
    return choice.request


class OrderOfWaiting(RuleBasedStateMachine):
    """Requests come, are admitted, give up and come back after a lane's failure while time passes."""

    @initialize(ceiling=st.sampled_from(LEVELS), tenants=st.integers(1, len(TENANTS)))
    def begin(self, ceiling: int, tenants: int) -> None:
        aging = Aging(ceiling, INTERVAL)
        self.clock = VirtualClock()
        self.maker = RequestMaker(aging)
        self.tenants = TENANTS[:tenants]
        self.queue = bounded()
        self.oracle = Oracle(aging)
        self.admitted: list[Request] = []

    @rule(level=st.sampled_from(LEVELS), length=st.integers(1, 5), data=st.data())
    def arrive(self, level: Level, length: int, data: st.DataObject) -> None:
        tenant = data.draw(st.sampled_from(self.tenants))
        request = self.maker.make(level, self.clock.now(), prompt="x" * length, tenant=tenant)
        self.oracle.arrive(put(self.queue, request))

    @rule(seconds=st.integers(0, 3 * INTERVAL))
    def wait(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @precondition(lambda self: self.oracle.waiting)
    @rule()
    def admit(self) -> None:
        expected = self.oracle.next(self.clock.now())
        assert pop(self.queue) is expected
        self.oracle.leave(expected)
        self.admitted.append(expected)

    @rule(level=st.sampled_from(LEVELS), tokens=st.integers(1, 20), data=st.data())
    def serve(self, level: Level, tokens: int, data: st.DataObject) -> None:
        tenant = data.draw(st.sampled_from(self.tenants))
        self.queue.fairness.charge(level, tenant, prompt_tokens=tokens)
        self.oracle.counters[level].charge(tenant, tokens)

    @precondition(lambda self: self.oracle.waiting)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.oracle.waiting))
        self.queue.remove(request)
        self.oracle.leave(request)

    @precondition(lambda self: self.admitted)
    @rule(data=st.data())
    def come_back(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.admitted))
        self.admitted.remove(request)
        self.queue.requeue(request)
        self.oracle.arrive(request)

    @invariant()
    def everybody_is_counted(self) -> None:
        if not hasattr(self, "queue"):
            return
        waiting = self.oracle.waiting
        assert len(self.queue) == len(waiting)
        assert {request.id for request in self.queue} == {request.id for request in waiting}
        assert all(self.queue.get(request.id) is request for request in waiting)
        assert not any(request.id in self.queue for request in self.admitted)
        assert self.queue.tokens == sum(len(request.tokens) for request in waiting)
        for level, size in self.queue.sizes.items():
            assert size == sum(request.level == level for request in waiting)

    def teardown(self) -> None:
        if not hasattr(self, "queue"):
            return
        positions = {request: number for number, request in enumerate(self.queue.in_order())}
        for number in range(len(positions)):
            request = self.oracle.next(self.clock.now())
            assert positions[request] == number
            self.admit()
        assert not list(self.queue.heads())


TestOrderOfWaiting = OrderOfWaiting.TestCase
TestOrderOfWaiting.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(levels=st.lists(st.sampled_from(LEVELS), min_size=2, max_size=12))
def test_equals_are_first_come_first_served(levels: list[Level]) -> None:
    maker, queue = RequestMaker(), bounded()
    arrived = [put(queue, maker.make(level)) for level in levels]
    served = [pop(queue) for _ in arrived]
    for level in LEVELS:
        assert [r for r in served if r.level == level] == [r for r in arrived if r.level == level]


def test_urgent_work_overtakes_what_has_not_reached_the_ceiling() -> None:
    maker, queue = RequestMaker(Aging(ceiling=3, interval=INTERVAL)), bounded()
    batch = put(queue, maker.make(5, arrival=0))
    normal = put(queue, maker.make(3, arrival=2 * INTERVAL - 1))
    late = put(queue, maker.make(3, arrival=2 * INTERVAL + 1))
    interactive = put(queue, maker.make(1, arrival=1000 * INTERVAL))
    assert [pop(queue) for _ in range(4)] == [interactive, normal, batch, late]


def test_the_tenant_served_least_goes_first_and_the_oldest_request_stands_for_the_level() -> None:
    maker, queue = RequestMaker(), bounded()
    first, second = (put(queue, maker.make(2, tenant="one")) for _ in range(2))
    other = put(queue, maker.make(2, arrival=1, tenant="two"))
    batch = put(queue, maker.make(5, tenant="two"))
    queue.fairness.charge(Level(2), "one", prompt_tokens=1)
    assert list(queue.heads()) == [Head(oldest=first, next=other), Head(oldest=batch, next=batch)]
    queue.fairness.charge(Level(2), "two", prompt_tokens=2)
    assert [pop(queue) for _ in range(4)] == [first, second, other, batch]


def test_an_older_request_of_its_level_brings_a_tenant_before_an_aged_one() -> None:
    """What stands for level 4 is the oldest request, though it is another tenant's turn there."""
    maker, queue = RequestMaker(Aging(ceiling=3, interval=INTERVAL)), bounded()
    old = put(queue, maker.make(4, arrival=0, tenant="one"))
    aged = put(queue, maker.make(5, arrival=1, tenant="one"))
    young = put(queue, maker.make(4, arrival=100, tenant="two"))
    queue.fairness.charge(Level(4), "one", prompt_tokens=1)
    assert queue.in_order() == [young, old, aged]
    assert [pop(queue) for _ in range(3)] == [young, old, aged]


def test_those_who_left_take_no_memory() -> None:
    maker, queue = RequestMaker(), bounded()
    for number in range(1000):
        request = put(queue, maker.make(tenant=f"tenant {number}"))
        pop(queue)
        queue.requeue(request)
        queue.requeue(returned := maker.make(tenant=request.tenant))
        queue.remove(returned)
        queue.remove(request)
    level = queue._levels[Level(3)]
    assert not level._tenants
    assert len(level._oldest._entries) < 100


def test_an_id_that_is_used_again_has_no_old_place() -> None:
    maker, queue = RequestMaker(), bounded()
    gone, between, again = (maker.make() for _ in range(3))
    gone.id = again.id = RequestId("mine")
    put(queue, gone)
    put(queue, between)
    queue.remove(gone)
    put(queue, again)
    assert queue.get(RequestId("mine")) is again
    assert [pop(queue), pop(queue)] == [between, again]


def test_the_queue_is_bounded_in_requests() -> None:
    maker, queue = RequestMaker(), bounded(max_requests=2, retry_after=7.5)
    first = put(queue, maker.make())
    put(queue, maker.make())
    with pytest.raises(QueueFullError, match="2 requests") as caught:
        queue.reserve_nowait(Level(3))
    assert (caught.value.reason, caught.value.limit, caught.value.retry_after) == ("requests", 2, 7.5)
    queue.remove(first)
    put(queue, maker.make())


def test_what_is_kept_for_others_is_at_most_half_of_the_queue() -> None:
    maker, kept = RequestMaker(), {Level(2): 1, Level(3): 100}
    queue = WaitingQueue[Request](QueueBounds(5, 100), lambda *_: 1.0, kept=lambda level: kept[level])
    for level, fits in ((3, 3), (2, 1)):
        for _ in range(fits):
            put(queue, maker.make(level))
        with pytest.raises(QueueFullError):
            queue.reserve_nowait(Level(level))


def test_whoever_needs_several_slots_is_told_to_come_back_for_as_many() -> None:
    maker, asked = RequestMaker(), list[int]()

    def retry_after(level: Level, slots: int) -> float:
        asked.append(slots)
        return 1.0

    queue = WaitingQueue[Request](QueueBounds(2, 100), retry_after)
    put(queue, maker.make())
    with queue.reserve_nowait(Level(3), 3), pytest.raises(QueueFullError):
        queue.reserve_nowait(Level(3), 3)
    assert asked == [3]


def test_a_slot_counts_until_it_is_filled_or_given_back() -> None:
    maker, queue = RequestMaker(), bounded(max_requests=1)
    with queue.reserve_nowait(Level(3)), pytest.raises(QueueFullError):
        queue.reserve_nowait(Level(3))
    with pytest.raises(ZeroDivisionError), queue.reserve_nowait(Level(3)):
        raise ZeroDivisionError  # as when a prompt turns out to be invalid
    with queue.reserve_nowait(Level(3)) as slot:
        slot.fill(maker.make())
        with pytest.raises(QueueFullError):
            queue.reserve_nowait(Level(3))
    assert len(queue) == 1
    with pytest.raises(QueueFullError):
        queue.reserve_nowait(Level(3))


def test_the_queue_is_bounded_in_tokens() -> None:
    maker, queue = RequestMaker(), bounded(10, max_tokens=10, retry_after=2.5)
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
    maker, queue = RequestMaker(), bounded(10, max_tokens=10)
    huge = put(queue, maker.make(prompt="x" * 11))
    with pytest.raises(QueueFullError):
        put(queue, maker.make(prompt="x"))
    queue.remove(huge)
    put(queue, maker.make(prompt="x"))
    with pytest.raises(QueueFullError):
        put(queue, maker.make(prompt="x" * 11))


def test_coming_back_ignores_the_bounds_and_takes_the_old_place() -> None:
    maker, queue = RequestMaker(), bounded(2, max_tokens=12)
    oldest = put(queue, maker.make())
    assert pop(queue) is oldest
    younger = [put(queue, maker.make()) for _ in range(2)]
    queue.requeue(oldest)
    assert len(queue) == 3
    assert [pop(queue) for _ in range(3)] == [oldest, *younger]

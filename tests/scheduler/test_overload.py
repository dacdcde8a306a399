"""More comes than can wait: who is refused, who is turned out, and that nothing is lost."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamalane.errors import DeadlineExceededError, QueueFullError, RequestShedError, TenantLimitError
from llamalane.ids import Level
from llamalane.scheduler.limits import TenantLimit
from llamalane.scheduler.priority import LEVELS
from llamalane.scheduler.queue import QueueBounds, WaitingQueue
from llamalane.scheduler.request import Request, RequestState
from llamalane.scheduler.result import Result
from llamalane.streams import Parking
from tests.scheduler.building import RequestMaker
from tests.scheduler.harness import Harness, Start, error_of, result_of
from tests.scheduler.scripted_lane import letters_with_an_end
from tests.scheduler.test_deadlines import slow

LIMIT = 256


def busy(start: Start, **options: object) -> Harness:
    """A harness whose only place is taken by a most urgent request for as long as it takes."""
    harness = start([1], limit=LIMIT, **options)
    harness.submit(1, prompt="busy", max_tokens=100, tenant="busy")
    harness.tick()
    return harness


def was_shed(*requests: Request) -> bool:
    """Whether they were turned out before they got anything, and told when to come back."""
    errors = [error_of(request) for request in requests]
    assert not any(request.generated for request in requests)
    return all(isinstance(error, RequestShedError) and error.retry_after > 0 for error in errors)


def wait_on(requests: list[Request]) -> bool:
    return all(request.state is RequestState.WAITING for request in requests)


def test_the_last_who_came_of_the_least_urgent_is_turned_out(start: Start) -> None:
    harness = busy(start, max_requests=4, shed=True)
    background, first, second, third = (harness.submit(level) for level in (4, 5, 5, 5))
    for turned_out, left in ((third, [background, first, second]), (second, [background, first])):
        newer = harness.submit(2)
        assert was_shed(turned_out)
        assert wait_on([*left, newer])
    later = harness.submit(4)
    assert was_shed(first)
    harness.submit(3)
    assert was_shed(later)
    assert wait_on([background])
    assert harness.scheduler.counters.rejected == {"shed": 4}
    harness.finish()


@pytest.mark.parametrize("level", [3, 4, 5])
def test_only_for_a_strictly_more_urgent_one(start: Start, level: int) -> None:
    harness = busy(start, max_requests=2, shed=True)
    waiting = [harness.submit(3), harness.submit(2)]
    with pytest.raises(QueueFullError) as caught:
        harness.submit(level)
    assert (caught.value.reason, caught.value.limit) == ("requests", 2)
    assert wait_on(waiting)
    harness.finish()


def test_nobody_is_turned_out_unless_that_is_asked_for(start: Start) -> None:
    harness = busy(start, max_requests=2)
    waiting = [harness.submit(5), harness.submit(5)]
    with pytest.raises(QueueFullError):
        harness.submit(1)
    assert wait_on(waiting)
    harness.finish()


def test_whoever_has_begun_to_answer_is_not_turned_out(start: Start) -> None:
    harness = start([1], limit=LIMIT, max_requests=2, shed=True)
    begun = harness.submit(5, max_tokens=20)
    harness.tick()
    harness.step(3)
    harness.submit(1, max_tokens=40)
    harness.tick()
    harness.step()
    assert begun.state is RequestState.WAITING
    older, _ = harness.submit(4), harness.submit(3)
    assert was_shed(older)
    harness.submit(2)
    with pytest.raises(QueueFullError):
        harness.submit(2)
    assert wait_on([begun])
    harness.finish()
    assert result_of(begun).timings.parks == 1


@pytest.mark.parametrize("park", Parking)
def test_whoever_was_parked_before_the_first_token_can_be_turned_out_with_all_its_cells(
    start: Start, park: Parking
) -> None:
    harness = start([1], limit=LIMIT, max_requests=1, max_step_tokens=8, shed=True, park=park)
    half = harness.submit(5, prompt="p" * 60)
    harness.tick()
    harness.step(3)
    harness.submit(1, max_tokens=40)
    harness.tick()
    harness.step()
    assert wait_on([half])
    harness.submit(4)
    assert was_shed(half)
    harness.finish()


def test_whoever_is_sheltered_is_not_turned_out(start: Start) -> None:
    harness = start([1], limit=LIMIT, share=1, max_requests=1, shed=True)
    sheltered = harness.submit(5)
    harness.tick()
    harness.lane.fail()
    harness.tick()
    assert wait_on([sheltered])
    assert sheltered.sheltered
    with pytest.raises(QueueFullError):
        harness.submit(1)
    harness.lane.reopen()
    harness.finish()


def test_whoever_came_back_did_not_come_last(start: Start) -> None:
    harness = start([1], limit=LIMIT, max_requests=2, shed=True)
    older = harness.submit(5)
    harness.tick()
    younger = harness.submit(5)
    harness.lane.fail()
    harness.tick()
    harness.submit(1)
    assert was_shed(younger)
    assert wait_on([older])
    harness.lane.reopen()
    harness.finish()


def test_so_many_are_turned_out_that_the_prompt_fits(start: Start) -> None:
    harness = busy(start, max_waiting_tokens=40, shed=True)
    four, *fives = (harness.submit(level, prompt="x" * 10) for level in (4, 5, 5, 5))
    harness.submit(3, prompt="x" * 15)
    assert was_shed(*fives[1:])
    assert wait_on([four, fives[0]])
    assert harness.scheduler.queue.tokens == 35
    harness.finish()


def test_nobody_is_turned_out_for_a_prompt_that_would_not_fit_all_the_same(start: Start) -> None:
    harness = busy(start, max_waiting_tokens=40, shed=True)
    waiting = [harness.submit(level, prompt="x" * 10) for level in (2, 5, 5, 5)]
    with pytest.raises(QueueFullError) as caught:
        harness.submit(2, prompt="x" * 31)
    assert (caught.value.reason, caught.value.limit) == ("tokens", 40)
    assert wait_on(waiting)
    harness.finish()


def test_slots_are_kept_for_better_levels(start: Start) -> None:
    harness = busy(start, max_requests=4, queue_reserve={1: 1, 2: 1})
    waiting = [harness.submit(5), harness.submit(5)]
    with pytest.raises(QueueFullError):
        harness.submit(3)
    waiting.append(harness.submit(2))
    for level in (2, 5):
        with pytest.raises(QueueFullError):
            harness.submit(level)
    waiting.append(harness.submit(1))
    assert wait_on(waiting)
    with pytest.raises(QueueFullError):
        harness.submit(1)
    harness.finish()


def test_who_may_not_take_a_slot_that_is_kept_turns_out_somebody_less_urgent(start: Start) -> None:
    harness = busy(start, max_requests=3, queue_reserve={1: 1}, shed=True)
    first, second = harness.submit(5), harness.submit(5)
    harness.submit(3)
    assert was_shed(second)
    harness.submit(1)
    assert wait_on([first]), "the slot was kept for it"
    harness.finish()


class PlainQueue:
    """Finds out who is turned out by trying it with one more each time."""

    def __init__(self, bounds: QueueBounds) -> None:
        self.bounds = bounds
        self.waiting: list[Request] = []
        self.begun: set[Request] = set()

    def victims(self, request: Request) -> list[Request] | None:
        """Whom a request turns out; None when it is refused."""
        worse = [one for one in self.waiting if one.level > request.level and one not in self.begun]
        worse.sort(key=lambda one: (one.level, one.order), reverse=True)
        for count in range(len(worse) + 1 if self.bounds.shed else 1):
            left = [one for one in self.waiting if one not in worse[:count]]
            if self._fits(request, left):
                return worse[:count]
        return None

    def _fits(self, request: Request, others: list[Request]) -> bool:
        kept = 0
        for level, count in self.bounds.reserve.items():
            if level < request.level:
                kept += max(0, count - sum(other.level == level for other in others))
        tokens = sum(other.prompt_tokens for other in others)
        room = tokens == 0 or tokens + request.prompt_tokens <= self.bounds.tokens
        return room and len(others) + kept < self.bounds.requests


few_levels = st.sampled_from([Level(2), Level(3), Level(5)])
lengths = st.sampled_from([*range(1, 11), 35])  # the last is longer than all that may wait
arrivals = st.lists(
    st.tuples(st.sampled_from(["arrive", "arrive", "come back", "leave"]), few_levels, lengths), min_size=8, max_size=40
)


@given(
    steps=arrivals,
    shed=st.booleans(),
    reserve=st.dictionaries(few_levels, st.integers(0, 2), max_size=2),
)
def test_it_agrees_with_a_queue_that_tries_everything(
    steps: list[tuple[str, Level, int]], shed: bool, reserve: Mapping[Level, int]
) -> None:
    plain = PlainQueue(QueueBounds(4, 30, reserve, shed=shed))
    queue = WaitingQueue[Request](plain.bounds, lambda *_: 1.0, may_shed=lambda one: one not in plain.begun)
    maker, returned = RequestMaker(), list[Request]()
    for operation, level, number in steps:
        if operation == "arrive":
            request = maker.make(level, prompt="x" * number)
            expected = plain.victims(request)
            try:
                with queue.reserve_nowait(level) as slot:
                    shed_now = slot.fill(request)
            except QueueFullError:
                assert expected is None
                continue
            assert shed_now == expected
            for victim in shed_now:
                assert victim.level > level
                queue.remove(victim)
                plain.waiting.remove(victim)
            plain.waiting.append(request)
        elif plain.waiting:
            request = plain.waiting.pop(number % len(plain.waiting))
            queue.remove(request)
            if operation == "come back":
                returned.append(request)
                plain.begun.update([request] if number % 2 else [])
                queue.requeue(request)
                plain.waiting.append(request)
        assert set(queue) == set(plain.waiting)
        newcomers = [one for one in plain.waiting if one not in returned]
        assert len(newcomers) <= 4
        assert len(newcomers) == 1 or sum(one.prompt_tokens for one in newcomers) <= 30


operations = st.lists(
    st.tuples(
        st.sampled_from(["submit"] * 6 + ["step"] * 3 + ["wait", "cancel", "fail"]),
        st.sampled_from(LEVELS),
        st.integers(0, 40),
        st.sampled_from(["one", "two"]),
        st.sampled_from([None, None, "editor", "terminal"]),
        st.none() | st.integers(1, 12),
    ),
    max_size=60,
)


@given(steps=operations, share=st.integers(0, 3), cells=st.sampled_from([None, 100]))
def test_whatever_comes_nothing_is_lost_and_nobody_is_charged_for_ever(
    steps: list[tuple[str, Level, int, str, str | None, int | None]], share: int, cells: int | None
) -> None:
    limits = {"one": TenantLimit(concurrent=2), "two": TenantLimit(concurrent=3, tokens_per_minute=200)}
    harness = Harness(
        [1, 1],
        limit=64,
        share=share,
        cells=cells,
        max_requests=3,
        max_waiting_tokens=80,
        queue_reserve={1: 1},
        shed=True,
        limits=limits,
        step_seconds=slow,
        speak=letters_with_an_end,
    )
    for operation, level, number, tenant, key, deadline in steps:
        match operation:
            case "submit":
                try:
                    harness.submit(
                        level,
                        prompt="x" * (number + 1),
                        max_tokens=10,
                        tenant=tenant,
                        supersede=key,
                        deadline=deadline,
                        ignore_eos=number % 2 == 0,
                    )
                except (QueueFullError, TenantLimitError, DeadlineExceededError):
                    continue
            case "step":
                harness.step()
            case "wait":
                harness.clock.advance(number / 8)
                harness.tick()
            case "cancel" if harness.requests:
                harness.scheduler.cancel(harness.requests[number % len(harness.requests)])
            case "fail":
                harness.lane.fail()
                harness.tick()
                harness.lane.reopen()
    harness.run()
    harness.check_conserved()
    for request in harness.requests:
        if isinstance(request.delivery.outcome, Result):
            assert request.delivery.outcome.text == harness.alone(request)
    harness.clock.advance(60)
    for tenant, limit in limits.items():
        for _ in range(limit.concurrent or 0):
            harness.submit(prompt="x", max_tokens=9, tenant=tenant)
            harness.tick()
        with pytest.raises(TenantLimitError):
            harness.submit(prompt="x", max_tokens=9, tenant=tenant)
        harness.run()
    harness.close()

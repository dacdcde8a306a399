"""Prompts that begin alike are computed once, within a tenant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from llamalane.kvcache.region import LEAST_COPY
from llamalane.scheduler.request import Request, RequestState
from llamalane.streams import Parking
from tests.scheduler.harness import Harness, Start, result_of

SYSTEM = "you are a helpful llama. " * 4
LIMIT = 512


def computed(harness: Harness) -> int:
    """How many prompt tokens the lanes have computed."""
    return sum(step.prefill_tokens for lane in harness.lanes.values() for step in lane.steps)


def ask(harness: Harness, questions: Sequence[str], **options: Any) -> list[Request]:
    return [harness.submit(prompt=SYSTEM + question, max_tokens=6, **options) for question in questions]


def test_prompts_that_come_together_compute_what_they_share_once(start: Start) -> None:
    harness = start([8], limit=LIMIT)
    requests = ask(harness, [f"question {number}" for number in range(8)])
    harness.finish()
    unique = sum(len(request.tokens) - len(SYSTEM) for request in requests)
    assert computed(harness) <= 1.1 * (len(SYSTEM) + unique)
    assert [result_of(request).usage.cached_tokens for request in requests[1:]] == [len(SYSTEM + "question ")] * 7
    assert harness.scheduler.counters.cached_tokens == 7 * len(SYSTEM + "question ")


def test_a_prefix_computed_in_chunks_is_waited_for(start: Start) -> None:
    harness = start([2], limit=LIMIT, max_step_tokens=16)
    ask(harness, ["first", "second"])
    harness.finish()
    assert computed(harness) <= len(SYSTEM) + len("first") + len("second")


def test_what_a_running_request_has_computed_is_shared_at_once(start: Start) -> None:
    harness = start([2], limit=LIMIT)
    ask(harness, ["first"])
    harness.tick()
    harness.step(2)
    ask(harness, ["second"])
    harness.tick()
    before = computed(harness)
    harness.step()
    assert computed(harness) - before <= len("second")
    harness.finish()


def test_what_a_finished_request_has_left_is_shared_by_several(start: Start) -> None:
    harness = start([3], limit=LIMIT)
    ask(harness, ["first, which goes on for so long that the others share less than half of what it leaves " * 2])
    harness.finish()
    before = computed(harness)
    ask(harness, ["second", "third"])
    harness.finish()
    assert computed(harness) - before <= len("second") + len("third")


def test_nothing_is_shared_between_tenants(start: Start) -> None:
    harness = start([3], limit=LIMIT)
    requests = [*ask(harness, ["one"], tenant="alice"), *ask(harness, ["one"], tenant="bob")]
    harness.finish()
    assert not any(result_of(request).usage.cached_tokens for request in requests)
    assert not any(lane.shared_tokens for lane in harness.lanes.values())


def test_a_few_tokens_are_not_worth_a_copy_between_parts(start: Start) -> None:
    harness = start([2], limit=LIMIT, partitioned=True)
    for word in ("first", "second"):
        harness.submit(prompt="x" * (LEAST_COPY - 1) + word, max_tokens=4)
    harness.finish()
    assert not harness.lane.shared_tokens


def test_a_few_tokens_are_shared_if_they_need_not_be_waited_for(start: Start) -> None:
    harness = start([3], limit=LIMIT)
    for word in ("first", "second"):
        harness.submit(prompt="xxx" + word, max_tokens=4)
    harness.tick()
    harness.step()
    assert harness.lane.steps[0].prefill_tokens == len("xxxfirst" + "xxxsecond")
    before = harness.lane.shared_tokens
    harness.submit(prompt="xxxthird", max_tokens=4)
    harness.finish()
    assert (before, harness.lane.shared_tokens) == (0, 3)


def test_without_roll_back_nothing_is_shared(start: Start) -> None:
    harness = start([2], limit=LIMIT, can_roll_back=False)
    ask(harness, ["first", "second"])
    harness.finish()
    assert not harness.lane.shared_tokens


@pytest.mark.parametrize("partitioned", [False, True])
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_request_whose_leader_goes_away_has_what_that_computed(start: Start, steps: int, partitioned: bool) -> None:
    harness = start([2], limit=LIMIT, max_step_tokens=16, partitioned=partitioned)
    leader, follower = ask(harness, ["first", "second"])
    harness.tick()
    harness.step(steps)
    harness.scheduler.cancel(leader)
    harness.run()
    assert result_of(follower).text == harness.alone(follower)
    assert result_of(follower).usage.cached_tokens == harness.lane.shared_tokens <= 16 * steps
    assert harness.scheduler.counters.cached_tokens == harness.lane.shared_tokens


def test_of_many_whose_leader_goes_away_one_computes_the_rest(start: Start) -> None:
    harness = start([5], limit=LIMIT, max_step_tokens=16)
    leader, *followers = ask(harness, ["first", "second", "third", "fourth", "fifth"])
    harness.tick()
    harness.step(2)
    harness.scheduler.cancel(leader)
    harness.run()
    assert computed(harness) <= len(SYSTEM) + sum(len(request.tokens) - len(SYSTEM) for request in followers)
    assert [result_of(request).text for request in followers] == [harness.alone(request) for request in followers]


def test_a_request_that_waits_for_its_leader_can_be_cancelled_or_parked(start: Start) -> None:
    harness = start([3], limit=LIMIT, max_step_tokens=16)
    _, cancelled, parked = ask(harness, ["first", "second", "third"], level=5)
    harness.tick()
    harness.step()
    harness.scheduler.cancel(cancelled)
    urgent = [harness.submit(1, prompt="urgent", max_tokens=3) for _ in range(2)]
    harness.tick()
    assert all(request.state is RequestState.RUNNING for request in urgent) or parked.parks
    harness.run()
    assert result_of(parked).text == harness.alone(parked)
    harness.check_conserved()


@pytest.mark.parametrize("leaving", [True, False])
def test_those_who_come_while_their_leader_is_stopped_compute_its_prefix_once(start: Start, leaving: bool) -> None:
    harness = start([3], limit=LIMIT, max_step_tokens=16, park=Parking.PAUSE)
    (leader,) = ask(harness, ["first"], level=5)
    harness.tick()
    harness.step(2)
    if leaving:
        harness.scheduler.cancel(leader)
    else:
        for _ in range(3):
            harness.submit(1, prompt="urgent", max_tokens=2)
    harness.tick()  # the lane has not heard of it yet
    followers = ask(harness, ["second", "third", "fourth"], level=1)
    before = computed(harness)
    harness.tick()
    harness.run()
    assert leaving or leader.parks == 1
    unique = sum(len(request.tokens) - len(SYSTEM) for request in [leader, *followers])
    times = 1 if leaving else 2  # one that was paused half-way computes the rest for itself
    assert computed(harness) - before <= times * len(SYSTEM) + unique + 3 * len("urgent")
    for request in followers if leaving else [leader, *followers]:
        assert result_of(request).text == harness.alone(request)
    harness.check_conserved()

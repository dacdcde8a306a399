"""What is measured of requests: times on a clock that the test turns, and how they came to run and to give way."""

from __future__ import annotations

import pytest

from llamalane.errors import DeadlineExceededError
from llamalane.ids import Level
from llamalane.scheduler.measurements import LevelStatistics, Measure
from llamalane.scheduler.statistics import EngineState, EngineStatistics, take_statistics
from llamalane.streams import Parking
from tests.scheduler.harness import Harness, Start, result_of
from tests.scheduler.scripted_lane import saved
from tests.scheduler.test_running_short import CELLS, run_long

LIMIT = 256


def statistics(harness: Harness) -> EngineStatistics:
    return take_statistics(EngineState.READY, harness.scheduler)


OF_TEXTS = (Measure.TEXT_TOTAL, Measure.TEXT_TOKENS)


def at(harness: Harness, level: int) -> LevelStatistics:
    return statistics(harness).levels[Level(level)]


def sums(harness: Harness, level: int) -> dict[Measure, float]:
    return {measure: found.sum for measure, found in at(harness, level).histograms.items()}


def counts(harness: Harness, level: int) -> dict[Measure, int]:
    return {measure: found.count for measure, found in at(harness, level).histograms.items()}


def tokens_every(harness: Harness, seconds: float, count: int) -> None:
    for _ in range(count):
        harness.clock.advance(seconds)
        harness.step()


def test_each_part_of_a_requests_time_is_measured(start: Start) -> None:
    harness = start([1], limit=LIMIT)
    request = harness.submit(2, prompt="hello", max_tokens=5)
    harness.clock.advance(0.5)
    harness.tick()
    tokens_every(harness, 0.25, 1)
    tokens_every(harness, 0.125, 4)
    harness.finish()
    assert counts(harness, 2) == dict.fromkeys(Measure, 1) | {Measure.INTER_TOKEN: 4} | dict.fromkeys(OF_TEXTS, 0)
    assert sums(harness, 2) == {
        Measure.QUEUE_TIME: 0.5,
        Measure.FIRST_TOKEN: 0.75,
        Measure.INTER_TOKEN: 0.5,
        Measure.PER_TOKEN: 0.125,
        Measure.PREFILL: 0.25,
        Measure.DECODE: 0.5,
        Measure.INFERENCE: 0.75,
        Measure.TOTAL: 1.25,
        Measure.PROMPT_TOKENS: 5,
        Measure.OUTPUT_TOKENS: 5,
        Measure.MAX_TOKENS: 5,
        Measure.PARKS: 0,
        **dict.fromkeys(OF_TEXTS, 0),
    }
    assert result_of(request).timings.total == 1.25
    assert (at(harness, 2).admitted, at(harness, 2).finished) == (1, 1)
    assert counts(harness, 3) == dict.fromkeys(Measure, 0)


def test_a_single_token_has_no_time_per_token(start: Start) -> None:
    harness = start([1], limit=LIMIT)
    harness.submit(max_tokens=1)
    harness.finish()
    found = counts(harness, 3)
    assert (found[Measure.PER_TOKEN], found[Measure.INTER_TOKEN], found[Measure.TOTAL]) == (0, 0, 1)


def test_what_a_cancelled_request_had_is_measured_and_no_more(start: Start) -> None:
    harness = start([1], limit=LIMIT)
    request = harness.submit(max_tokens=20)
    harness.tick()
    tokens_every(harness, 0.125, 3)
    harness.scheduler.cancel(request)
    harness.finish()
    found = counts(harness, 3)
    assert (found[Measure.QUEUE_TIME], found[Measure.FIRST_TOKEN], found[Measure.INTER_TOKEN]) == (1, 1, 2)
    assert found[Measure.TOTAL] == 0
    assert at(harness, 3).finished == 0


@pytest.mark.parametrize("park", Parking)
def test_the_wait_of_a_parked_request_counts_between_its_tokens(start: Start, park: Parking) -> None:
    harness = start([1], limit=LIMIT, park=park)
    batch = harness.submit(5, prompt="a prompt", max_tokens=4)
    harness.tick()
    tokens_every(harness, 0.125, 2)
    harness.submit(1, max_tokens=1)
    harness.tick()
    tokens_every(harness, 8.0, 1)
    harness.finish()
    assert (
        sums(harness, 5)[Measure.INTER_TOKEN] == result_of(batch).timings.total - result_of(batch).timings.first_token
    )
    assert sums(harness, 5)[Measure.INTER_TOKEN] >= 8
    assert sums(harness, 5)[Measure.PARKS] == at(harness, 5).parked == 1
    assert at(harness, 1).parked == 0
    counters = statistics(harness).counters
    assert counters.reasons == {"displaced": 1}
    size = len(saved([0] * (len("a prompt") + 1))) if park is Parking.SWAP else 0
    assert (counters.parked_bytes_out, counters.parked_bytes_in) == (size, size)


def test_goodput_counts_who_had_tokens_as_quickly_as_the_level_asks(start: Start) -> None:
    harness = start([2], limit=LIMIT, target_itl={level: 0.1 if level == 1 else 1.0 for level in range(1, 6)})
    for level in (1, 3):
        harness.submit(level, max_tokens=4)
    harness.tick()
    tokens_every(harness, 0.5, 4)
    harness.finish()
    assert (at(harness, 1).finished, at(harness, 1).in_time) == (1, 0)
    assert (at(harness, 3).finished, at(harness, 3).in_time) == (1, 1)
    assert statistics(harness).counters.in_time == 1


def test_who_is_admitted_out_of_turn_is_counted_by_why(start: Start) -> None:
    harness = start([1], limit=LIMIT, share=3)
    old = harness.submit(5, max_tokens=2)
    harness.clock.advance(1000)  # it has aged to the ceiling, and stands before what comes at level 3 now
    harness.submit(3, max_tokens=2)
    harness.tick()
    assert old.admitted_at is not None
    assert at(harness, 5).promoted == 1
    harness.finish()
    assert (at(harness, 3).promoted, at(harness, 3).by_share) == (0, 0), "nobody more urgent waited"

    harness.submit(5, max_tokens=2)
    for _ in range(4):
        harness.submit(1, max_tokens=2)
    harness.finish()
    assert at(harness, 5).by_share == 1
    assert at(harness, 5).promoted == 1


def test_the_reasons_of_parks_tell_cells_from_places(start: Start) -> None:
    harness = start([2], limit=CELLS, cells=CELLS, park=Parking.RECOMPUTE)
    run_long(harness, 3, 3)
    harness.finish()
    counters = statistics(harness).counters
    assert counters.reasons == {"cells": counters.parks.total()}
    assert at(harness, 3).parked == counters.parks.total() > 0


def test_missed_deadlines_tell_how_far_the_request_was(start: Start) -> None:
    harness = start([1], limit=LIMIT)
    harness.submit(1, max_tokens=30, deadline=5)
    harness.tick()
    tokens_every(harness, 0.125, 2)
    harness.submit(3, max_tokens=2, deadline=3)
    harness.clock.advance(4)
    harness.tick()
    assert statistics(harness).counters.deadlines_missed == {"waiting": 1}
    harness.clock.advance(2)
    harness.tick()
    assert statistics(harness).counters.deadlines_missed == {"waiting": 1, "running": 1}
    with pytest.raises(DeadlineExceededError):
        harness.submit(max_tokens=2, deadline=0)
    assert statistics(harness).counters.deadlines_missed == {"waiting": 1, "running": 1, "refused": 1}
    harness.finish()


def test_a_hit_is_counted_when_it_is_certain(start: Start) -> None:
    harness = start([1], limit=LIMIT)
    for _ in range(2):
        harness.submit(prompt="a prompt that comes again", max_tokens=2)
        harness.finish()
    counters = statistics(harness).counters
    length = len("a prompt that comes again")
    assert (counters.queried_tokens, counters.hit_tokens, counters.hits) == (2 * length, length - 1, 1)


def test_each_step_of_a_lane_is_in_its_histograms(start: Start) -> None:
    harness = start([2], limit=LIMIT)
    for prompt in ("hello", "world"):
        harness.submit(prompt=prompt, max_tokens=3)
    harness.finish()
    [lane] = statistics(harness).lanes
    assert lane.step_seconds.count == lane.step_rows.count == lane.step_tokens.count == lane.steps
    assert lane.step_rows.sum == 2 * 2
    assert lane.step_tokens.sum == 2 * 2 + 2 * len("hello")
    assert lane.step_seconds.sum == pytest.approx(lane.decode_seconds + lane.sample_seconds)


def test_what_goes_to_host_memory_and_comes_back_is_told_in_bytes(start: Start) -> None:
    harness = start([1], limit=64, cells=256, least_stowed=4, spare=0, shared=False)
    for prompt in ("first prompt " * 3, "second prompt " * 3, "first prompt " * 3):
        harness.submit(prompt=prompt, max_tokens=2)
        harness.finish()
    told = statistics(harness)
    assert told.stowed_bytes > 0
    assert 0 < told.restored_bytes <= told.stowed_bytes
    assert told.restored_tokens > 0


def test_a_step_ages_only_while_the_lane_has_something_to_compute(start: Start) -> None:
    harness = start([1], limit=LIMIT)
    harness.clock.advance(100.0)
    assert statistics(harness).lanes[0].step_age == 0.0
    harness.submit(2, prompt="hello", max_tokens=2)
    harness.tick()
    harness.clock.advance(70.0)
    assert statistics(harness).lanes[0].step_age == 70.0
    harness.step()
    assert statistics(harness).lanes[0].step_age == 0.0
    harness.finish()
    harness.clock.advance(100.0)
    assert statistics(harness).lanes[0].step_age == 0.0

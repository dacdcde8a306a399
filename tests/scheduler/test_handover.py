"""Prompts that are computed on a lane of their own, and whose requests go on on another lane."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from llamalane.errors import DeadlineExceededError, RequestCancelledError
from llamalane.scheduler.events import EventKind
from llamalane.scheduler.handover import LaneRole
from llamalane.scheduler.request import Request, RequestState
from llamalane.streams import Parking
from tests.scheduler.harness import Harness, Start, error_of, result_of
from tests.scheduler.test_gangs import submit_gang

ANY, PREFILL, DECODE = LaneRole.ANY, LaneRole.PREFILL, LaneRole.DECODE
LIMIT = 256
PROMPT = "a prompt of some length "
PREFILL_LANE, DECODE_LANE = "lane-0", "lane-1"


def divided(start: Start, places: Sequence[int] = (1, 2), **options: object) -> Harness:
    """A lane for prompts, and one for outputs."""
    return start(places, limit=LIMIT, roles=[PREFILL, DECODE], **options)


def until_on(harness: Harness, lane: str, *requests: Request) -> None:
    """Go on until all requests run on a lane."""
    harness.tick()
    while any(request.lane != lane or request.state is not RequestState.RUNNING for request in requests):
        harness.step()


def until_waiting(harness: Harness, request: Request) -> None:
    """Go on until a request was handed over, and waits."""
    harness.tick()
    while request.state is not RequestState.WAITING or not request.handed_over:
        harness.step()


def until_gone(harness: Harness, request: Request) -> None:
    while request.state is not RequestState.DONE:
        harness.step()


def prompts_on(harness: Harness, lane: str) -> int:
    return sum(step.prefill_tokens for step in harness.lanes[lane].steps)


def handovers(harness: Harness) -> int:
    return harness.scheduler.counters.handovers


# Where a request runs


def test_a_prompt_is_computed_on_one_lane_and_its_output_on_another(start: Start) -> None:
    harness = divided(start)
    request = harness.submit(prompt=PROMPT, max_tokens=10)
    harness.tick()
    assert request.lane == PREFILL_LANE
    harness.step()
    assert request.state is RequestState.PARKING
    assert len(request.generated) == 1
    harness.step()
    assert (request.state, request.lane) == (RequestState.RUNNING, DECODE_LANE)
    harness.finish()
    assert prompts_on(harness, PREFILL_LANE) == len(PROMPT)
    assert prompts_on(harness, DECODE_LANE) == 0, "it was computed again"
    assert result_of(request).timings.lane == DECODE_LANE


def test_a_handover_is_no_park(start: Start) -> None:
    harness = divided(start)
    request = harness.submit(prompt=PROMPT, max_tokens=10)
    harness.finish()
    counters = harness.scheduler.counters
    assert (counters.handovers, counters.admitted, counters.prompt_tokens) == (1, 1, len(PROMPT))
    assert not counters.parks
    assert request.parks == request.parks_in_a_row == 0
    assert harness.kinds(request) == [
        EventKind.ACCEPTED,
        EventKind.ADMITTED,
        EventKind.STARTED,
        EventKind.HANDED_OVER,
        EventKind.ADMITTED,
        EventKind.STARTED,
        EventKind.ENDED,
    ]


def test_who_ends_with_the_first_token_is_not_handed_over(start: Start) -> None:
    harness = divided(start)
    first = harness.submit(prompt=PROMPT, max_tokens=1)
    stopped = harness.submit(prompt=PROMPT, max_tokens=9, stop=[harness.alone(first)])
    harness.finish()
    assert result_of(first).timings.lane == result_of(stopped).timings.lane == PREFILL_LANE
    assert handovers(harness) == 0


def test_a_short_prompt_starts_where_its_output_is_computed(start: Start) -> None:
    harness = divided(start, short=len(PROMPT))
    short, long = harness.submit(prompt=PROMPT), harness.submit(prompt="!" + PROMPT)
    harness.tick()
    assert (short.lane, long.lane) == (DECODE_LANE, PREFILL_LANE)
    harness.finish()
    assert handovers(harness) == 1


def test_a_prompt_that_a_lane_holds_but_for_its_end_starts_there(start: Start) -> None:
    harness = divided(start, short=4)
    first = harness.submit(prompt=PROMPT, max_tokens=10)
    harness.finish()
    second = harness.submit(prompt=PROMPT + result_of(first).text + "?")
    harness.tick()
    assert second.lane == DECODE_LANE
    assert second.reused > len(PROMPT)
    harness.finish()


def test_a_handed_over_request_may_go_to_a_lane_for_everything(start: Start) -> None:
    harness = start([1, 1], limit=LIMIT, roles=[PREFILL, ANY])
    request = harness.submit(prompt=PROMPT)
    harness.finish()
    assert request.lane == "lane-1"
    assert handovers(harness) == 1


def test_long_prompts_that_are_not_handed_over_go_to_a_lane_for_everything_first(start: Start) -> None:
    harness = start([1, 2, 1], limit=LIMIT, roles=[PREFILL, DECODE, ANY], handover_always=False)
    long = [harness.submit(prompt=PROMPT + str(number), max_tokens=20) for number in range(2)]
    harness.tick()
    assert [request.lane for request in long] == ["lane-2", "lane-1"], "no free place is left idle"
    harness.finish()


def test_choices_of_one_prompt_stay_together(start: Start) -> None:
    harness = divided(start, [4, 3])
    assert harness.scheduler.most_choices == 3
    gang = submit_gang(harness, 3)
    harness.tick()
    assert {request.lane for request in gang} == {DECODE_LANE}
    harness.finish()
    assert handovers(harness) == 0


def test_without_roles_nothing_is_handed_over(start: Start) -> None:
    harness = start([1, 1], limit=LIMIT)
    for number in range(4):
        harness.submit(prompt=PROMPT + str(number))
    harness.finish()
    assert handovers(harness) == 0


def test_rows_of_a_lane_for_prompts_are_not_expected_to_grow(start: Start) -> None:
    harness = divided(start, [4, 4], cells=256, max_step_tokens=16)
    long = [harness.submit(prompt=str(number) * 32, max_tokens=200) for number in range(4)]
    harness.tick()
    assert [request.lane for request in long] == [PREFILL_LANE] * 4
    harness.finish()


# Whose turn it is


def test_a_lane_for_prompts_goes_on_while_a_request_waits_to_go_on_elsewhere(start: Start) -> None:
    harness = divided(start, [1, 1])
    first = harness.submit(prompt=PROMPT + "1", max_tokens=30)
    second = harness.submit(prompt=PROMPT + "2", max_tokens=5)
    until_waiting(harness, second)
    assert first.state is RequestState.RUNNING
    assert second.saved is not None
    assert second.saved.length == second.length - 1
    assert second.lease is None
    assert harness.pool.lane(PREFILL_LANE).free == 1
    urgent = harness.submit(1, prompt=PROMPT + "3", max_tokens=1)
    harness.tick()
    assert urgent.lane == PREFILL_LANE
    harness.finish()
    assert handovers(harness) == 2


def test_a_handed_over_request_goes_before_new_ones_of_its_level(start: Start) -> None:
    """Even before those of a tenant whose turn it would be."""
    harness = divided(start, [1, 1], short=5)
    running = harness.submit(prompt=PROMPT + "1", max_tokens=8, tenant="one")
    waiting = harness.submit(prompt=PROMPT + "2", max_tokens=8, tenant="one")
    until_waiting(harness, waiting)
    new = harness.submit(prompt="new", max_tokens=8, tenant="two")
    until_gone(harness, running)
    assert (waiting.state, new.state) == (RequestState.RUNNING, RequestState.WAITING)
    harness.finish()


def test_a_more_urgent_request_goes_before_one_that_was_handed_over(start: Start) -> None:
    harness = divided(start, [1, 1], short=6, max_parks=0)
    running = harness.submit(3, prompt=PROMPT + "1", max_tokens=8)
    waiting = harness.submit(3, prompt=PROMPT + "2", max_tokens=8)
    until_waiting(harness, waiting)
    urgent = harness.submit(1, prompt="urgent", max_tokens=8)
    until_gone(harness, running)
    assert (urgent.state, waiting.state) == (RequestState.RUNNING, RequestState.WAITING)
    harness.finish()


def test_who_waits_for_the_lane_for_prompts_holds_up_nobody_who_was_handed_over(start: Start) -> None:
    harness = divided(start, [1, 1], short=1, max_step_tokens=4, max_parks=0)
    running = harness.submit(3, prompt="r", max_tokens=20)
    waiting = harness.submit(3, prompt=PROMPT, max_tokens=9)
    until_waiting(harness, waiting)
    urgent = [harness.submit(1, prompt=f"{number}" * 96, max_tokens=9) for number in range(2)]
    until_gone(harness, running)
    assert [request.state for request in urgent] == [RequestState.RUNNING, RequestState.WAITING]
    assert waiting.state is RequestState.RUNNING
    harness.finish()


def test_an_urgent_request_takes_the_place_of_a_less_urgent_one_on_either_lane(start: Start) -> None:
    harness = divided(start, [1, 1], max_step_tokens=8)
    batch = [harness.submit(5, prompt=PROMPT + str(number), max_tokens=60) for number in range(2)]
    until_on(harness, DECODE_LANE, batch[0])
    until_on(harness, PREFILL_LANE, batch[1])
    urgent = harness.submit(1, prompt=PROMPT + "urgent", max_tokens=5)
    until_on(harness, DECODE_LANE, urgent)
    harness.step()
    assert [request.parks for request in batch] == [1, 1]
    harness.finish()
    assert urgent.parks == 0
    assert handovers(harness) == 3


def test_a_handover_does_not_count_as_an_admission_of_the_guaranteed_share(start: Start) -> None:
    """One admission in three goes to the oldest: the third, were handovers counted, the second already."""
    harness = divided(start, [1, 1], share=3, short=5)
    harness.submit(1, prompt=PROMPT, max_tokens=3)
    old = harness.submit(5, prompt="old", max_tokens=3)
    second = harness.submit(1, prompt="2", max_tokens=3)
    third = harness.submit(1, prompt="3", max_tokens=3)
    harness.finish()
    admitted = [event.request for event in harness.events if event.kind is EventKind.ADMITTED]
    firsts = list(dict.fromkeys(admitted))
    assert firsts.index(second.id) < firsts.index(old.id) < firsts.index(third.id)
    assert old.sheltered


def test_it_is_told_why_a_handed_over_request_waits(start: Start) -> None:
    harness = divided(start, [1, 1])
    harness.submit(prompt=PROMPT + "1", max_tokens=30)
    waiting = harness.submit(prompt=PROMPT + "2", max_tokens=5)
    until_on(harness, PREFILL_LANE, waiting)
    harness.step()
    told = harness.scheduler.explain(waiting.id)
    assert told.reason == "its prompt is computed, and its cells are being saved for another lane"
    until_waiting(harness, waiting)
    told = harness.scheduler.explain(waiting.id)
    assert told.reason == "the lanes on which it could start have no free place"
    assert "handed over" in [kind for kind, _ in told.events]
    harness.finish()


# Memory


def test_who_finds_no_memory_for_its_cells_stays_to_its_end(start: Start) -> None:
    harness = divided(start, [2, 2], swap_bytes=60)
    first = harness.submit(prompt="1" * 50, max_tokens=30)
    until_on(harness, DECODE_LANE, first)  # now the size of a cell is known
    others = [harness.submit(prompt=str(number) * 20, max_tokens=20) for number in (2, 3)]
    harness.submit(prompt="too long" * 10, max_tokens=3)
    harness.finish()
    assert handovers(harness) == 3
    assert [result_of(request).timings.lane for request in others] == [DECODE_LANE] * 2


def test_cells_that_are_under_way_count_for_those_that_come_after_them(start: Start) -> None:
    harness = divided(start, [3, 3], swap_bytes=60)
    until_on(harness, DECODE_LANE, harness.submit(prompt="0" * 20, max_tokens=40))
    together = [harness.submit(prompt=str(number) * 20, max_tokens=9) for number in (1, 2, 3)]
    harness.tick()
    harness.step(2)
    staying = [request for request in together if request.lane == PREFILL_LANE]
    assert len(staying) == 1, "two find room, and the third goes on where it is"
    harness.finish()
    assert result_of(staying[0]).timings.lane == PREFILL_LANE
    assert handovers(harness) == 3


def test_a_saved_state_that_is_too_large_after_all_is_computed_again(start: Start) -> None:
    """How large cells are is not known before the first was saved."""
    harness = divided(start, swap_bytes=10)
    request = harness.submit(prompt=PROMPT, max_tokens=9)
    harness.tick()
    harness.step(2)
    assert not request.handed_over
    assert request.parks == 0
    harness.finish()
    assert handovers(harness) == 0


def test_without_memory_no_prompt_goes_to_a_lane_that_it_could_not_leave(start: Start) -> None:
    harness = divided(start, swap_bytes=0)
    request = harness.submit(prompt=PROMPT)
    harness.finish()
    assert result_of(request).timings.lane == DECODE_LANE


def test_a_lane_for_prompts_that_is_full_of_outputs_keeps_nobody_waiting(start: Start) -> None:
    harness = divided(start, [1, 1], swap_bytes=60, short=8, max_step_tokens=8, park=Parking.SWAP)
    batch = harness.submit(5, prompt="b" * 40, max_tokens=30)
    until_on(harness, DECODE_LANE, batch)
    staying = harness.submit(5, prompt="s" * 30, max_tokens=100)
    harness.tick()
    urgent = harness.submit(1, prompt="u", max_tokens=12)
    until_gone(harness, urgent)  # meanwhile the cells of the other one took up the memory
    assert (staying.lane, staying.state) == (PREFILL_LANE, RequestState.RUNNING)
    assert len(staying.generated) > 1
    until_gone(harness, batch)
    other = harness.submit(prompt="o" * 30, max_tokens=5)
    harness.tick()
    assert (other.lane, other.state) == (DECODE_LANE, RequestState.RUNNING)
    harness.finish()


def test_a_swap_that_cannot_be_put_back_is_computed_again(start: Start) -> None:
    harness = divided(start, swap_works=False)
    harness.submit(prompt=PROMPT, max_tokens=9)
    harness.finish()
    assert prompts_on(harness, DECODE_LANE) > len(PROMPT)


# Lanes that fail


@pytest.mark.parametrize("steps", range(4))
def test_a_lane_for_prompts_that_fails_loses_no_request(start: Start, steps: int) -> None:
    harness = divided(start, max_step_tokens=16)
    request = harness.submit(prompt=PROMPT, max_tokens=9)
    harness.tick()
    harness.step(steps)
    moved = request.lane == DECODE_LANE
    harness.lanes[PREFILL_LANE].fail()
    harness.tick()
    assert request.lane == DECODE_LANE or moved, "it starts elsewhere at once"
    assert request.restarts == (0 if moved else 1)
    harness.run()
    harness.lanes[PREFILL_LANE].reopen()
    harness.finish()


def test_prompts_go_elsewhere_until_their_lane_is_back(start: Start) -> None:
    harness = divided(start)
    harness.lanes[PREFILL_LANE].fail()
    harness.tick()
    first = harness.submit(prompt=PROMPT, max_tokens=9)
    harness.tick()
    assert first.lane == DECODE_LANE
    harness.lanes[PREFILL_LANE].reopen()
    second = harness.submit(prompt=PROMPT * 2, max_tokens=9)
    harness.tick()
    assert second.lane == PREFILL_LANE
    harness.finish()


def test_a_lane_for_outputs_that_fails_loses_no_request_that_was_handed_over(start: Start) -> None:
    harness = divided(start, [1, 1])
    first = harness.submit(prompt=PROMPT + "1", max_tokens=30)
    second = harness.submit(prompt=PROMPT + "2", max_tokens=5)
    until_waiting(harness, second)
    computed = prompts_on(harness, PREFILL_LANE)
    harness.lanes[DECODE_LANE].fail()
    harness.tick()
    assert (second.state, second.restarts) == (RequestState.WAITING, 0)
    assert first.restarts == 1
    harness.lanes[DECODE_LANE].reopen()
    until_on(harness, DECODE_LANE, second)
    assert prompts_on(harness, PREFILL_LANE) - computed <= first.length
    harness.finish()


@pytest.mark.parametrize("handed_over", [False, True])
def test_a_lane_for_prompts_does_everything_when_no_other_is_left(start: Start, handed_over: bool) -> None:
    harness = divided(start, [1, 1])
    request = harness.submit(prompt=PROMPT, max_tokens=9)
    if handed_over:
        harness.submit(1, prompt=PROMPT + "1", max_tokens=30)
        until_waiting(harness, request)
    harness.lanes[DECODE_LANE].fail(down=True)
    harness.run()
    assert result_of(request).timings.lane == PREFILL_LANE
    assert result_of(request).text == harness.alone(request)


# Ends


@pytest.mark.parametrize("places", [(1, 2), (1, 1)])
@pytest.mark.parametrize("steps", range(8))
@pytest.mark.parametrize("tick", [False, True])
def test_a_request_can_be_cancelled_at_every_stage(
    start: Start, places: tuple[int, int], steps: int, tick: bool
) -> None:
    harness = divided(start, places, max_step_tokens=8)
    if places == (1, 1):
        until_on(harness, DECODE_LANE, harness.submit(prompt="the place is taken", max_tokens=20))
    request = harness.submit(prompt=PROMPT, max_tokens=20)
    harness.tick()
    harness.step(steps)
    if not tick:  # the lanes have news that the scheduler has not heard
        for lane in harness.lanes.values():
            lane.step()
    harness.scheduler.cancel(request)
    harness.finish()
    assert isinstance(error_of(request), RequestCancelledError)
    assert harness.scheduler.rules.costs.store.reserved_bytes == 0


def test_a_deadline_passes_while_a_request_waits_to_go_on(start: Start) -> None:
    harness = divided(start, [1, 1])
    harness.submit(prompt=PROMPT + "1", max_tokens=30)
    late = harness.submit(prompt=PROMPT + "2", max_tokens=20, deadline=5)
    until_waiting(harness, late)
    harness.clock.advance(6)
    harness.tick()
    assert isinstance(error_of(late), DeadlineExceededError)
    assert harness.scheduler.rules.costs.store.reserved_bytes == 0
    harness.finish()


# By the measured model


def busy_outputs(harness: Harness, count: int, max_tokens: int = 60) -> list[Request]:
    """Let short prompts run on the lane for outputs, and a long one, so that it is known how quick the lane is."""
    long = harness.submit(prompt="l" * 70, max_tokens=2)
    harness.finish()
    assert result_of(long).timings.lane == DECODE_LANE, "nobody would have waited for it"
    outputs = [harness.submit(prompt=f"{number}", max_tokens=max_tokens) for number in range(count)]
    until_on(harness, DECODE_LANE, *outputs)
    harness.step(2)
    return outputs


def test_auto_hands_over_where_outputs_would_wait(start: Start) -> None:
    harness = divided(start, [1, 8], handover_always=False, short=8)
    busy_outputs(harness, 4)
    request = harness.submit(prompt="p" * 100, max_tokens=9)
    harness.tick()
    assert request.lane == PREFILL_LANE
    harness.finish()
    assert handovers(harness) == 1


def test_auto_does_not_where_nothing_is_known_or_nobody_would_wait(start: Start) -> None:
    harness = divided(start, [1, 8], handover_always=False, short=8)
    harness.submit(prompt="o", max_tokens=30)
    harness.step(3)
    unknown = harness.submit(prompt="p" * 100, max_tokens=9)
    harness.tick()
    assert unknown.lane == DECODE_LANE
    harness.finish()
    alone = harness.submit(prompt="q" * 100, max_tokens=9)
    harness.finish()
    assert result_of(alone).timings.lane == DECODE_LANE


def test_auto_does_not_where_saving_takes_longer_than_computing(start: Start) -> None:
    harness = divided(start, [1, 8], handover_always=False, short=8)
    busy_outputs(harness, 4)
    for _ in range(50):
        harness.scheduler.rules.costs.observe_saving(10, 10, 1.0)
    request = harness.submit(prompt="p" * 100, max_tokens=9)
    harness.tick()
    assert request.lane == DECODE_LANE
    harness.finish()


def test_auto_does_not_where_the_lane_for_prompts_has_much_to_do(start: Start) -> None:
    harness = divided(start, [8, 8], handover_always=False, short=8, max_step_tokens=16)
    busy_outputs(harness, 1)
    requests = [harness.submit(prompt=f"{number}" * 100, max_tokens=9) for number in range(4)]
    harness.tick()
    lanes = [request.lane for request in requests]
    assert lanes[0] == PREFILL_LANE, "the first need not wait"
    assert lanes[-1] == DECODE_LANE
    harness.finish()


def test_auto_learns_that_prompts_elsewhere_disturb_outputs_as_much(start: Start) -> None:
    """As on a CPU whose memory is the bottleneck, or a GPU that both lanes share."""

    harness = divided(start, [1, 8], handover_always=False, short=8, max_step_tokens=16)
    prefill = harness.lanes[PREFILL_LANE]
    harness.lanes[DECODE_LANE]._step_seconds = lambda rows, tokens: (0.1 if prefill.rows else 0.01) + 0.001 * tokens
    busy_outputs(harness, 4, max_tokens=150)
    lanes = []
    for number in range(12):
        request = harness.submit(prompt=f"{number:3}" * 32, max_tokens=2)
        harness.tick()
        lanes.append(request.lane)
        until_gone(harness, request)
    assert lanes[0] == PREFILL_LANE
    assert lanes[-1] == DECODE_LANE
    harness.finish()

"""What the scheduler makes of its lanes' steps while all goes well."""

from __future__ import annotations

import pytest

from llamalane.errors import LlamalaneError, QueueFullError
from llamalane.ids import Level
from llamalane.scheduler.events import EventKind
from llamalane.scheduler.request import RequestState
from llamalane.streams import FinishReason, Join
from tests.scheduler.building import END
from tests.scheduler.harness import Start, error_of, result_of
from tests.scheduler.scripted_lane import letters_with_an_end, spoken


def test_a_request_is_answered(start: Start) -> None:
    harness = start()
    request = harness.submit(prompt="hello", max_tokens=5)
    harness.run()
    result = result_of(request)
    assert result.text == spoken("hello", 5)
    assert result.tokens == tuple(map(ord, result.text))
    assert result.finish_reason is FinishReason.LENGTH
    assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (5, 5)
    assert result.usage.total_tokens == 10
    kinds = [EventKind.ACCEPTED, EventKind.ADMITTED, EventKind.STARTED, EventKind.ENDED]
    assert harness.kinds(request) == kinds
    harness.check_conserved()


def test_an_output_that_ends_by_itself_counts_the_token_that_ended_it(start: Start) -> None:
    harness = start(speak=letters_with_an_end)
    prompt = next(p for p in map(chr, range(ord("a"), ord("z"))) if 0 < len(spoken(p, 8, letters_with_an_end)) < 8)
    request = harness.submit(prompt=prompt, max_tokens=8)
    harness.run()
    result = result_of(request)
    assert result.text == spoken(prompt, 8, letters_with_an_end)
    assert result.tokens == (*map(ord, result.text), END)
    assert result.finish_reason is FinishReason.STOP


def test_text_comes_while_the_request_runs(start: Start) -> None:
    harness = start()
    request = harness.submit(prompt="hello", max_tokens=4)
    harness.tick()
    text = ""
    for count in range(1, 5):
        harness.step()
        text += request.delivery.take_nowait()
        assert text == spoken("hello", count)
    assert request.state is RequestState.DONE


def test_running_requests_share_every_step(start: Start) -> None:
    harness = start([3])
    requests = [harness.submit(prompt=prompt, max_tokens=6) for prompt in ("one", "two", "three")]
    harness.run()
    assert [result_of(request).text for request in requests] == [spoken(p, 6) for p in ("one", "two", "three")]
    assert [step.decode_rows for step in harness.lane.steps] == [0, 3, 3, 3, 3, 3]


def test_urgent_request_overtakes_batch(start: Start) -> None:
    harness = start([1], max_parks=0)
    running = harness.submit(5, max_tokens=3)
    harness.tick()
    batch = [harness.submit(5) for _ in range(20)]
    urgent = harness.submit(1)
    while running.state is not RequestState.DONE:
        harness.step()
    assert urgent.state is RequestState.RUNNING
    assert all(request.state is RequestState.WAITING for request in batch)
    harness.run()
    harness.check_conserved()


def test_an_urgent_request_starts_in_the_step_after_its_acceptance_on_a_reserved_place(start: Start) -> None:
    harness = start([8], reserve={1: 1})
    for _ in range(24):
        harness.submit(5, max_tokens=30)
    harness.tick()
    harness.step(3)
    assert harness.pool.free == 1
    urgent = harness.submit(1)
    harness.tick()
    before = len(harness.lane.steps)
    harness.step()
    assert urgent.id in harness.lane.steps[before].started
    harness.run()
    harness.check_conserved()


def test_a_request_sheltered_by_the_share_is_marked(start: Start) -> None:
    harness = start([1], share=2)
    batch = harness.submit(5, max_tokens=1)
    urgent = harness.submit(1, max_tokens=1)
    harness.run()
    assert batch.sheltered
    assert not urgent.sheltered


def test_a_prompt_is_computed_in_pieces_beside_running_outputs(start: Start) -> None:
    harness = start([2], limit=256)
    first = harness.submit(prompt="a", max_tokens=100)
    harness.tick()
    harness.step(2)
    long = harness.submit(prompt="x" * 100, max_tokens=4)
    harness.tick()
    while long.first_token_at is None:
        harness.step()
    with_prompt = [step for step in harness.lane.steps[2:] if step.prefill_tokens]
    assert len(with_prompt) > 1
    assert sum(step.prefill_tokens for step in with_prompt) == 100
    assert all(step.decode_rows == 1 for step in with_prompt), "a running output stalled"
    harness.run()
    assert result_of(first).text == spoken("a", 100)
    assert result_of(long).text == spoken("x" * 100, 4)


def test_prompts_are_computed_in_the_order_of_urgency(start: Start) -> None:
    harness = start([3], limit=256, max_step_tokens=40)
    patient = harness.submit(5, prompt="a" * 30)
    urgent = harness.submit(1, prompt="b" * 30)
    normal = harness.submit(3, prompt="c" * 30)
    harness.tick()
    while not all(request.first_token_at is not None for request in (patient, urgent, normal)):
        harness.step()
    first_seen = [name for step in harness.lane.steps for name in step.started]
    assert first_seen == [urgent.id, normal.id, patient.id]


def test_less_urgent_outputs_sit_out_every_second_step_of_an_urgent_prompt(start: Start) -> None:
    harness = start([3], limit=256, max_step_tokens=16)
    urgent_output = harness.submit(1, prompt="a", max_tokens=100)
    patient_output = harness.submit(5, prompt="b", max_tokens=100)
    harness.tick()
    harness.step(4)
    before = len(urgent_output.generated), len(patient_output.generated)
    prompt = harness.submit(1, prompt="x" * 100, max_tokens=4)
    harness.tick()
    steps = 0
    while prompt.first_token_at is None:
        harness.step()
        steps += 1
    assert steps > 4
    assert len(urgent_output.generated) == before[0] + steps
    assert len(patient_output.generated) - before[1] in (steps // 2, (steps + 1) // 2)
    harness.run()
    assert result_of(patient_output).text == spoken("b", 100)


def test_a_stop_string_ends_the_row_and_surplus_tokens_do_not_count(start: Start) -> None:
    harness = start()
    text = spoken("hello", 12)
    request = harness.submit(prompt="hello", max_tokens=20, stop=[text[4:6]])
    harness.tick()
    for _ in range(12):  # the lane runs ahead of the loop
        harness.lane.step()
    harness.tick()
    result = result_of(request)
    assert result.text == text[: text.index(text[4:6])]
    assert result.finish_reason is FinishReason.STOP
    assert len(result.tokens) == result.usage.completion_tokens == text.index(text[4:6]) + 2
    assert harness.scheduler.counters.completion_tokens == len(result.tokens)
    assert request.state is RequestState.LEAVING
    assert harness.pool.leased == 1, "the place is held until the lane has confirmed"
    harness.step()
    assert not harness.is_there(request)
    assert list(request.delivery.take_nowait()) == list(result.text)
    harness.check_conserved()


def test_the_cells_of_surplus_tokens_are_not_taken_for_the_output(start: Start) -> None:
    harness = start([1])
    text = spoken("hello", 12)
    request = harness.submit(prompt="hello", max_tokens=20, stop=[text[4:6]])
    harness.tick()
    for _ in range(12):
        harness.lane.step()
    harness.run()
    kept = result_of(request).usage.completion_tokens - 1
    follow_up = harness.submit(prompt="hello" + spoken("hello", kept + 3), max_tokens=3)
    harness.run()
    assert result_of(follow_up).usage.cached_tokens == len("hello") + kept


def test_a_row_that_ends_by_itself_past_its_stop_string_releases_once(start: Start) -> None:
    harness = start()
    text = spoken("hello", 8)
    request = harness.submit(prompt="hello", max_tokens=8, stop=[text[4:6]])
    harness.tick()
    for _ in range(10):
        harness.lane.step()
    assert not harness.lane.rows
    harness.tick()
    assert request.state is RequestState.DONE
    harness.run()
    harness.step(3)
    harness.check_conserved()


@pytest.mark.parametrize("can_roll_back", [True, False])
def test_surplus_beyond_a_stop_string_is_never_counted_as_cached(start: Start, can_roll_back: bool) -> None:
    """A model that cannot drop the end of a sequence has to compute it anew, and the usage says so."""
    harness = start([1], can_roll_back=can_roll_back)
    text = spoken("hello", 8)
    harness.submit(prompt="hello", max_tokens=8, stop=[text[4:6]])
    harness.tick()
    for _ in range(10):  # the row reaches max_tokens before the loop has seen its stop string
        harness.lane.step()
    harness.run()
    follow_up = harness.submit(prompt="hello" + text + "!", max_tokens=3)
    harness.run()
    assert result_of(follow_up).text == spoken("hello" + text + "!", 3)
    assert harness.lane.wasted_joins == 0
    assert (result_of(follow_up).usage.cached_tokens > 0) == can_roll_back


@pytest.mark.parametrize("can_roll_back", [True, False])
def test_a_second_turn_reuses_the_first(start: Start, can_roll_back: bool) -> None:
    harness = start(can_roll_back=can_roll_back)
    first = harness.submit(prompt="hello", max_tokens=6)
    harness.run()
    second_prompt = "hello" + result_of(first).text + " again"
    second = harness.submit(prompt=second_prompt, max_tokens=6)
    harness.run()
    # The token chosen last was never computed.
    assert result_of(second).usage.cached_tokens == len("hello") + 6 - 1
    assert result_of(second).text == spoken(second_prompt, 6)
    assert harness.scheduler.counters.cached_tokens == len("hello") + 6 - 1
    assert harness.lane.wasted_joins == 0


def test_nothing_is_reused_across_tenants(start: Start) -> None:
    harness = start()
    harness.submit(prompt="a secret", max_tokens=6, tenant="one")
    harness.run()
    other = harness.submit(prompt="a secret and more", max_tokens=6, tenant="two")
    harness.run()
    assert result_of(other).usage.cached_tokens == 0


def test_a_request_goes_to_the_lane_that_holds_its_beginning(start: Start) -> None:
    harness = start([2, 2, 2])
    firsts = {prompt: harness.submit(prompt=prompt, max_tokens=4) for prompt in ("first", "second", "third")}
    harness.run()
    assert {request.lane for request in firsts.values()} == set(harness.lanes), "the emptiest lane comes first"
    for prompt, first in firsts.items():
        follow_up = harness.submit(prompt=prompt + result_of(first).text + "!", max_tokens=4)
        harness.run()
        assert follow_up.lane == first.lane == result_of(follow_up).timings.lane
        assert result_of(follow_up).usage.cached_tokens == len(prompt) + 3


def test_places_of_all_lanes_are_used(start: Start) -> None:
    harness = start([4, 4, 4])
    requests = [harness.submit(prompt=f"prompt {number}", max_tokens=6) for number in range(30)]
    harness.tick()
    assert harness.pool.free == 0
    assert [len(ledger.running) for ledger in harness.scheduler.ledgers.values()] == [4, 4, 4]
    harness.run()
    for number, request in enumerate(requests):
        assert result_of(request).text == spoken(f"prompt {number}", 6)
    harness.check_conserved()


def test_a_plan_that_was_not_taken_is_replaced_without_loss(start: Start) -> None:
    harness = start([8])
    requests = []
    for number in range(8):
        requests.append(harness.submit(prompt=f"prompt {number}", max_tokens=6))
        harness.tick()
    harness.scheduler.cancel(requests[0])
    harness.tick()
    harness.run()
    assert [result_of(request).text for request in requests[1:]] == [spoken(f"prompt {n}", 6) for n in range(1, 8)]
    harness.check_conserved()


def test_a_row_that_cannot_go_on_fails_alone(start: Start) -> None:
    harness = start([2])
    bad, good = harness.submit(prompt="bad"), harness.submit(prompt="good", max_tokens=6)
    harness.tick()
    harness.step(2)
    harness.lane.broken.add(bad.id)
    harness.run()
    assert isinstance(error_of(bad), LlamalaneError)
    assert result_of(good).text == spoken("good", 6)
    assert (harness.scheduler.counters.failed, harness.scheduler.counters.finished) == (1, 1)
    harness.check_conserved()


def test_timings_follow_the_clock(start: Start) -> None:
    harness = start([1])
    harness.submit(max_tokens=2)
    harness.tick()
    request = harness.submit(max_tokens=2)
    harness.clock.advance(1)
    harness.step(2)
    harness.clock.advance(2)
    harness.step()
    harness.clock.advance(4)
    harness.step()
    timings = result_of(request).timings
    assert (timings.wait, timings.first_token, timings.total) == (1, 3, 7)
    assert (timings.lane, timings.restarts) == ("lane-0", 0)


def test_a_full_queue_refuses_at_once_and_says_when_to_come_back(start: Start) -> None:
    harness = start([1], max_requests=2)
    harness.submit(max_tokens=3)
    harness.tick()
    for _ in range(2):
        harness.submit(max_tokens=3)
    with pytest.raises(QueueFullError) as caught:
        harness.submit()
    told = caught.value.retry_after
    assert told > 0
    harness.clock.advance(told)
    harness.step(3)  # the first one has kept its place for so long
    harness.submit()
    with pytest.raises(QueueFullError) as caught:
        harness.submit()
    assert told <= caught.value.retry_after < 4 * told
    harness.run()
    harness.check_conserved()


def test_counters_and_books_agree(start: Start) -> None:
    harness = start([2])
    requests = [harness.submit(level, prompt="hello", max_tokens=4) for level in (1, 3, 3, 5)]
    harness.tick()
    assert dict(harness.scheduler.running) == {Level(1): 1, Level(3): 1}
    assert harness.scheduler.queue.sizes[Level(5)] == 1
    harness.run()
    counters = harness.scheduler.counters
    assert counters.admitted == counters.finished == len(requests)
    assert counters.prompt_tokens == 4 * len("hello")
    assert counters.completion_tokens == 16
    assert counters.cached_tokens == sum(result_of(request).usage.cached_tokens for request in requests)


def test_whoever_waits_for_quiet_is_called_once_nothing_is_left(start: Start) -> None:
    harness = start([1])
    calls: list[str] = []
    for _ in range(2):
        harness.submit(max_tokens=3)
    harness.scheduler.when_idle(lambda: calls.append("quiet"))
    while not harness.scheduler.idle:
        assert not calls
        harness.step()
    harness.tick()
    assert calls == ["quiet"]
    harness.scheduler.when_idle(lambda: calls.append("at once"))
    harness.tick()
    harness.tick()
    assert calls == ["quiet", "at once"]


def test_a_lane_is_told_nothing_new_while_nothing_changes(start: Start) -> None:
    harness = start([1])
    harness.submit(max_tokens=20)
    harness.tick()
    posts: list[object] = []
    post = harness.lane.post
    harness.step()
    harness.lane.post = posts.append  # type: ignore[method-assign, assignment]
    harness.step(10)
    harness.lane.post = post  # type: ignore[method-assign]
    assert posts == []


def test_joins_carry_what_the_lane_needs(start: Start) -> None:
    harness = start()
    request = harness.submit(2, prompt="hello", max_tokens=5)
    harness.tick()
    harness.lane.step()
    join = harness.lane.rows[request.id].join
    assert isinstance(join, Join)
    assert list(join.tokens) == [ord(letter) for letter in "hello"]
    assert (join.generated, join.max_tokens, join.sampling) == (0, 5, request.sampling)

from __future__ import annotations

import math
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from llamalane.errors import ContextError
from llamalane.streams import FinishReason, SamplingParameters
from llamalane.streams.gate import Gate
from llamalane.streams.lane import Lane
from llamalane.streams.llama import Context, Model
from tests.models.tiny_gguf import EOS
from tests.streams.lane_rig import (
    ENDLESS,
    OPTIONS,
    PROMPT,
    ROUNDING,
    TIMEOUT,
    Inbox,
    Script,
    finish_of,
    open_lane,
    outputs_of,
    shortfall,
    tokens_of,
)
from tests.streams.plans import edit, join, leave, plan


def test_one_plan_is_enough_for_a_whole_request(start: Callable[..., Lane], inbox: Inbox, model: Model) -> None:
    start().post(plan(1, join("a", 2, PROMPT, max_tokens=12, sampling=ENDLESS)))
    reports = inbox.reports_until("a")
    assert [len(report.outputs) for report in reports] == [1] * 12
    assert [report.step for report in reports] == list(range(1, 13))
    assert {report.lane for report in reports} == {"lane"}
    assert {report.version for report in reports} == {1}
    assert [report.started for report in reports] == [("a",)] + [()] * 11
    assert [report.prefill_tokens for report in reports] == [len(PROMPT)] + [0] * 11
    assert [report.decode_rows for report in reports] == [0] + [1] * 11
    assert [output.finish for output in outputs_of("a", reports)] == [None] * 11 + [FinishReason.LENGTH]
    assert shortfall(model, PROMPT, tokens_of("a", reports)) < ROUNDING
    assert inbox.empty()


def test_times_say_where_a_step_s_time_went(start: Callable[..., Lane], inbox: Inbox) -> None:
    lane = start()
    lane.post(plan(1, join("a", 0, PROMPT, max_tokens=5, sampling=ENDLESS)))
    times = [report.times for report in inbox.reports_until("a")]
    previous_end = -math.inf
    for i, step in enumerate(times):
        assert step is not None
        assert step.decode > 0
        assert step.sample > 0
        assert (step.idle > 0) == (i > 0), "a lane that slept was not idle"
        if i:
            assert step.begin - step.idle == pytest.approx(previous_end)
        previous_end = step.begin + step.decode + step.sample
    lane.post(plan(2, leave("a")))
    assert inbox.report().times is None
    lane.post(plan(3, join("b", max_tokens=1)))
    after_sleep = inbox.report().times
    assert after_sleep is not None
    assert after_sleep.idle == 0


def test_a_long_prompt_is_computed_in_chunks_of_the_plan_s_size(
    start: Callable[..., Lane], inbox: Inbox, model: Model
) -> None:
    start().post(plan(1, join("a", 0, PROMPT, max_tokens=2, sampling=ENDLESS), prefill_tokens=7))
    reports = inbox.reports_until("a")
    assert [report.prefill_tokens for report in reports] == [7, 7, 6, 0]
    assert [[one.computed for one in report.prompts] for report in reports] == [[7], [14], [20], []]
    assert [len(report.outputs) for report in reports] == [0, 0, 1, 1]
    assert shortfall(model, PROMPT, tokens_of("a", reports)) < ROUNDING


def test_rows_run_together_and_end_each_at_its_own_time(start: Callable[..., Lane], inbox: Inbox, model: Model) -> None:
    prompts = {"a": PROMPT, "b": PROMPT[::-1], "c": PROMPT[:4], "d": [200]}
    lengths = {"a": 9, "b": 1, "c": 5, "d": 7}
    joins = [join(name, i, prompts[name], max_tokens=lengths[name], sampling=ENDLESS) for i, name in enumerate("abcd")]
    start().post(plan(1, *joins))
    reports = inbox.reports_until(*"abcd")
    assert len(reports) == 9
    assert [report.decode_rows for report in reports] == [1, 3, 3, 3, 3, 2, 2, 1, 1]
    for name, prompt in prompts.items():
        assert len(tokens_of(name, reports)) == lengths[name]
        assert finish_of(name, reports) is FinishReason.LENGTH
        assert shortfall(model, prompt, tokens_of(name, reports)) < ROUNDING, name


def test_the_end_of_generation_ends_a_row_with_stop(start: Callable[..., Lane], inbox: Inbox) -> None:
    ending = SamplingParameters(temperature=0, seed=0, logit_bias={EOS: 100.0})
    start().post(plan(1, join("a", 0, PROMPT, max_tokens=9, sampling=ending)))
    (output,) = outputs_of("a", inbox.reports_until("a"))
    assert (output.token, output.finish) == (EOS, FinishReason.STOP)


def test_the_end_of_generation_as_the_last_token_allowed_is_a_stop(start: Callable[..., Lane], inbox: Inbox) -> None:
    ending = SamplingParameters(temperature=0, seed=0, logit_bias={EOS: 100.0})
    start().post(plan(1, join("a", 0, PROMPT, max_tokens=1, sampling=ending)))
    assert finish_of("a", inbox.reports_until("a")) is FinishReason.STOP


def test_who_leaves_gets_nothing_more(start: Callable[..., Lane], inbox: Inbox) -> None:
    lane = start()
    lane.post(plan(1, join("a", 0, PROMPT, max_tokens=200, sampling=ENDLESS)))
    inbox.report()
    lane.post(plan(2, leave("a", keep=len(PROMPT)), join("b", 1, PROMPT, max_tokens=3, sampling=ENDLESS)))
    reports = inbox.reports_until("b")
    left: list[tuple[str, ...]] = [report.left for report in reports]
    assert left.count(("a",)) == 1
    after = reports[left.index(("a",)) :]
    assert outputs_of("a", after) == []
    assert [report.version for report in after] == [2] * len(after)


def test_a_lane_with_nothing_left_to_do_says_so_and_sleeps(start: Callable[..., Lane], inbox: Inbox) -> None:
    script = Script()
    lane = start(script)
    lane.post(plan(1, join("a", 0, PROMPT, max_tokens=200, sampling=ENDLESS)))
    inbox.report()
    lane.post(plan(2, leave("a")))
    while (report := inbox.report()).version == 1:
        pass
    assert (report.left, report.outputs, report.times) == (("a",), (), None)
    assert report.step == script.steps, "the step's number changed though nothing was computed"
    lane.post(plan(3, leave("a")))
    last = inbox.report()
    assert (last.version, last.left, last.times) == (3, ("a",), None)
    lane.post(plan(4, join("b", 0, [5], max_tokens=1)))
    assert inbox.report().times is not None


def test_cells_that_were_kept_are_not_computed_again(start: Callable[..., Lane], inbox: Inbox, model: Model) -> None:
    lane = start()
    lane.post(plan(1, join("a", 3, PROMPT, max_tokens=6, sampling=ENDLESS)))
    first = tokens_of("a", inbox.reports_until("a"))
    history = [*PROMPT, *first[:-1]]
    prompt = [*history, first[-1], 33, 34]
    lane.post(plan(2, join("b", 3, prompt, cached=len(history), max_tokens=6, sampling=ENDLESS)))
    reports = inbox.reports_until("b")
    assert reports[0].prefill_tokens == 3
    assert shortfall(model, prompt, tokens_of("b", reports)) < ROUNDING
    other_way = [*PROMPT, 44, 45]
    lane.post(plan(3, join("c", 3, other_way, cached=len(PROMPT), max_tokens=6, sampling=ENDLESS)))
    reports = inbox.reports_until("c")
    assert reports[0].prefill_tokens == 2
    assert shortfall(model, other_way, tokens_of("c", reports)) < ROUNDING


def test_a_restarted_request_draws_on_as_if_nothing_had_happened(start: Callable[..., Lane], inbox: Inbox) -> None:
    lane = start()
    seeded = SamplingParameters(seed=5, ignore_eos=True, temperature=1.0)
    lane.post(plan(1, join("a", 0, PROMPT, max_tokens=10, sampling=seeded)))
    whole = tokens_of("a", inbox.reports_until("a"))
    tokens = [*PROMPT, *whole[:4]]
    lane.post(plan(2, join("b", 1, tokens, generated=4, max_tokens=6, sampling=seeded)))
    assert tokens_of("b", inbox.reports_until("b")) == whole[4:]


def test_penalties_look_at_the_prompt_too(start: Callable[..., Lane], inbox: Inbox) -> None:
    prompt = list(range(3, 203))
    strict = SamplingParameters(
        temperature=0, seed=0, ignore_eos=True, presence_penalty=2.0, frequency_penalty=2.0, repeat_last_n=-1
    )
    lane = start()
    lane.post(plan(1, join("free", 0, prompt, max_tokens=1, sampling=ENDLESS)))
    (free,) = tokens_of("free", inbox.reports_until("free"))
    assert free in prompt
    lane.post(plan(2, join("strict", 1, prompt, max_tokens=1, sampling=strict)))
    (penalized,) = tokens_of("strict", inbox.reports_until("strict"))
    assert penalized not in prompt


def test_no_edit_is_lost_when_plans_are_replaced_in_the_mailbox(start: Callable[..., Lane], inbox: Inbox) -> None:
    in_step, go_on = threading.Event(), threading.Event()

    def stop_in_the_second_step(step: int) -> None:
        if step == 2:
            in_step.set()
            assert go_on.wait(TIMEOUT)

    lane = start(Script(stop_in_the_second_step))
    lane.post(plan(1, join("a", 0, PROMPT, max_tokens=200, sampling=ENDLESS)))
    assert in_step.wait(TIMEOUT)
    second = edit(2, join("b", 1, PROMPT, max_tokens=3))
    third = edit(3, leave("a"))
    lane.post(plan(2, second))
    lane.post(plan(3, second, third))
    lane.post(plan(4, second, third, join("c", 2, PROMPT, max_tokens=3)))
    go_on.set()
    reports = inbox.reports_until("b", "c")
    assert [report.version for report in reports[:3]] == [1, 1, 4]
    assert (reports[2].left, reports[2].started) == (("a",), ("b", "c"))
    lane.post(plan(5, second, third, edit(4, join("c", 2, PROMPT, max_tokens=3)), join("d", 3, [5], max_tokens=1)))
    (report,) = inbox.reports_until("d")
    assert (report.started, report.left) == (("d",), ())


def test_a_row_that_cannot_be_sampled_ends_alone(start: Callable[..., Lane], inbox: Inbox, model: Model) -> None:
    lane = start(Script(broken_rows=[3]))
    changes = [join(name, i, PROMPT, max_tokens=6, sampling=ENDLESS) for i, name in enumerate("ab")]
    lane.post(plan(1, *changes))
    reports = inbox.reports_until("a", "b")
    *good, bad = outputs_of("a", reports)
    assert len(good) == 2
    assert bad.ended
    assert bad.finish is None
    assert "not finite" in str(bad.error)
    assert len(tokens_of("b", reports)) == 6
    assert finish_of("b", reports) is FinishReason.LENGTH
    assert shortfall(model, PROMPT, tokens_of("b", reports)) < ROUNDING


def test_the_context_belongs_to_the_lane_s_own_thread(model: Model, inbox: Inbox) -> None:
    script = Script()
    lane = open_lane(model, script)
    lane.start(inbox)
    lane.post(plan(1, join("a", max_tokens=2, sampling=ENDLESS)))
    inbox.reports_until("a")
    lane.close()
    assert len(script.threads) == 1
    assert threading.get_ident() not in script.threads
    assert (script.opened, script.closed) == (1, 1)


def test_a_lane_can_be_closed_before_it_was_started_and_again(model: Model) -> None:
    script = Script()
    lane = open_lane(model, script)
    lane.close()
    lane.close()
    assert (script.opened, script.closed) == (1, 1)


def test_closing_waits_for_the_step_under_way_which_is_told_of(model: Model, inbox: Inbox) -> None:
    in_step, go_on = threading.Event(), threading.Event()

    def stop_in_the_second_step(step: int) -> None:
        if step == 2:
            in_step.set()
            assert go_on.wait(TIMEOUT)

    script = Script(stop_in_the_second_step)
    lane = open_lane(model, script)
    lane.start(inbox)
    lane.post(plan(1, join("a", 0, PROMPT, max_tokens=200, sampling=ENDLESS)))
    assert in_step.wait(TIMEOUT)
    with ThreadPoolExecutor(1) as executor:
        closing = executor.submit(lane.close)
        assert script.closed == 0
        go_on.set()
        closing.result(TIMEOUT)
    assert script.closed == 1
    reports = []
    while not inbox.empty():
        reports.append(inbox.report())
    assert len(reports) == script.steps >= 2
    assert len(tokens_of("a", reports)) == len(reports)


def test_what_keeps_the_first_context_from_opening_is_raised(model: Model) -> None:
    def refuse(_: int) -> None:
        raise ContextError("no room")

    script = Script(before_open=refuse)
    with pytest.raises(ContextError, match="no room"):
        open_lane(model, script)
    assert (script.opened, script.closed) == (1, 0)


@pytest.mark.timeout(TIMEOUT)
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps a thread on its cores")
def test_cores_that_do_not_exist_are_told_rather_than_waited_for(model: Model) -> None:
    script = Script()
    with pytest.raises(OSError, match="Invalid argument"):
        open_lane(model, script, cores=(100_000,))
    assert script.opened == 0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps a thread on its cores")
def test_a_lane_keeps_to_its_cores_and_leaves_the_others_alone(start: Callable[..., Lane], inbox: Inbox) -> None:
    before = os.sched_getaffinity(0)
    found: list[set[int]] = []
    lane = start(Script(lambda _: found.append(os.sched_getaffinity(0))), cores=(max(before),))
    lane.post(plan(1, join("a", max_tokens=1)))
    inbox.reports_until("a")
    assert found == [{max(before)}]
    assert os.sched_getaffinity(0) == before


def test_a_step_without_room_is_refused_at_once(model: Model) -> None:
    script = Script()
    with pytest.raises(ContextError, match="room for at least 1 token"):
        open_lane(model, script, max_step_tokens=0)
    assert script.opened == 0


def test_lanes_on_one_device_step_side_by_side(start: Callable[..., Lane], inbox: Inbox) -> None:
    together = threading.Barrier(2)

    def meet(step: int) -> None:
        if step == 2:
            together.wait(TIMEOUT)  # breaks unless the other lane is in a step too

    gate = Gate()
    lanes = [start(Script(meet), name=name, gate=gate) for name in ("left", "right")]
    for lane in lanes:
        lane.post(plan(1, join(lane.name, max_tokens=3, sampling=ENDLESS)))
    reports = inbox.reports_until("left", "right")
    assert {report.lane for report in reports} == {"left", "right"}


def test_contexts_are_made_and_freed_between_the_other_lanes_steps(
    start: Callable[..., Lane], inbox: Inbox, model: Model
) -> None:
    opening = threading.Lock()

    def step_alone(_: int) -> None:
        assert not opening.locked(), "a step begins while a context is made"

    def open_alone(_: int) -> None:
        with opening:
            for _ in range(3):
                assert not steady.in_step, "a context is made during a step"
                Context(model, OPTIONS).close()

    gate, steady = Gate(), Script(step_alone)
    lane = start(steady, name="steady", gate=gate)
    lane.post(plan(1, join("a", 0, PROMPT, max_tokens=200, sampling=ENDLESS)))
    inbox.report()
    for i in range(6):
        open_lane(model, Script(before_open=open_alone), name=f"passing-{i}", gate=gate).close()
    assert len(tokens_of("a", inbox.reports_until("a"))) == 199

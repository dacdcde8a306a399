"""A lane whose rows may fill a number of cells, and what becomes of paused ones when its context fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from llamalane.errors import DecodeError
from llamalane.streams import Join, Parking
from llamalane.streams.lane import Lane
from llamalane.streams.llama import Model
from tests.streams.lane_rig import (
    ENDLESS,
    OPTIONS,
    PROMPT,
    ROUNDING,
    Hold,
    Inbox,
    Script,
    shortfall,
    tokens_of,
)
from tests.streams.plans import edit, grant, join, leave, park, plan, trim

Start = Callable[..., Lane]


def request(name: str, sequence: int = 0, cells: int | None = None, max_tokens: int = 8) -> Join:
    return join(name, sequence, PROMPT, max_tokens=max_tokens, sampling=ENDLESS, cells=cells)


def test_a_lane_whose_rows_wait_for_cells_sleeps_until_they_get_some(start: Start, inbox: Inbox, model: Model) -> None:
    script = Script()
    lane = start(script)
    lane.post(plan(1, request("a", cells=len(PROMPT) + 2)))
    reports = [inbox.report() for _ in range(3)]
    lane.post(plan(2))  # it is asleep, or it will not answer without computing
    idle = inbox.report()
    assert (idle.version, idle.step, idle.times) == (2, 3, None)
    assert script.steps == 3
    lane.post(plan(3, grant("a", len(PROMPT) + 8)))
    rest = inbox.reports_until("a")
    output = tokens_of("a", [*reports, *rest])
    assert len(output) == 8
    assert shortfall(model, PROMPT, output) < ROUNDING


def test_a_prompt_waits_for_cells_in_its_middle(start: Start, inbox: Inbox, model: Model) -> None:
    lane = start()
    lane.post(plan(1, request("a", cells=13)))
    first = inbox.report()
    assert (first.prefill_tokens, first.outputs) == (13, ())
    lane.post(plan(2, grant("a", 100)))
    reports = inbox.reports_until("a")
    assert reports[0].prefill_tokens == len(PROMPT) - 13
    assert shortfall(model, PROMPT, tokens_of("a", reports)) < ROUNDING


def test_others_run_on_while_one_waits_for_cells(start: Start, inbox: Inbox, model: Model) -> None:
    lane = start()
    lane.post(plan(1, request("full", 0, cells=len(PROMPT)), request("free", 1)))
    reports = inbox.reports_until("free")
    assert len(tokens_of("full", reports)) == 1
    assert shortfall(model, PROMPT, tokens_of("free", reports)) < ROUNDING


@pytest.mark.parametrize("how", list(Parking))
def test_who_waits_for_cells_can_be_parked(start: Start, inbox: Inbox, how: Parking) -> None:
    lane = start()
    lane.post(plan(1, request("a", cells=len(PROMPT) + 1)))
    inbox.report(), inbox.report()
    lane.post(plan(2, park("a", 0, how)))
    (parked,) = inbox.report().parked
    assert parked.computed == len(PROMPT) + 1


def test_who_waits_for_cells_can_leave(start: Start, inbox: Inbox) -> None:
    lane = start()
    lane.post(plan(1, request("a", cells=len(PROMPT))))
    inbox.report()
    lane.post(plan(2, leave("a")))
    assert inbox.report().left == ("a",)


def test_a_lane_whose_rows_wait_for_cells_can_be_closed(start: Start, inbox: Inbox) -> None:
    script = Script()
    lane = start(script)
    lane.post(plan(1, request("a", cells=len(PROMPT))))
    inbox.report()
    lane.close()
    assert (script.opened, script.closed, script.steps) == (1, 1, 1)


def test_cells_that_were_given_up_can_be_used_by_others(start: Start, inbox: Inbox, model: Model) -> None:
    lane = start(options=replace(OPTIONS, cells=256))
    long = [3 + i % 250 for i in range(200)]
    lane.post(plan(1, join("old", 0, long, max_tokens=2, sampling=ENDLESS)))
    inbox.reports_until("old")
    lane.post(plan(2, trim(0), join("new", 1, long[::-1], max_tokens=4, sampling=ENDLESS)))
    output = tokens_of("new", inbox.reports_until("new"))
    assert shortfall(model, long[::-1], output) < ROUNDING


@pytest.mark.parametrize("sequences", [(0, 1, 2, 3), (3, 1, 2, 0), (3, 0)])
def test_rows_of_a_partitioned_lane_come_out_right(
    start: Start, inbox: Inbox, model: Model, sequences: Sequence[int]
) -> None:
    lane = start(options=replace(OPTIONS, partitioned=True, micro_batch=16))
    lengths = {0: 20, 1: 3, 2: 41, 3: 1}
    prompts = {f"r{sequence}": [3 + sequence + i for i in range(lengths[sequence])] for sequence in sequences}
    joins = [
        edit(version, join(f"r{sequence}", sequence, prompts[f"r{sequence}"], max_tokens=20, sampling=ENDLESS))
        for version, sequence in enumerate(sequences, 1)
    ]
    for version in range(1, len(joins) + 1):
        lane.post(plan(version, *joins[:version], prefill_tokens=9))
    reports = inbox.reports_until(*prompts)
    for name, prompt in prompts.items():
        assert len(tokens_of(name, reports)) == 20
        assert shortfall(model, prompt, tokens_of(name, reports)) < ROUNDING, name


def test_a_failure_loses_what_is_paused(start: Start, inbox: Inbox, model: Model) -> None:
    hold = Hold(2)

    def follow(step: int) -> None:
        hold(step)
        if step == 4:
            raise DecodeError(-3)

    lane = start(Script(follow))
    lane.post(plan(1, request("paused", 0), request("running", 1)))
    hold.wait()
    lane.post(plan(2, park("paused", 0)))
    hold.let_go()
    reports = [inbox.report() for _ in range(3)]
    (parked,) = reports[2].parked
    assert parked.computed == len(PROMPT) + 1
    inbox.failure()
    inbox.ready()
    lane.post(plan(3, park("paused", 0, Parking.SWAP), epoch=1))
    (lost,) = inbox.report().parked
    assert (lost.computed, lost.saved) == (0, None)
    said = tokens_of("paused", reports)
    again = join("paused", 0, [*PROMPT, *said], generated=len(said), max_tokens=6, sampling=ENDLESS)
    lane.post(plan(4, again, epoch=1))
    after = inbox.reports_until("paused")
    assert after[0].prefill_tokens == len(PROMPT) + len(said)
    assert shortfall(model, PROMPT, [*said, *tokens_of("paused", after)]) < ROUNDING


def test_parking_that_was_planned_before_a_failure_is_dropped(start: Start, inbox: Inbox) -> None:
    hold = Hold(2)

    def follow(step: int) -> None:
        hold(step)
        if step == 2:
            raise DecodeError(-3)

    lane = start(Script(follow))
    lane.post(plan(1, request("a", 0), request("b", 1)))
    hold.wait()
    lane.post(plan(2, park("a", 0, Parking.SWAP)))
    hold.let_go()
    inbox.report()
    inbox.failure()
    inbox.ready()
    lane.post(plan(3, request("b", 1), epoch=1))
    assert all(report.parked == () for report in inbox.reports_until("b"))


def test_saved_cells_outlive_the_context(start: Start, inbox: Inbox, model: Model) -> None:
    hold = Hold(2)

    def follow(step: int) -> None:
        hold(step)
        if step == 3:
            raise DecodeError(-3)

    lane = start(Script(follow))
    lane.post(plan(1, request("a", 0)))
    hold.wait()
    lane.post(plan(2, park("a", 0, Parking.SWAP)))
    hold.let_go()
    reports = [inbox.report() for _ in range(3)]
    (parked,) = reports[2].parked
    assert parked.saved is not None
    lane.post(plan(3, request("b", 1)))
    inbox.failure()
    inbox.ready()
    said = tokens_of("a", reports)
    again = join(
        "a",
        2,
        [*PROMPT, *said],
        cached=parked.computed,
        generated=len(said),
        max_tokens=6,
        sampling=ENDLESS,
        saved=parked.saved,
    )
    lane.post(plan(4, again, epoch=1))
    after = inbox.reports_until("a")
    assert (after[0].prefill_tokens, after[0].decode_rows) == (0, 1)
    assert shortfall(model, PROMPT, [*said, *tokens_of("a", after)]) < ROUNDING

"""Requests that are taken off a lane and put back, on a model: their output is that of one who was left alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from llamalane.streams import Change, Join, Parked, Parking, SamplingParameters, StepReport
from llamalane.streams.lane import Lane
from llamalane.streams.llama import Model
from tests.streams.lane_rig import (
    ENDLESS,
    PROMPT,
    ROUNDING,
    SEEDED,
    Hold,
    Inbox,
    Script,
    misdraw,
    shortfall,
    tokens_of,
)
from tests.streams.plans import join, leave, park, plan

LENGTH = 12
IN_THE_PROMPT, IN_THE_OUTPUT = 2, 6
"""Steps in which the request "a" is parked: its prompt takes three."""
COMPUTED = {IN_THE_PROMPT: 14, IN_THE_OUTPUT: 23}
"""How many of its tokens are computed then."""
MISSING = {IN_THE_PROMPT: 6, IN_THE_OUTPUT: 1}
"""How many have still to be, before the next one is chosen."""
GREEDY_OR_SEEDED = pytest.mark.parametrize("sampling", [ENDLESS, SEEDED], ids=["greedy", "seeded"])
EACH_WAY = pytest.mark.parametrize("how", list(Parking))
EACH_TIME = pytest.mark.parametrize("step", [IN_THE_PROMPT, IN_THE_OUTPUT], ids=["in the prompt", "in the output"])


class Play:
    """A lane, and the request "a" on its sequence 1."""

    def __init__(self, start: Callable[..., Lane], inbox: Inbox, sampling: SamplingParameters = ENDLESS) -> None:
        self.inbox = inbox
        self.sampling = sampling
        self.reports: list[StepReport] = []
        self._script = Script()
        self._lane = start(self._script)
        self._version = 0

    @property
    def generated(self) -> list[int]:
        return tokens_of("a", self.reports)

    @property
    def history(self) -> list[int]:
        return [*PROMPT, *self.generated]

    def post(self, *changes: Change, prefill_tokens: int = 64) -> None:
        self._version += 1
        self._lane.post(plan(self._version, *changes, prefill_tokens=prefill_tokens))

    def park(self, how: Parking, step: int, *others: Change) -> Parked:
        """Let "a" join, with others, and park it in step `step`."""
        a = join("a", 1, PROMPT, max_tokens=LENGTH, sampling=self.sampling)
        return self.park_after(how, step, a, *others, prefill_tokens=7)

    def park_after(self, how: Parking, steps: int, *changes: Change, prefill_tokens: int = 64) -> Parked:
        """Make changes, and park "a" in the last one of so many steps."""
        hold = self._script.before_step = Hold(self._script.steps + steps)
        self.post(*changes, prefill_tokens=prefill_tokens)
        hold.wait()
        self.post(park("a", 1, how))
        hold.let_go()
        return self.parked()

    def park_again(self, how: Parking) -> Parked:
        """Park "a" in another way, which is paused."""
        self.post(park("a", 1, how))
        return self.parked()

    def parked(self) -> Parked:
        while not (report := self.inbox.report()).parked:
            self.reports.append(report)
        self.reports.append(report)
        (parked,) = report.parked
        return parked

    def use(self, sequence: int) -> None:
        """Let another request have a sequence, from beginning to end."""
        self.post(join("other", sequence, PROMPT[::-1], max_tokens=8, sampling=ENDLESS))
        self.inbox.reports_until("other")

    def again(self, parked: Parked, sequence: int = 1) -> Join:
        """Return the edit with which "a" goes on, with what was saved or what its cells still hold."""
        return join(
            "a",
            sequence,
            self.history,
            cached=parked.computed,
            generated=len(self.generated),
            max_tokens=LENGTH - len(self.generated),
            sampling=self.sampling,
            saved=parked.saved,
        )

    def finish(self, change: Join) -> StepReport:
        """Let "a" go on to its end; returns the first step."""
        self.post(change)
        reports = self.inbox.reports_until("a")
        self.reports += reports
        return reports[0]

    def check(self, model: Model) -> None:
        """Check that "a" has said what it would have said undisturbed."""
        assert len(self.generated) == LENGTH
        error = shortfall if self.sampling.greedy else misdraw
        assert error(model, PROMPT, self.generated) < ROUNDING


@pytest.fixture
def play(start: Callable[..., Lane], inbox: Inbox) -> Play:
    return Play(start, inbox)


@GREEDY_OR_SEEDED
@EACH_TIME
def test_a_paused_request_goes_on_where_it_was(
    start: Callable[..., Lane], inbox: Inbox, model: Model, sampling: SamplingParameters, step: int
) -> None:
    play = Play(start, inbox, sampling)
    parked = play.park(Parking.PAUSE, step)
    assert (parked.computed, parked.saved) == (COMPUTED[step], None)
    play.use(sequence=2)
    first = play.finish(play.again(parked))
    assert first.prefill_tokens + first.decode_rows == MISSING[step]
    play.check(model)


@GREEDY_OR_SEEDED
@EACH_TIME
@pytest.mark.parametrize("sequence", [1, 3])
def test_a_swapped_request_goes_on_where_it_was_on_whatever_sequence(
    start: Callable[..., Lane], inbox: Inbox, model: Model, sampling: SamplingParameters, step: int, sequence: int
) -> None:
    play = Play(start, inbox, sampling)
    parked = play.park(Parking.SWAP, step)
    assert parked.saved is not None
    assert parked.computed == parked.saved.length == COMPUTED[step]
    play.use(sequence=1)
    first = play.finish(play.again(parked, sequence))
    assert first.prefill_tokens + first.decode_rows == MISSING[step]
    play.check(model)


@GREEDY_OR_SEEDED
@EACH_TIME
def test_a_request_that_lost_its_cells_computes_them_again(
    start: Callable[..., Lane], inbox: Inbox, model: Model, sampling: SamplingParameters, step: int
) -> None:
    play = Play(start, inbox, sampling)
    parked = play.park(Parking.RECOMPUTE, step)
    assert (parked.computed, parked.saved) == (COMPUTED[step], None)
    play.use(sequence=1)
    history = play.history
    first = play.finish(replace(play.again(parked), cached=0))
    assert first.prefill_tokens == len(history)
    play.check(model)


@EACH_TIME
def test_a_paused_request_can_be_swapped_later(play: Play, model: Model, step: int) -> None:
    play.park(Parking.PAUSE, step)
    play.use(sequence=2)
    parked = play.park_again(Parking.SWAP)
    assert parked.computed == COMPUTED[step]
    play.use(sequence=1)
    play.finish(play.again(parked, sequence=2))
    play.check(model)


def test_a_paused_request_can_lose_its_cells_later(play: Play, model: Model) -> None:
    play.park(Parking.PAUSE, IN_THE_OUTPUT)
    parked = play.park_again(Parking.RECOMPUTE)
    assert (parked.computed, parked.saved) == (COMPUTED[IN_THE_OUTPUT], None)
    play.use(sequence=1)
    play.finish(replace(play.again(parked), cached=0))
    play.check(model)


@EACH_TIME
def test_a_request_can_be_parked_in_every_way_one_after_the_other(play: Play, model: Model, step: int) -> None:
    swapped = play.park(Parking.SWAP, step)
    paused = play.park_after(Parking.PAUSE, 2, play.again(swapped))
    lost = play.park_after(Parking.RECOMPUTE, 2, play.again(paused))
    play.finish(replace(play.again(lost), cached=0))
    play.check(model)


@EACH_WAY
def test_who_runs_beside_a_parked_request_is_not_disturbed(play: Play, model: Model, how: Parking) -> None:
    prompt = PROMPT[::-1]
    parked = play.park(how, IN_THE_OUTPUT, join("neighbour", 0, prompt, max_tokens=30, sampling=ENDLESS))
    again = play.again(parked)
    play.post(replace(again, cached=0) if how is Parking.RECOMPUTE else again)
    play.reports += play.inbox.reports_until("a", "neighbour")
    output = tokens_of("neighbour", play.reports)
    assert len(output) == 30
    assert shortfall(model, prompt, output) < ROUNDING
    play.check(model)


@pytest.mark.parametrize("damage", ["flipped", "cut", "gone"])
def test_saved_cells_that_are_damaged_are_computed_again(play: Play, model: Model, damage: str) -> None:
    parked = play.park(Parking.SWAP, IN_THE_OUTPUT)
    assert parked.saved is not None
    data = parked.saved.data
    if damage == "flipped":
        data[len(data) // 2] ^= 1
    else:
        del data[len(data) // 2 if damage == "cut" else 0 :]
    history = play.history
    first = play.finish(play.again(parked))
    assert first.prefill_tokens == len(history)
    play.check(model)


def test_a_paused_request_can_be_dropped_and_its_sequence_used(play: Play) -> None:
    play.park(Parking.PAUSE, IN_THE_OUTPUT)
    play.post(leave("a"))
    assert play.inbox.report().left == ("a",)
    play.use(sequence=1)

"""A simulated lane: the rows that it computes, step by step or many equal steps at once.

It follows the rules of `llamalane.streams.running_set`. A row with one token to compute decodes in every step; longer
prompts are computed in chunks, the most urgent first, within the step's budget; while a prompt is computed, less
urgent rows sit out every second step.

Between two changes all steps are alike, so they are computed at once: a *run* of equal steps ends when a row ends, or
gets on so far that it can be displaced again. A plan that arrives meanwhile cuts the run short at the end of the step
under way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from llamalane.bench.simulator.request import Nanoseconds
from llamalane.bench.simulator.row import Row
from llamalane.errors import LlamalaneError
from llamalane.ids import PlanVersion
from llamalane.streams import StepPlan, StepShare


class StepTimes(Protocol):
    """What a lane asks of its speed."""

    def step(self, decode_rows: int, prompt_tokens: int) -> Nanoseconds:
        """Return how long a step takes, at least 1 ns."""


class Moment(NamedTuple):
    """When something happens. Of what happens at the same time, arrivals come first, then the lanes by number."""

    time: Nanoseconds
    lane: int


ARRIVALS = -1
"""Stands for a lane's number in the moment of an arrival."""


class SimulatedLane:
    """The rows of one lane, and its steps on a virtual clock.

    `longest_run` bounds how many equal steps are computed at once; 1 computes each step by itself. Raises
    `LlamalaneError` when more rows join than there are `places`.
    """

    def __init__(
        self, index: int, places: int, speed: StepTimes, *, max_step_tokens: int, longest_run: int | None = None
    ) -> None:
        self.index = index
        self.places = places
        self.rows: list[Row] = []
        self.max_step_tokens = max_step_tokens
        self.begin: Nanoseconds = 0
        """When the run of steps under way began."""
        self.duration: Nanoseconds = 0
        """How long each of its steps takes."""
        self.steps = 0
        """How many steps the run has; 0 while the lane sleeps."""
        self.steps_done = 0
        """Steps since the start."""
        self.decode_rows = 0
        self.prefill_tokens = 0
        self.gained: list[Row] = []
        """The rows that got a token in the last step."""
        self._speed = speed
        self._longest_run = longest_run
        self._joining: list[Row] = []
        self._leaving: list[Row] = []
        self._settled = False
        self._mail_before = False
        self._plan = self._next_plan = StepPlan(0, PlanVersion(0), (), 0)
        self._mail = False
        self._part: list[Row] = []
        self._sitting_out: list[Row] = []
        self._turns = 0
        self._chunks: list[tuple[Row, int]] = []
        self._uniform = True
        self._seen: set[int] = set()

    @property
    def asleep(self) -> bool:
        """Whether no step is under way."""
        return not self.steps

    @property
    def end(self) -> Nanoseconds:
        """When the run of steps under way ends."""
        return self.begin + self.steps * self.duration

    @property
    def changing(self) -> bool:
        """Whether rows join or leave at the end of the step under way."""
        return bool(self._joining or self._leaving)

    @property
    def waits(self) -> bool:
        """Whether it waits for a plan before it goes on, as rows have just ended and others are to follow them."""
        return self._plan.successors and bool(self.rows) and not self._mail and not self._mail_before

    def post(self, joining: Sequence[Row], leaving: Sequence[Row], plan: StepPlan) -> None:
        """Lay a plan down; it is carried out at the end of the step under way."""
        self._joining += joining
        self._leaving += leaving
        self._next_plan = plan
        self._mail = True

    def over(self, now: Moment) -> int:
        """Return how many steps of the run are over `now`, of which the rows have not been told."""
        if self.steps < 2:
            return 0
        done = (now.time - self.begin) // self.duration
        if done and self.begin + done * self.duration == now.time and self.index > now.lane:
            done -= 1  # that step ends later in the same instant
        return done

    def settle(self, now: Moment) -> int:
        """Let the rows gain what the steps have given that are over `now`, and return how many steps these are."""
        done = self.over(now)
        if done:
            self._advance_all(done)
            self._settled = True
            self.begin += done * self.duration
            self.steps -= done
            self.steps_done += done
        return done

    def cut(self) -> None:
        """End the run with the step that is under way; it must be settled."""
        self.steps = min(self.steps, 1)

    def start(self, time: Nanoseconds) -> list[Row]:
        """Carry out the plan that lies there and begin the next steps, if there are rows; returns who left by it."""
        left = self._apply()
        self._settled = False
        if self.rows:
            self._fill()
            self.begin = time
            self.duration = self._speed.step(self.decode_rows, self.prefill_tokens)
            if left:
                self.steps = 1  # its end tells the scheduler who left
        else:
            self.steps = 0
        return left

    def finish(self) -> list[Row]:
        """End the run of steps: rows gain their tokens; returns those that are complete, which leave."""
        if self._uniform:
            self.gained = self.rows
            self._advance_all(self.steps)
            self._seen.add(self.decode_rows)
            # Inside a run nothing is posted but grants of cells; the last one may lie there still.
            inside = self.steps > 1 or self._settled
            self._mail_before = inside and any(row.grows(steps_ago=1) for row in self.rows)
        else:
            self._finish_step(self.end)
            self._mail_before = False
        self.steps_done += self.steps
        self.steps = 0
        ended = [row for row in self.rows if not row.left]
        if ended:
            self.rows = [row for row in self.rows if row.left]
        return ended

    def abandon(self) -> None:
        """Break the step under way off: it is as if it had never begun."""
        self.steps_done += 1
        self.steps = 0

    def _advance_all(self, steps: int) -> None:
        """Let all rows gain what equal steps give, in which all of them have a part."""
        for row in self.rows:
            row.advance(steps)
            self._note_part(row)

    def _finish_step(self, time: Nanoseconds) -> None:
        self.gained = list(self._part)
        for row in self._sitting_out:
            row.sat_out += 1
        for row in self._part:
            self._note_part(row)
        for row, count in self._chunks:
            row.sat_out = 0
            row.uncomputed -= count
            if not row.uncomputed:
                self.gained.append(row)
        for row in self.gained:
            row.gain(time)

    def _note_part(self, row: Row) -> None:
        row.sat_out = 0
        self._turns += 1
        row.turn = self._turns

    def _apply(self) -> list[Row]:
        self._plan, self._mail = self._next_plan, False
        for row in self._joining:
            self._turns += 1
            row.turn = self._turns
            self.rows.append(row)
        self._joining.clear()
        left: list[Row] = []
        if self._leaving:
            left = [row for row in self._leaving if row in self.rows]  # others have ended in the meantime
            self.rows = [row for row in self.rows if row not in left]
            self._leaving.clear()
        if len(self.rows) > self.places:
            raise LlamalaneError(f"lane {self.index} has {self.places} places and {len(self.rows)} rows")
        return left

    def _fill(self) -> None:
        """Decide what the next steps compute."""
        if self._plan.share is not None or not all(row.since_join for row in self.rows):
            self._fill_step()
            return
        self._uniform = True
        self.decode_rows = len(self.rows)
        self.prefill_tokens = 0
        # The scheduler learns from the first step of its kind, so that one may change its plan.
        self.steps = min([row.until_change for row in self.rows]) if self.decode_rows in self._seen else 1
        if self._longest_run is not None:
            self.steps = min(self.steps, self._longest_run)

    def _fill_step(self) -> None:
        self._uniform = False
        self.steps = 1
        decoding = [row for row in self.rows if row.uncomputed == 1]
        prompts = [row for row in self.rows if row.uncomputed > 1]
        self._part = self._take_part(decoding, prompts)
        self._sitting_out = [row for row in decoding if row not in self._part]
        self.decode_rows = len(self._part)
        budget = room = min(max(self._plan.prefill_tokens, 1), self.max_step_tokens - self.decode_rows)
        self._chunks = []
        for row in sorted(prompts, key=_urgency):
            count = min(row.uncomputed, room)
            if not count:
                break
            self._chunks.append((row, count))
            room -= count
        self.prefill_tokens = budget - room

    def _take_part(self, decoding: list[Row], prompts: list[Row]) -> list[Row]:
        """Return the decoding rows that have a part in the next step."""
        part = decoding
        if prompts:
            best = min([row.level for row in prompts])
            part = [row for row in decoding if row.level <= best or row.sat_out]
        if self._plan.share is not None:
            part = _within_share(part, self._plan.share)
        return part if part or prompts else decoding


def _within_share(part: list[Row], share: StepShare) -> list[Row]:
    others = [row for row in part if row.level > share.protected]
    overdue = [row for row in others if row.sheltered and row.sat_out]
    rest = sorted((row for row in others if row not in overdue), key=_turn)
    protected = [row for row in part if row.level <= share.protected]
    return [*protected, *overdue, *rest[: max(0, share.others - len(overdue))]]


def _turn(row: Row) -> int:
    return row.turn


def _urgency(row: Row) -> tuple[float, ...]:
    return row.urgency

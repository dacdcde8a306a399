"""A simulated lane: the rows that it computes, step by step or many equal steps at once.

It follows the rules of `llamalane.streams.running_set`. A row with one token to compute decodes in every step; longer
prompts are computed in chunks, the most urgent first, within the step's budget; while a prompt is computed, less
urgent rows sit out every second step.

Between two changes all steps are alike, but that each is longer than the one before by the cell more that each row
attends to. They are computed at once: a *run* of such steps ends when a row ends, or gets on so far that it can be
displaced again. A plan that arrives meanwhile cuts the run short at the end of the step under way.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from llamalane.bench.simulator.passes import Part, Pass, passes_of
from llamalane.bench.simulator.request import Picoseconds
from llamalane.bench.simulator.row import Row
from llamalane.errors import LlamalaneError
from llamalane.ids import PlanVersion
from llamalane.streams import StepPlan, StepShare


class StepTimes(Protocol):
    """What a lane asks of its speed."""

    @property
    def growth(self) -> Picoseconds:
        """How much longer a step takes for each cell more that its decoding rows attend to."""

    def step(self, passes: Iterable[Pass], outputs: int) -> Picoseconds:
        """Return how long a step of these passes takes in which so many rows get a token; at least 1 ps."""


class Moment(NamedTuple):
    """When something happens. Of what happens at the same time, arrivals come first, then the lanes by number."""

    time: Picoseconds
    lane: int


ARRIVALS = -1
"""Stands for a lane's number in the moment of an arrival."""


class SimulatedLane:
    """The rows of one lane, and its steps on a virtual clock.

    It has so many `sequences`, of which one that came free is taken again the later, the later that was. With
    `partitioned` each has cells of its own, which decides into which passes a step falls. `longest_run` bounds how many
    equal steps are computed at once; 1 computes each step by itself. Raises `LlamalaneError` when more rows join than
    there are `places`.
    """

    def __init__(
        self,
        index: int,
        places: int,
        speed: StepTimes,
        *,
        max_step_tokens: int,
        sequences: int | None = None,
        partitioned: bool = False,
        micro_batch: int = 512,
        longest_run: int | None = None,
    ) -> None:
        self.index = index
        self.places = places
        self.rows: list[Row] = []
        self.max_step_tokens = max_step_tokens
        self.begin: Picoseconds = 0
        """When the run of steps under way began."""
        self.duration: Picoseconds = 0
        """How long the first of its steps takes that is not settled yet."""
        self.durations: list[Picoseconds] = []
        """How long each of the steps took that were settled or finished last."""
        self.steps = 0
        """How many steps the run has; 0 while the lane sleeps."""
        self.steps_done = 0
        """Steps since the start."""
        self.decode_rows = 0
        self.prefill_tokens = 0
        self.gained: list[Row] = []
        """The rows that got a token in the last step."""
        self._speed = speed
        self._partitioned = partitioned
        self._micro_batch = micro_batch
        self._sequences = deque(range(sequences or places))
        self._growth: Picoseconds = 0
        """How much longer each step of the run takes than the one before."""
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
    def end(self) -> Picoseconds:
        """When the run of steps under way ends."""
        return self.begin + self._span(self.steps)

    @property
    def last_duration(self) -> Picoseconds:
        """How long the last step of the run under way takes."""
        return self.duration + (self.steps - 1) * self._growth

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
        elapsed = now.time - self.begin
        done = self._steps_within(elapsed)
        if done and self._span(done) == elapsed and self.index > now.lane:
            done -= 1  # that step ends later in the same instant
        return done

    def settle(self, now: Moment) -> int:
        """Let the rows gain what the steps have given that are over `now`, and return how many steps these are."""
        done = self.over(now)
        if done:
            self._advance_all(done)
            self._settled = True
            self.durations = self._first_durations(done)
            self.begin += self._span(done)
            self.duration += done * self._growth
            self.steps -= done
            self.steps_done += done
        return done

    def cut(self) -> None:
        """End the run with the step that is under way; it must be settled."""
        self.steps = min(self.steps, 1)

    def start(self, time: Picoseconds) -> list[Row]:
        """Carry out the plan that lies there and begin the next steps, if there are rows; returns who left by it."""
        left = self._apply()
        self._settled = False
        if self.rows:
            self._fill()
            self.begin = time
            if left:
                self.steps = 1  # its end tells the scheduler who left
        else:
            self.steps = 0
        return left

    def finish(self) -> list[Row]:
        """End the run of steps: rows gain their tokens; returns those that are complete, which leave."""
        self.durations = self._first_durations(self.steps)
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
            self._sequences.extend([row.sequence for row in ended])
        return ended

    def abandon(self) -> None:
        """Break the step under way off: it is as if it had never begun."""
        self.steps_done += 1
        self.steps = 0

    def _span(self, steps: int) -> Picoseconds:
        """Return how long so many steps of the run take from now on."""
        return steps * self.duration + self._growth * (steps * (steps - 1) // 2)

    def _steps_within(self, time: Picoseconds) -> int:
        """Return how many steps of the run are over after `time`: the most whose span is no longer."""
        if not self._growth:
            return time // self.duration
        # span(n) <= time is growth × n² + b × n <= 2 × time.
        b = 2 * self.duration - self._growth
        return (math.isqrt(b * b + 8 * self._growth * time) - b) // (2 * self._growth)

    def _first_durations(self, steps: int) -> list[Picoseconds]:
        return [self.duration + count * self._growth for count in range(steps)]

    def _advance_all(self, steps: int) -> None:
        """Let all rows gain what equal steps give, in which all of them have a part."""
        for row in self.rows:
            row.advance(steps)
            self._note_part(row)

    def _finish_step(self, time: Picoseconds) -> None:
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
        joined = list(self._joining)
        self._joining.clear()
        for row in joined:
            self._turns += 1
            row.turn = self._turns
            self.rows.append(row)
        left: list[Row] = []
        if self._leaving:
            left = [row for row in self._leaving if row in self.rows]  # others have ended in the meantime
            self.rows = [row for row in self.rows if row not in left]
            self._leaving.clear()
            # Nothing is kept in their cells, so they are taken before those that finished rows have left.
            self._sequences.extendleft([row.sequence for row in left if row not in joined])
        if len(self.rows) > self.places:
            raise LlamalaneError(f"lane {self.index} has {self.places} places and {len(self.rows)} rows")
        for row in joined:
            if row not in left:
                row.sequence = self._sequences.popleft()
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
        self._growth = self.decode_rows * self._speed.growth
        self._time_step([Part(row.sequence, row.length - 1, 1) for row in self.rows], self.decode_rows)

    def _fill_step(self) -> None:
        self._uniform = False
        self.steps = 1
        decoding = [row for row in self.rows if row.uncomputed == 1]
        prompts = [row for row in self.rows if row.uncomputed > 1]
        self._part = self._take_part(decoding, prompts)
        self.decode_rows = len(self._part)
        budget = room = min(max(self._plan.prefill_tokens, 1), self.max_step_tokens - self.decode_rows)
        self._chunks = []
        for row in sorted(prompts, key=_urgency):
            count = min(row.uncomputed, room)
            if not count:
                break
            self._chunks.append((row, count))
            room -= count
        computed = [*self._part, *(row for row, _ in self._chunks)]
        self._sitting_out = [row for row in self.rows if row not in computed]
        self.prefill_tokens = budget - room
        self._growth = 0
        parts = [Part(row.sequence, row.length - 1, 1) for row in self._part]
        parts += [Part(row.sequence, row.length - row.uncomputed, count) for row, count in self._chunks]
        completed = sum([row.uncomputed == count for row, count in self._chunks])
        self._time_step(parts, self.decode_rows + completed)

    def _time_step(self, parts: Sequence[Part], outputs: int) -> None:
        passes = passes_of(parts, partitioned=self._partitioned, micro_batch=self._micro_batch)
        self.duration = self._speed.step(passes, outputs)

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
    overdue = [row for row in others if row.overdue]
    rest = sorted((row for row in others if row not in overdue), key=_turn)
    protected = [row for row in part if row.level <= share.protected]
    return [*protected, *overdue, *rest[: max(0, share.others - len(overdue))]]


def _turn(row: Row) -> int:
    return row.turn


def _urgency(row: Row) -> tuple[bool, tuple[float, ...]]:
    return not row.overdue, row.urgency

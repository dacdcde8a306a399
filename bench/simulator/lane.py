"""A simulated lane: the rows that it computes, step by step or many equal steps at once.

It follows the rules of `llamalane.streams.running_set`. A row with one token to compute decodes in every step; longer
prompts are computed in chunks, the most urgent first, within the step's budget; while a prompt is computed, less
urgent rows sit out every second step.

Between two changes all steps are alike, but that each is longer than the one before by the cells more that are attended
to, and that rows may sit out every second one. They are computed at once: a *run* of such steps ends when a row ends,
or gets on so far that it can be displaced again, or when its prompt is nearly computed. A plan that arrives meanwhile
cuts the run short at the end of the step under way.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from llamalane.bench.simulator.equal_steps import EqualSteps, Pace
from llamalane.bench.simulator.passes import Pass, PlainPart, passes_of
from llamalane.bench.simulator.request import Picoseconds
from llamalane.bench.simulator.row import Row
from llamalane.errors import LlamalaneError
from llamalane.ids import PlanVersion
from llamalane.scheduler.pacing import SMALLEST_CHUNK
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


_WORTH_IT = 4
"""A run with a prompt has at least so many steps; fewer are computed as quickly one by one."""

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
        self.end: Picoseconds = 0
        """When it ends."""
        self.steps_over: list[tuple[Picoseconds, int]] = []
        """How long each of the steps took that were settled or finished last, and how many rows decoded in it."""
        self.steps = 0
        """How many steps the run has; 0 while the lane sleeps."""
        self.steps_done = 0
        """Steps since the start."""
        self.prefill_tokens = 0
        """How many tokens of prompts each step of the run computes."""
        self.gained: list[Row] = []
        """The rows that got a token in the steps that were settled or finished last,"""
        self.gained_last: list[Row] = []
        """and in the last of those that were finished."""
        self._speed = speed
        self._partitioned = partitioned
        self._micro_batch = micro_batch
        self._sequences = deque(range(sequences or places))
        self._pace = Pace(0, 0)
        """How long the steps of the run take that are not settled yet."""
        self._run: EqualSteps | None = None
        """What they compute; None for a step that is unlike the next one."""
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
        self._decode_rows = 0
        self._seen: set[int] = set()

    @property
    def asleep(self) -> bool:
        """Whether no step is under way."""
        return not self.steps

    @property
    def duration(self) -> Picoseconds:
        """How long the first step takes of the run under way that is not settled yet."""
        return self._pace.first

    @property
    def last_duration(self) -> Picoseconds:
        """How long the last one takes."""
        return self._pace.of(self.steps - 1)

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
        done = self._pace.within(elapsed, self.steps)
        if done and self._pace.span(done) == elapsed and self.index > now.lane:
            done -= 1  # that step ends later in the same instant
        return done

    def settle(self, now: Moment) -> int:
        """Let the rows gain what the steps have given that are over `now`, and return how many steps these are."""
        done = self.over(now)
        if done and self._run is not None:
            self._settled = True
            self.steps_over = self.next_steps(done)
            self.gained = self._run.advance(done, self._note_part)
            self.begin += self._pace.span(done)
            self._pace = self._pace.after(done)
            self.steps -= done
            self.steps_done += done
        return done

    def next_steps(self, steps: int) -> list[tuple[Picoseconds, int]]:
        """Return how long each of the next steps of the run takes, and how many rows decode in it."""
        if self._run is None:
            return [(self._pace.first, self._decode_rows)]
        rows = (self._run.rows_in(0), self._run.rows_in(1))
        return list(zip(self._pace.durations(steps), itertools.cycle(rows)))

    def cut(self) -> None:
        """End the run with the step that is under way; it must be settled."""
        if self.steps > 1:
            self.steps = 1
            self.end = self.begin + self._pace.first

    def start(self, time: Picoseconds) -> list[Row]:
        """Carry out the plan that lies there and begin the next steps, if there are rows; returns who left by it."""
        left = self._apply()
        self._settled = False
        if self.rows:
            self._fill()
            if left:
                self.steps = 1  # its end tells the scheduler who left
            self.begin = time
            self.end = time + self._pace.span(self.steps)
        else:
            self.steps = 0
        return left

    def finish(self) -> list[Row]:
        """End the run of steps: rows gain their tokens; returns those that are complete, which leave."""
        self.steps_over = self.next_steps(self.steps)
        if self._run is not None:
            self.gained = self._run.advance(self.steps, self._note_part)
            self.gained_last = self._run.last_part()
            if not self.prefill_tokens:
                self._seen.add(self._run.rows_in(0))
            # Inside a run nothing is posted but grants of cells; the last one may lie there still.
            inside = self.steps > 1 or self._settled
            self._mail_before = inside and self._run.grew_before_last()
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

    def _finish_step(self, time: Picoseconds) -> None:
        self.gained = self.gained_last = list(self._part)
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
            if self._longest_run != 1:
                self._fill_run()
            return
        self._run = EqualSteps(self.rows)
        self.prefill_tokens = 0
        rows = len(self.rows)
        # The scheduler learns from the first step of its kind, so that one may change its plan.
        self.steps = self._at_most(self._run.most) if rows in self._seen else 1
        self._pace = Pace.even(self._time(self._run.parts(0), rows), rows * self._speed.growth)

    def _fill_run(self) -> None:
        """Let the step that was just decided on be the first of a run, if there are enough like it."""
        run = self._run_of_chunks()
        if run is None or (most := self._at_most(run.most)) < _WORTH_IT:
            return
        self._run, self.steps = run, most
        first, second = self._pace.first, self._time(run.parts(1), run.rows_in(1))
        if run.alternates:
            third, fourth = (self._time(run.parts(step), run.rows_in(step)) for step in (2, 3))
            self._pace = Pace(first, second, third - first, fourth - second)
        else:
            self._pace = Pace.even(first, second - first)

    def _run_of_chunks(self) -> EqualSteps | None:
        """Return a run of steps like the one that was just decided on; None when the next one may be another.

        That is when others of its rows are to have a part, unless they just take turns, or when it computes more of
        prompts than the least: the scheduler would soon have another budget for them. Who has got more tokens than
        its cells can hold leads to a new plan, which lets the run begin with the step after.
        """
        if self._plan.share is not None or len(self._chunks) != 1:
            return None
        (prompt, chunk), *_ = self._chunks
        if not chunk == self._plan.prefill_tokens == min(SMALLEST_CHUNK, self.max_step_tokens):
            return None
        if any(row.grows() for row in self.gained_last):
            return None
        waiting = [row for row in self._sitting_out if row.uncomputed > 1]
        resting = [row for row in self._sitting_out if row.uncomputed == 1]
        best = min([row.level for row in (prompt, *waiting)])
        taking_turns = [row for row in self._part if row.level > best]
        rows = [row for row in self.rows if row.uncomputed == 1]
        if len(rows) - len(taking_turns) + chunk > self.max_step_tokens or not all(row.since_join for row in rows):
            return None
        if any(row.sheltered or row.urgency < prompt.urgency for row in waiting):  # it would be that one's turn
            return None
        return EqualSteps(rows, taking_turns=taking_turns, resting=resting, prompt=prompt, chunk=chunk, waiting=waiting)

    def _at_most(self, steps: int) -> int:
        return steps if self._longest_run is None else min(steps, self._longest_run)

    def _fill_step(self) -> None:
        self._run = None
        self.steps = 1
        decoding: list[Row] = []
        prompts: list[Row] = []
        for row in self.rows:
            (decoding if row.uncomputed == 1 else prompts).append(row)
        self._part = self._take_part(decoding, prompts)
        self._decode_rows = len(self._part)
        budget = room = min(max(self._plan.prefill_tokens, 1), self.max_step_tokens - self._decode_rows)
        self._chunks = []
        if len(prompts) > 1:
            prompts.sort(key=_urgency)
        for row in prompts:
            count = min(row.uncomputed, room)
            if not count:
                break
            self._chunks.append((row, count))
            room -= count
        idle = prompts[len(self._chunks) :]
        if len(self._part) < len(decoding):
            part = {row.id for row in self._part}
            idle += [row for row in decoding if row.id not in part]
        self._sitting_out = idle
        self.prefill_tokens = budget - room
        parts = [(row.sequence, row.longest - row.left - 1, 1) for row in self._part]
        parts += [(row.sequence, row.length - row.uncomputed, count) for row, count in self._chunks]
        completed = sum([row.uncomputed == count for row, count in self._chunks])
        self._pace = Pace.even(self._time(parts, self._decode_rows + completed), 0)

    def _time(self, parts: Iterable[PlainPart], outputs: int) -> Picoseconds:
        passes = passes_of(parts, partitioned=self._partitioned, micro_batch=self._micro_batch)
        return self._speed.step(passes, outputs)

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

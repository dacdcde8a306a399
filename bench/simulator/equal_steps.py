"""Runs of steps that are alike, which a simulated lane computes at once."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple

from llamalane.bench.simulator.passes import PlainPart
from llamalane.bench.simulator.request import Picoseconds
from llamalane.bench.simulator.row import Row


class Pace(NamedTuple):
    """How long the steps of a run take: the first, third, … and the second, fourth, … each grow by the same."""

    first: Picoseconds
    second: Picoseconds
    first_rise: Picoseconds = 0
    second_rise: Picoseconds = 0

    @classmethod
    def even(cls, first: Picoseconds, rise: Picoseconds) -> Pace:
        """Return the pace of steps each of which takes `rise` longer than the one before."""
        return cls(first, first + rise, 2 * rise, 2 * rise)

    def of(self, step: int) -> Picoseconds:
        """Return how long a step takes, counted from 0."""
        pairs, second = divmod(step, 2)
        return self.second + pairs * self.second_rise if second else self.first + pairs * self.first_rise

    def durations(self, steps: int) -> list[Picoseconds]:
        """Return how long each of the first so many steps takes."""
        durations = [0] * steps
        durations[::2] = _rising(self.first, self.first_rise, (steps + 1) // 2)
        durations[1::2] = _rising(self.second, self.second_rise, steps // 2)
        return durations

    def span(self, steps: int) -> Picoseconds:
        """Return how long so many steps take."""
        firsts, seconds = (steps + 1) // 2, steps // 2
        rises = self.first_rise * (firsts * (firsts - 1) // 2) + self.second_rise * (seconds * (seconds - 1) // 2)
        return firsts * self.first + seconds * self.second + rises

    def within(self, time: Picoseconds, steps: int) -> int:
        """Return how many of so many steps are over after `time`: the most whose span is no longer."""
        if time < self.first:
            return 0
        return bisect_right(range(1, steps + 1), time, key=self.span)

    def after(self, steps: int) -> Pace:
        """Return the pace of what follows so many steps."""
        rises = (self.first_rise, self.second_rise)
        return Pace(self.of(steps), self.of(steps + 1), *(rises if steps % 2 == 0 else rises[::-1]))


def _rising(first: Picoseconds, rise: Picoseconds, count: int) -> Sequence[Picoseconds]:
    """Return so many times, each by as much longer than the one before."""
    return range(first, first + count * rise, rise) if rise else [first] * count


class EqualSteps:
    """What the steps of a run compute.

    Of the decoding `rows`, those in `resting` sit the first step out and have a part in the second, and so on; those
    in `taking_turns` it is the other way round for; all others have a part in every step. Of a `prompt` each step
    computes `chunk` tokens, and of those in `waiting` nothing.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        *,
        taking_turns: Sequence[Row] = (),
        resting: Sequence[Row] = (),
        prompt: Row | None = None,
        chunk: int = 0,
        waiting: Sequence[Row] = (),
    ) -> None:
        self._rows = rows
        alternating = {row.id for row in (*taking_turns, *resting)}
        self._every = [row for row in rows if row.id not in alternating] if alternating else rows
        self._taking_turns = taking_turns
        self._resting = resting
        self._prompt = prompt
        self._chunk = chunk
        self._waiting = waiting

    @property
    def alternates(self) -> bool:
        """Whether some rows sit out every second step."""
        return bool(self._taking_turns or self._resting)

    @property
    def most(self) -> int:
        """How many steps there are before anything changes: a row ends, or has got on so far that it can be displaced.

        The step that completes the prompt, or leaves a single token of it, is not one of them.
        """
        bounds = [row.until_change for row in self._every]
        bounds += [2 * row.until_change - 1 for row in self._taking_turns]
        bounds += [2 * row.until_change for row in self._resting]
        if self._prompt is not None:
            bounds.append((self._prompt.uncomputed - 2) // self._chunk)
        return min(bounds)

    def rows_in(self, step: int) -> int:
        """Return how many rows decode in a step, counted from 0."""
        return len(self._every) + len(self._resting if step % 2 else self._taking_turns)

    def parts(self, step: int) -> list[PlainPart]:
        """Return what a step computes, counted from 0."""
        parts = [(row.sequence, row.longest - row.left - 1 + step, 1) for row in self._every]
        for row in self._resting if step % 2 else self._taking_turns:
            parts.append((row.sequence, row.length - 1 + step // 2, 1))
        if self._prompt is not None:
            start = self._prompt.length - self._prompt.uncomputed + step * self._chunk
            parts.append((self._prompt.sequence, start, self._chunk))
        return parts

    def advance(self, steps: int, note_part: Callable[[Row], None]) -> list[Row]:
        """Let rows gain what the next steps give, and return those that got any token.

        The rows that have a part in the last step are noted last, in their order.
        """
        for row in self._every:
            row.advance(steps)
        for row in self._taking_turns:
            row.advance((steps + 1) // 2)
        for row in self._resting:
            row.advance(steps // 2)
        gained = [*self._every, *self._taking_turns, *(self._resting if steps > 1 else ())]
        if self._prompt is not None:
            self._prompt.sat_out = 0
            self._prompt.uncomputed -= steps * self._chunk
        for row in self._waiting:
            row.sat_out += steps
        if steps % 2:
            self._taking_turns, self._resting = self._resting, self._taking_turns
        for row in self._taking_turns:
            if steps > 1:
                note_part(row)
            row.sat_out = 1
        for row in self.last_part():
            note_part(row)
        return gained

    def last_part(self) -> list[Row]:
        """Return the rows that had a part in the last step that was taken."""
        return [row for row in self._rows if row not in self._taking_turns]

    def grew_before_last(self) -> bool:
        """Return whether a row was given more cells for what it gained in the last step but one that was taken."""
        every = any(row.grows(steps_ago=1) for row in self._every)
        return every or any(row.grows() for row in self._taking_turns)

"""A holder's path through the runs of a prefix tree, and what the runs count when it moves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

from llamalane.kvcache.runs import Holder, Run, follow


@dataclass(slots=True)
class Spans:
    """How many tokens are held, and how many of them by pinned holders; what several hold together counts once."""

    held: int = 0
    pinned: int = 0


@dataclass(slots=True, eq=False)
class Path(Generic[Holder]):
    """Where a holder ends, which counts in every run up to the root.

    Attributes:
        scope: the scope of the tree in which it is.
        last: the run with which it ends. It is for the tree to name the holder there, and to merge what can be.
        spans: those of the tree.
        pinned: whether its tokens must stay.
        filled: whether all of them are there.
        stopped: whether those that are not there will not come.
    """

    scope: str
    last: Run[Holder]
    spans: Spans
    pinned: bool
    filled: bool
    stopped: bool = False

    def enter(self, run: Run[Holder]) -> None:
        """Count in one run more."""
        run.holders += 1
        run.filled += self.filled
        run.stopped += self.stopped
        if run.holders == 1:
            self.spans.held += len(run.tokens)
        if self.pinned:
            self._pin(run)

    def lead_to(self, run: Run[Holder], length: int) -> None:
        """Lead on to a run below the last one, and end within it, at `length`."""
        if run.end > length:
            run = run.split(length - run.start)
        for below in run.upwards():
            if below is self.last:
                break
            self.enter(below)
        self.last = run

    def lead_beside(self, other: Path[Holder], length: int) -> None:
        """Lead from the root along the first tokens of another path, and end with the last of them."""
        self.lead_to(next((run for run in other.last.upwards() if run.start < length), self.last), length)

    def join(self, tokens: list[int]) -> int:
        """Lead on along runs that others hold, as far as `tokens` go; returns how many of them that are."""
        start = self.last.end
        length, run = follow(self.last, tokens)
        if length:
            self.lead_to(run, start + length)
        return length

    def grow(self, tokens: list[int]) -> None:
        """Lead on with tokens that nobody else holds."""
        run = self.last
        if tokens and run.holders == 1 and run.parent is not None:  # its own last run grows
            run.tokens += tokens
            run.end += len(tokens)
            self.spans.held += len(tokens)
            self.spans.pinned += len(tokens) if self.pinned else 0
        elif tokens:
            self.last = Run(run, list(tokens), run.end + len(tokens))
            run.add(self.last)
            self.enter(self.last)

    def withdraw(self, length: int) -> Run[Holder]:
        """Draw a path, which ends nowhere just now, back to `length`; returns the last run on it that is left."""
        run = self.last
        left: Run[Holder] | None = None
        while run.parent is not None and run.start >= length:
            self.leave(run)
            if left is None and run.holders:
                left = run
            run = run.parent
        if run.end > length:
            upper = run.split(length - run.start)
            self.leave(run)
            if left is None and run.holders:
                left = run
            run = upper
        self.last = run
        return left or run

    def leave(self, run: Run[Holder]) -> None:
        """Count in one run less; it vanishes with its last holder."""
        if self.pinned:
            self._unpin(run)
        run.holders -= 1
        run.filled -= self.filled
        run.stopped -= self.stopped
        if run.holders == 0:
            self.spans.held -= len(run.tokens)
            if run.parent is not None:
                run.parent.drop(run)

    def note_pinned(self, pinned: bool) -> None:
        """Be pinned from now on, or no longer."""
        if self.pinned is not pinned:
            self.pinned = pinned
            for run in self.last.upwards():
                self._pin(run) if pinned else self._unpin(run)

    def note_filled(self, filled: bool) -> None:
        """Be filled from now on, or no longer."""
        if self.filled is not filled:
            self.filled = filled
            for run in self.last.upwards():
                run.filled += 1 if filled else -1

    def note_stopped(self, stopped: bool) -> None:
        """Be stopped from now on, or no longer."""
        if self.stopped is not stopped:
            self.stopped = stopped
            for run in self.last.upwards():
                run.stopped += 1 if stopped else -1

    def _pin(self, run: Run[Holder]) -> None:
        run.pinned += 1
        if run.pinned == 1:
            self.spans.pinned += len(run.tokens)

    def _unpin(self, run: Run[Holder]) -> None:
        run.pinned -= 1
        if run.pinned == 0:
            self.spans.pinned -= len(run.tokens)

"""Two ways of doing the same, measured in turn, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

Way = Callable[[], float]
"""Does something once in one way, and returns what it is measured by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidatesPlan:
    """What is measured, and how often.

    Attributes:
        threads: llama.cpp's.
        rounds: how often everything is measured.
        seed: chooses prompts, tokens, and orders.
        python: another interpreter, which has NumPy, anyio and llama-cpp-python; None for none.
    """

    model: Path
    threads: int
    rounds: int
    seed: int
    python: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One situation, measured in both ways in every round.

    Attributes:
        situation: what was measured.
        now: as llamalane does it, one number for each round.
        other: as the candidate would, in the same rounds.
        remarks: what else is to be told of the situation, each with a title.
    """

    situation: str
    now: tuple[float, ...]
    other: tuple[float, ...]
    remarks: Mapping[str, str] = field(default_factory=dict)

    @property
    def ratios(self) -> tuple[float, ...]:
        """The candidate's number as a multiple of the other, round by round."""
        return tuple(other / now for now, other in zip(self.now, self.other, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A candidate beside what llamalane does.

    Attributes:
        title: what it is about.
        unit: what the numbers are.
        now: how llamalane does it.
        other: how the candidate does it.
        method: how it is measured, in a sentence or two.
        compare: measures one situation after the other.
    """

    title: str
    unit: str
    now: str
    other: str
    method: str
    compare: Callable[[CandidatesPlan], Iterator[Comparison]]


def take_turns(now: Way, other: Way, rounds: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Measure both once in each of so many rounds, after one that does not count; returns the numbers of each.

    Who came last in one round comes first in the next: a machine that drifts favours neither.
    """
    pairs = []
    for number in range(rounds + 1):
        if number % 2:
            second = other()
            pairs.append((now(), second))
        else:
            first = now()
            pairs.append((first, other()))
    ours, theirs = zip(*pairs[1:], strict=True)
    return ours, theirs

"""What moved between two results, beyond the noise of either."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from llamalane.bench.guard.result import GuardResult, Series

LEAST_NOISE = 0.1
"""A smaller change means nothing, however little the values spread,"""
LEAST_NOISE_ELSEWHERE = 0.25
"""and on another machine neither does this: not everything is as much quicker there as the yardstick."""


class Verdict(enum.Enum):
    """What became of a number."""

    SAME = "same"
    BETTER = "better"
    WORSE = "WORSE"
    NEW = "new"
    """It was not measured before."""
    GONE = "gone"
    """It was, and is no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One number then and now.

    Attributes:
        before, after: its series, None where it was not measured.
        moved: what it is now, as a share of what it was by which it is more; comparable over machines.
        noise: by how much it moves without a reason.
    """

    name: str
    before: Series | None
    after: Series | None
    moved: float
    noise: float
    verdict: Verdict


def compare(before: GuardResult, after: GuardResult) -> list[Change]:
    """Return what became of each number: first those measured now, in their order, then those that are gone.

    A number's noise is how far its values lie apart, as a share of their median, on both sides together.
    """
    least = LEAST_NOISE if after.of_same_machine(before) else LEAST_NOISE_ELSEWHERE
    names = [*after.series, *(name for name in before.series if name not in after.series)]
    return [_change(name, before, after, least) for name in names]


def changes_markdown(changes: Sequence[Change]) -> str:
    """Return the changes as a table."""
    lines = ["| what | before | now | change | noise | |", "| --- | --- | --- | --- | --- | --- |"]
    return "\n".join([*lines, *_rows(changes)])


def _change(name: str, before: GuardResult, after: GuardResult, least: float) -> Change:
    then, now = before.series.get(name), after.series.get(name)
    moved, noise, verdict = 0.0, 0.0, Verdict.GONE
    if then is None:
        verdict = Verdict.NEW
    elif now is not None:
        old, new = before.comparable(name), after.comparable(name)
        moved = median(new) / median(old) - 1
        noise = max(least, _spread(old) + _spread(new))
        verdict = _judge(moved, noise, more_is_better=now.more_is_better)
    return Change(name=name, before=then, after=now, moved=moved, noise=noise, verdict=verdict)


def _judge(moved: float, noise: float, *, more_is_better: bool) -> Verdict:
    if abs(moved) <= noise:
        return Verdict.SAME
    return Verdict.BETTER if (moved > 0) is more_is_better else Verdict.WORSE


def _spread(values: Sequence[float]) -> float:
    return (max(values) - min(values)) / median(values)


def _rows(changes: Sequence[Change]) -> Iterator[str]:
    for change in changes:
        known = change.verdict not in (Verdict.NEW, Verdict.GONE)
        cells = [
            change.name,
            _cell(change.before),
            _cell(change.after),
            f"{change.moved:+.0%}" if known else "",
            f"{change.noise:.0%}" if known else "",
            change.verdict.value,
        ]
        yield "| " + " | ".join(cells) + " |"


def _cell(series: Series | None) -> str:
    return "" if series is None else f"{median(series.values):.3g} {series.unit}".strip()

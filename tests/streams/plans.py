"""Short ways to write edits and plans."""

from __future__ import annotations

from collections.abc import Sequence

from llamalane.ids import MOST_URGENT, Level, PlanVersion, RequestId, SequenceId
from llamalane.streams import (
    Change,
    Edit,
    Grant,
    Join,
    Leave,
    Park,
    Parking,
    SamplingParameters,
    SavedCells,
    StepPlan,
    StepShare,
    Trim,
)

GREEDY = SamplingParameters(temperature=0, seed=0)


def join(
    request: str,
    sequence: int = 0,
    tokens: Sequence[int] = (10, 11, 12),
    *,
    cached: int = 0,
    generated: int = 0,
    max_tokens: int = 4,
    sampling: SamplingParameters = GREEDY,
    level: int = MOST_URGENT,
    urgency: tuple[float, ...] = (),
    cells: int | None = None,
    saved: SavedCells | None = None,
    sheltered: bool = False,
    measure: range = range(0),
) -> Join:
    return Join(
        request=RequestId(request),
        sequence=SequenceId(sequence),
        tokens=tokens,
        cached=cached,
        generated=generated,
        max_tokens=max_tokens,
        sampling=sampling,
        level=Level(level),
        urgency=urgency,
        cells=cells,
        saved=saved,
        sheltered=sheltered,
        measure=measure,
    )


def leave(request: str, keep: int = 0) -> Leave:
    return Leave(RequestId(request), keep)


def park(request: str, sequence: int = 0, how: Parking = Parking.PAUSE) -> Park:
    return Park(RequestId(request), SequenceId(sequence), how)


def grant(request: str, cells: int) -> Grant:
    return Grant(RequestId(request), cells)


def trim(sequence: int, keep: int = 0) -> Trim:
    return Trim(SequenceId(sequence), keep)


def edit(version: int, change: Change) -> Edit:
    return Edit(PlanVersion(version), change)


def plan(
    version: int, *edits: Edit | Change, epoch: int = 0, prefill_tokens: int = 64, share: StepShare | None = None
) -> StepPlan:
    """Return a plan; a change without a version of its own is new in this plan."""
    known = tuple(change if isinstance(change, Edit) else edit(version, change) for change in edits)
    return StepPlan(epoch, PlanVersion(version), known, prefill_tokens, share)

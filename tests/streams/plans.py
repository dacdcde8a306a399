"""Short ways to write edits and plans."""

from __future__ import annotations

from collections.abc import Sequence

from llamalane.ids import PlanVersion, RequestId, SequenceId
from llamalane.streams import Edit, Join, Leave, SamplingParameters, StepPlan

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
    urgency: tuple[float, ...] = (),
) -> Join:
    return Join(
        request=RequestId(request),
        sequence=SequenceId(sequence),
        tokens=tokens,
        cached=cached,
        generated=generated,
        max_tokens=max_tokens,
        sampling=sampling,
        urgency=urgency,
    )


def leave(request: str, keep: int = 0) -> Leave:
    return Leave(RequestId(request), keep)


def edit(version: int, change: Join | Leave) -> Edit:
    return Edit(PlanVersion(version), change)


def plan(version: int, *edits: Edit | Join | Leave, epoch: int = 0, prefill_tokens: int = 64) -> StepPlan:
    """Return a plan; a change without a version of its own is new in this plan."""
    known = tuple(change if isinstance(change, Edit) else edit(version, change) for change in edits)
    return StepPlan(epoch, PlanVersion(version), known, prefill_tokens)

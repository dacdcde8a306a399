"""On which of several lanes a request starts. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from llamalane.scheduler.growth import GrowingRow, GrowthPredictor
from llamalane.scheduler.ledger import LaneLedger
from llamalane.scheduler.pacing import StepTimeModel
from llamalane.scheduler.request import Request
from llamalane.streams import Device


def best_lane(request: Request, lanes: Sequence[LaneLedger], growth: GrowthPredictor) -> LaneLedger | None:
    """Return the lane on which a request is likely to end first; None when there is none.

    So a long prefix that a lane holds counts for what it saves there, and a lane with much to do for what that costs.
    Of equals, it is the one that holds more of the prompt, then the one with more free places.
    """
    if len(lanes) < 2:
        return lanes[0] if lanes else None
    row = GrowingRow(request.level, request.length, len(request.generated), request.max_tokens)
    output = growth.predict(row) - len(request.generated)
    tokens = request.history

    def preference(ledger: LaneLedger) -> tuple[float, int, int]:
        cached = ledger.lane.region.cached(tokens, request.tenant)
        alike = [other.model for other in lanes if _kind(other) == _kind(ledger)]
        return seconds_to_end(ledger, alike, request.length - cached, output), -cached, -ledger.lane.free

    return min(lanes, key=preference)


def seconds_to_end(ledger: LaneLedger, alike: Sequence[StepTimeModel], uncached: int, output: int) -> float:
    """Return how long a request would take on a lane from now: `uncached` prompt tokens, then `output` more.

    Prompts that the lane has yet to compute come before its own, and its outputs share their steps with those that
    are there. What each takes is a mean over lanes that are `alike`, so that chance does not make one of them quicker.
    """
    before = sum(request.cells_to_fill() for request in ledger.running.values() if not request.since_join)
    rows = len(ledger.running) + 1
    known = [model for model in alike if model.token_seconds is not None]
    prompts = [model.step_seconds(0, before + uncached) for model in known]
    steps = [seconds for model in known if (seconds := model.decode_seconds(rows))]
    return (fmean(prompts) if prompts else 0.0) + output * (fmean(steps) if steps else 0.0)


def _kind(ledger: LaneLedger) -> tuple[Device, int]:
    options = ledger.lane.stream.options
    return options.device, options.threads

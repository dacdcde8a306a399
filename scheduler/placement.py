"""On which of several lanes a request starts. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from llamalane.scheduler.growth import GrowingRow, GrowthPredictor
from llamalane.scheduler.ledger import LaneLedger
from llamalane.scheduler.pacing import StepTimeModel
from llamalane.scheduler.request import Request
from llamalane.streams import Device

STEP_TOKENS = 16
"""A step for one output is thought to take as long as so many prompt tokens, until one was measured."""


def best_lane(request: Request, lanes: Sequence[LaneLedger], growth: GrowthPredictor) -> LaneLedger | None:
    """Return the lane on which a request is likely to end first; None when there is none.

    So a long prefix that a lane holds counts for what it saves there, and a lane with much to do for what that costs.
    Of equals, it is the one that holds more of the prompt, then the one with more free places.
    """
    if len(lanes) < 2:
        return lanes[0] if lanes else None
    row = GrowingRow(request.level, request.length, len(request.generated), request.max_tokens)
    output = growth.predict(row) - len(request.generated)
    tokens = request.findable
    speeds = Speeds(lanes)

    def preference(ledger: LaneLedger) -> tuple[float, int, int]:
        cached = ledger.lane.region.cached(tokens, request.scope)
        return seconds_to_end(ledger, speeds, request.length - cached, output), -cached, -ledger.lane.free

    return min(lanes, key=preference)


def seconds_to_end(ledger: LaneLedger, speeds: Speeds, uncached: int, output: int) -> float:
    """Return how long a request would take on a lane from now: `uncached` prompt tokens, then `output` more.

    Prompts that the lane has yet to compute come before its own, and its outputs share their steps with those that
    are there. While no lane has measured anything, it is no time in seconds, but compares lanes all the same.
    """
    before = sum(request.cells_to_fill() for request in ledger.running.values() if not request.since_join)
    kind = kind_of(ledger)
    return (before + uncached) * speeds.token(kind) + output * speeds.step(kind, len(ledger.running) + 1)


@dataclass(frozen=True, slots=True)
class LaneKind:
    """What a lane's speed depends on: lanes for which all of this is equal are alike.

    Attributes:
        threads: the number of CPU threads; 0 on a GPU, where they do little.
        gpu: what the GPU is.
        multiprocessors: how many of its multiprocessors the lane has for itself; None where it shares all.
        urgency: the device's number for the priority of the lane's stream.
        speed: what the configuration says of it.
    """

    device: Device
    threads: int
    gpu: str
    multiprocessors: int | None
    urgency: int
    speed: float


def kind_of(ledger: LaneLedger) -> LaneKind:
    """Return the kind of a lane."""
    options = ledger.lane.stream.options
    cuda = options.cuda
    return LaneKind(
        options.device,
        options.threads if options.device is Device.CPU else 0,
        options.gpu,
        cuda.multiprocessors if cuda else None,
        cuda.priority if cuda else 0,
        options.speed,
    )


class Speeds:
    """What prompt tokens and steps take on each kind of some lanes.

    It is a mean over lanes that are alike, so that chance does not make one of them quicker. Where none of these has
    measured it, it is what the other lanes have measured, in proportion to the configured speeds; and where nobody has,
    a prompt token counts as one second at a speed of 1.
    """

    def __init__(self, lanes: Sequence[LaneLedger]) -> None:
        self._models = [(kind_of(ledger), ledger.model) for ledger in lanes]

    def token(self, kind: LaneKind) -> float:
        """Return what a prompt token takes."""
        measured = self._mean(kind, lambda model: model.token_seconds)
        return 1 / kind.speed if measured is None else measured

    def step(self, kind: LaneKind, rows: int) -> float:
        """Return what a step with so many outputs and no prompt takes."""
        measured = self._mean(kind, lambda model: model.decode_seconds(rows) or None)
        return self.token(kind) * STEP_TOKENS * (1 + rows) / 2 if measured is None else measured

    def _mean(self, kind: LaneKind, measured: Callable[[StepTimeModel], float | None]) -> float | None:
        known = [(other, seconds) for other, model in self._models if (seconds := measured(model)) is not None]
        own = [seconds for other, seconds in known if other == kind]
        scaled = own or [seconds * other.speed / kind.speed for other, seconds in known]
        return fmean(scaled) if scaled else None

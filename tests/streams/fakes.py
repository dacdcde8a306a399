"""Stand-ins that need no model: a lane that carries nothing out, cells and samplers that only take notes."""

from __future__ import annotations

from llamalane.ids import SequenceId
from llamalane.kvcache import Region, RegionPlan
from llamalane.streams import Device, LaneBackend, StepPlan, Stream, StreamOptions
from llamalane.streams.steps import Receiver

LIMIT = 64


def stream_options(name: str, places: int = 4) -> StreamOptions:
    return StreamOptions(name=name, device=Device.CPU, places=places, cores=(), threads=1)


class FakeLane:
    """A lane without a thread. It counts how often it was closed."""

    max_step_tokens = 64

    def __init__(self, name: str) -> None:
        self.name = name
        self.receiver: Receiver | None = None
        self.plans: list[StepPlan] = []
        self.closings = 0

    def start(self, receiver: Receiver) -> None:
        self.receiver = receiver

    def post(self, plan: StepPlan) -> None:
        self.plans.append(plan)

    def close(self) -> None:
        self.closings += 1


class LaneOpener:
    """Opens fake lanes with real regions, until the lane called `broken`, which cannot be opened."""

    def __init__(self, broken: str | None = None) -> None:
        self.lanes: list[FakeLane] = []
        self._broken = broken

    def __call__(self, stream: Stream) -> tuple[LaneBackend, Region]:
        options = stream.options
        if options.name == self._broken:
            raise OSError(f"{options.name} cannot be opened")
        lane = FakeLane(options.name)
        self.lanes.append(lane)
        return lane, Region(RegionPlan(cells=256, places=options.places, limit=LIMIT))


class FakeCells:
    """Notes what is removed; without `can_roll_back` only whole sequences can be, or nothing at all."""

    def __init__(self, *, can_roll_back: bool = True) -> None:
        self.can_roll_back = can_roll_back
        self.removals: list[tuple[SequenceId, int]] = []

    def remove(self, sequence: SequenceId, start: int = 0) -> bool:
        if start and not self.can_roll_back:
            return False
        self.removals.append((sequence, start))
        return True


class FakeSampler:
    """Chooses nothing; notes that it was closed, once at most."""

    closed = False

    def close(self) -> None:
        assert not self.closed
        self.closed = True

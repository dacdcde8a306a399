"""Stand-ins that need no model: a lane that carries nothing out, cells and samplers that only take notes."""

from __future__ import annotations

from llamalane.ids import SequenceId, StepNumber
from llamalane.kvcache import Region, RegionPlan
from llamalane.streams import Device, LaneBackend, StepPlan, Stream, StreamOptions
from llamalane.streams.parts import Parts
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

    def abandon(self, step: StepNumber) -> None:
        raise AssertionError("no step is under way")

    def close(self) -> None:
        self.closings += 1


class LaneOpener:
    """Opens fake lanes with real regions, until the lane called `broken`, which cannot be opened.

    Each region has `cells` in all, and `spare` sequences more than can run.
    """

    def __init__(self, broken: str | None = None, *, cells: int = 256, spare: int = 0) -> None:
        self.lanes: list[FakeLane] = []
        self._broken = broken
        self._cells = cells
        self._spare = spare

    def __call__(self, stream: Stream) -> tuple[LaneBackend, Region]:
        options = stream.options
        if options.name == self._broken:
            raise OSError(f"{options.name} cannot be opened")
        lane = FakeLane(options.name)
        self.lanes.append(lane)
        sequences = options.places + self._spare
        return lane, Region(RegionPlan(self._cells, options.places, min(LIMIT, self._cells), sequences))


class FakeCells:
    """Notes what is removed, copied, saved and restored; without `can_roll_back` only whole sequences can be removed.

    `lengths` says how long sequences are, `can_restore` whether saved cells can be put back, and `can_shift` whether
    cells can be moved.
    """

    def __init__(self, *, can_roll_back: bool = True) -> None:
        self.can_roll_back = can_roll_back
        self.can_restore = True
        self.can_shift = True
        self.parts = 1
        """In how many parts a sequence is saved and restored."""
        self.parts_done = 0
        self.lengths: dict[SequenceId, int] = {}
        self.removals: list[tuple[SequenceId, int]] = []
        self.copies: list[tuple[SequenceId, SequenceId, int]] = []
        self.merges: list[tuple[SequenceId, SequenceId, int, int]] = []
        self.saves: list[SequenceId] = []
        self.shifts: list[tuple[SequenceId, int, int]] = []
        self.restorals: list[tuple[SequenceId, bytes]] = []

    def remove(self, sequence: SequenceId, start: int = 0) -> bool:
        if start and not self.can_roll_back:
            return False
        self.removals.append((sequence, start))
        return True

    def length(self, sequence: SequenceId) -> int:
        return self.lengths[sequence]

    def copy(self, source: SequenceId, target: SequenceId, length: int) -> bool:
        self.copies.append((source, target, length))
        return True

    def merge(self, source: SequenceId, target: SequenceId, start: int, end: int) -> None:
        self.merges.append((source, target, start, end))

    def saving(self, sequence: SequenceId) -> Parts[bytearray]:
        assert (sequence, 0) not in self.removals[-1:], "there is nothing left to save"
        for _ in range(self.parts - 1):
            self.parts_done += 1
            yield
        self.parts_done += 1
        self.saves.append(sequence)
        return bytearray(b"cells of %d" % sequence)

    def restoring(self, sequence: SequenceId, data: bytearray) -> Parts[bool]:
        for _ in range(self.parts - 1):
            self.parts_done += 1
            yield
        self.parts_done += 1
        self.restorals.append((sequence, bytes(data)))
        return self.can_restore

    def shift(self, sequence: SequenceId, keep: int, drop: int) -> bool:
        self.shifts.append((sequence, keep, drop))
        return self.can_shift


class FakeSampler:
    """Chooses nothing; notes that it was closed, once at most."""

    closed = False

    def close(self) -> None:
        assert not self.closed
        self.closed = True

"""What production's code sees of a simulated lane, and of a waiting request: what it asks for, and no more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

from llamalane.bench.simulator.lane import SimulatedLane
from llamalane.bench.simulator.places import Places
from llamalane.bench.simulator.request import SimulatedRequest
from llamalane.ids import Level
from llamalane.scheduler.request import Request
from llamalane.streams import CpuStream, Device, PoolLane, StreamOptions

_STREAM = CpuStream(StreamOptions(name="simulated", device=Device.CPU, places=1, cores=(), threads=1))
"""Simulated lanes are alike: what is learned of one's speed counts for all."""


class LaneView:
    """A lane as its ledger sees it, and the choice among several; `places` tells what is free there, and cached."""

    stream = _STREAM

    def __init__(self, lane: SimulatedLane, places: Places) -> None:
        self.name = str(lane.index)
        self.backend = lane
        self.region = RegionView(lane.index, places)
        self._places = places

    @property
    def free(self) -> int:
        """How many places are free."""
        return self._places.free_on(self.backend.index)


class RegionView(NamedTuple):
    """The cells of a lane as the choice among several sees them."""

    lane: int
    places: Places

    def cached(self, tokens: Sequence[int], session: str) -> int:
        """Return how many of a request's tokens are there; only how many it has matters."""
        return self.places.cached(self.lane, session, len(tokens))


class _Waiting(NamedTuple):
    level: Level
    length: int
    generated: Sequence[int]
    max_tokens: int
    findable: Sequence[int]
    scope: str


def view_of_lane(lane: SimulatedLane, places: Places) -> PoolLane:
    """Return a lane for production's code."""
    return cast(PoolLane, LaneView(lane, places))


def view_of_waiting(request: SimulatedRequest) -> Request:
    """Return a waiting request for production's code; its output may have as many tokens as it will get."""
    waiting = _Waiting(
        level=request.level,
        length=request.tokens,
        generated=range(request.generated),
        max_tokens=request.output_tokens,
        findable=range(request.tokens),
        scope=request.session,
    )
    return cast(Request, waiting)

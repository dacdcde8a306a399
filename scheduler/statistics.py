"""The engine at one moment, frozen: what metrics and tests read."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from llamalane.ids import Level
from llamalane.kvcache import DiskStatistics, HostStatistics
from llamalane.scheduler.counters import Counters
from llamalane.scheduler.histogram import NOTHING, HistogramSnapshot
from llamalane.scheduler.ledger import LaneLedger
from llamalane.scheduler.measurements import LevelStatistics
from llamalane.scheduler.scheduler import Scheduler


class EngineState(enum.Enum):
    """Whether the engine takes requests."""

    NEW = "new"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    """It takes no new requests and finishes those that it has."""
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class LaneStatistics:
    """One lane.

    Attributes:
        kind: what its stream really is.
        priority_enforced: whether the device itself runs more urgent streams first.
        serving: whether it has a context.
        down: whether it has given up for good.
        paused: whether it finishes what runs on it and takes nothing new, as was asked for.
        running: requests that hold a place on it.
        decode_seconds, sample_seconds, idle_seconds: where its time went since the start; idle is the time between
            steps while there was work.
        cells, reserved_cells, paused_cells, kept_cells: KV cells in all, promised to running requests, held by paused
            ones, and kept for requests that continue a finished one.
        evictions: how often kept cells were given up.
        step_age: about how many seconds ago the step under way began; 0 while the lane has nothing to compute. A lane
            whose device hangs is told by it: steps take a fraction of a second, or a few on a slow machine.
        abandoned_steps: steps that were broken off for a more urgent request.
        threads: CPU threads that it computes with now; 0 on a GPU, where they do little.
        drafted_tokens, accepted_tokens: tokens that were computed as drafts, and how many of them turned out right.
        step_seconds, step_rows, step_tokens: of each step, its time, the rows of generated tokens, and all tokens.
    """

    name: str
    kind: str
    priority_enforced: bool
    serving: bool
    down: bool
    places: int
    running: int
    steps: int
    abandoned_steps: int
    failures: int
    decode_seconds: float
    sample_seconds: float
    idle_seconds: float
    cells: int
    reserved_cells: int
    paused_cells: int
    kept_cells: int
    evictions: int
    paused: bool = False
    step_age: float = 0.0
    threads: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    step_seconds: HistogramSnapshot = NOTHING
    step_rows: HistogramSnapshot = NOTHING
    step_tokens: HistogramSnapshot = NOTHING


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """The whole engine: places of all lanes, requests waiting and running at each level, and its counters.

    Attributes:
        host: what is kept in host memory, None for nothing yet.
        disk: what is kept on disk, None where nothing is.
        restored_tokens: tokens that were put back from there or from the disk, instead of being computed.
        stowed_bytes, restored_bytes: what finished prompts' cells took that were saved, and that were put back.
        levels: what the requests of each level took.
    """

    state: EngineState
    places: int
    free_places: int
    waiting: Mapping[Level, int]
    waiting_tokens: int
    running: Mapping[Level, int]
    lanes: tuple[LaneStatistics, ...]
    counters: Counters
    host: HostStatistics | None = None
    restored_tokens: int = 0
    disk: DiskStatistics | None = None
    stowed_bytes: int = 0
    restored_bytes: int = 0
    levels: Mapping[Level, LevelStatistics] = field(default_factory=dict)


def take_statistics(state: EngineState, scheduler: Scheduler | None) -> EngineStatistics:
    """Return the numbers of this moment; an engine that was not started has none but its state."""
    if scheduler is None:
        return EngineStatistics(state, 0, 0, {}, 0, {}, (), Counters())
    stowage = scheduler.rules.stowage
    return EngineStatistics(
        state=state,
        places=scheduler.pool.places,
        free_places=scheduler.pool.free,
        waiting=dict(scheduler.queue.sizes),
        waiting_tokens=scheduler.queue.tokens,
        running=dict(scheduler.running),
        lanes=tuple(_lane(ledger, scheduler.now) for ledger in scheduler.ledgers.values()),
        counters=scheduler.counters.copy(),
        host=stowage.statistics,
        restored_tokens=stowage.restored_tokens,
        disk=stowage.disk_statistics,
        stowed_bytes=stowage.stowed_bytes,
        restored_bytes=stowage.restored_bytes,
        levels=scheduler.measurements.snapshot(),
    )


def _lane(ledger: LaneLedger, now: float) -> LaneStatistics:
    lane = ledger.lane
    region = lane.region.statistics()
    return LaneStatistics(
        name=lane.name,
        kind=lane.stream.kind,
        priority_enforced=lane.stream.priority_enforced,
        serving=lane.serving,
        down=ledger.down,
        places=lane.region.places,
        running=len(ledger.running),
        steps=ledger.steps,
        abandoned_steps=ledger.abandoned_steps,
        failures=ledger.failures,
        decode_seconds=ledger.decode_seconds,
        sample_seconds=ledger.sample_seconds,
        idle_seconds=ledger.idle_seconds,
        cells=region.cells,
        reserved_cells=region.reserved,
        paused_cells=region.paused,
        kept_cells=region.kept,
        evictions=region.evictions,
        paused=lane.withheld,
        step_age=ledger.step_age(now),
        threads=ledger.threads,
        drafted_tokens=ledger.drafted_tokens,
        accepted_tokens=ledger.accepted_tokens,
        step_seconds=ledger.step_seconds.snapshot(),
        step_rows=ledger.step_rows.snapshot(),
        step_tokens=ledger.step_tokens.snapshot(),
    )

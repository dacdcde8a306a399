"""What the dashboard shows, as JSON: all of it, and what has changed since.

Times are in seconds, as the engine's clock counts; `time` is that clock's present time, so that a viewer's own clock
does not matter. No field holds anything of a prompt or of an output.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from llamalane.api.errors import kind_of
from llamalane.ids import Level
from llamalane.scheduler import (
    Engine,
    EngineStatistics,
    FinishReason,
    Holding,
    LaneStatistics,
    Occupant,
    Outcome,
    Quantiles,
    RequestView,
    SlidingHistogram,
    StepRecord,
)

Shows = Callable[[str], bool]
"""Tells whether a viewer may see the requests of a tenant."""

MOST_REQUESTS = 2000
"""A snapshot holds no more requests; of those beyond, only their numbers are told."""
RECENT = 120.0
FIRST_STEPS = 1024
"""A snapshot holds so many steps of each lane, and none that began more than so many seconds ago."""
SHARES = (0.5, 0.9, 0.99)
TAIL = 5
"""An update tells anew the tokens of the last seconds in which there were some."""


class Feed:
    """What one viewer is told, of whom `shows` says which tenants' requests it may see."""

    def __init__(self, engine: Engine, shows: Shows, *, shows_all: bool) -> None:
        self._engine = engine
        self._view = engine.view
        self._recorder = self._view.recorder
        self._shows = shows
        self._shows_all = shows_all
        self._changes = 0
        self._steps: dict[str, int] = dict.fromkeys(self._recorder.steps, 0)

    def snapshot(self) -> dict[str, Any]:
        """Return everything; the next update tells what comes after."""
        recorder, since = self._recorder, self._view.now - RECENT
        self._changes = recorder.changes.total
        steps: dict[str, list[StepRecord]] = {}
        for lane, ring in recorder.steps.items():
            steps[lane] = [step for step in ring.since(ring.total - FIRST_STEPS) if step.begin >= since]
            self._steps[lane] = ring.total
        return {
            "object": "dashboard.snapshot",
            "started": recorder.started,
            "model": self._engine.model_name,
            "limit": self._engine.limit,
            "levels": self._levels(),
            "shows_all": self._shows_all,
            "requests": self._entries([*recorder.ended.values(), *self._view.requests(MOST_REQUESTS)]),
            **self._state(steps, len(recorder.tokens)),
        }

    def update(self) -> dict[str, Any]:
        """Return what has changed since the last time; a snapshot, if it was so much that some of it is lost."""
        recorder = self._recorder
        if recorder.changes.lost(self._changes):
            return self.snapshot()
        changed = {one.request: one.tenant for one in recorder.changes.since(self._changes)}
        self._changes = recorder.changes.total
        steps = {lane: ring.since(self._steps[lane]) for lane, ring in recorder.steps.items()}
        self._steps = {lane: ring.total for lane, ring in recorder.steps.items()}
        found = {request: self._view.find(request) for request in changed}
        return {
            "object": "dashboard.update",
            "requests": self._entries(one for one in found.values() if one is not None),
            "gone": [request for request, one in found.items() if one is None and self._shows(changed[request])],
            **self._state(steps, TAIL),
        }

    def _state(self, steps: Mapping[str, Iterable[StepRecord]], seconds: int) -> dict[str, Any]:
        """Return what snapshots and updates have in common."""
        statistics, holdings, now = self._engine.stats(), self._view.holdings(), self._view.now
        occupants = [one for one in self._view.occupants() if self._shows(one.tenant)]
        return {
            "time": round(now, 4),
            "state": statistics.state.value,
            "places": statistics.places,
            "waiting": dict(statistics.waiting),
            "waiting_tokens": statistics.waiting_tokens,
            "running": dict(statistics.running),
            "counters": _counters(statistics),
            "lanes": [
                {
                    **_lane(lane),
                    "holdings": self._holdings(lane.name, holdings[lane.name], occupants),
                    "new_steps": [_step(step) for step in steps[lane.name]],
                }
                for lane in statistics.lanes
            ],
            "progress": [[one.request, one.generated_tokens, _rounded(one.first_token)] for one in occupants],
            "latency": self._latency(now),
            "tokens": [
                [count.second, count.generated, count.prompt] for count in list(self._recorder.tokens)[-seconds:]
            ],
        }

    def _levels(self) -> list[dict[str, Any]]:
        settings = self._engine.config.scheduler
        names: dict[Level, list[str]] = {}
        for name, level in settings.levels.items():
            names.setdefault(Level(level), []).append(name)
        return [{"level": level, "name": "/".join(names[level])} for level in sorted(names)]

    def _entries(self, requests: Iterable[RequestView]) -> list[dict[str, Any]]:
        return [self._entry(request) for request in requests if self._shows(request.tenant)]

    def _entry(self, request: RequestView) -> dict[str, Any]:
        entry = {
            "id": request.id,
            "state": request.state.value,
            "level": request.level,
            "arrival": round(request.arrival, 4),
            "lane": request.lane or None,
            "sequence": request.sequence,
            "prompt_tokens": request.prompt_tokens,
            "cached_tokens": request.cached_tokens,
            "generated_tokens": request.generated_tokens,
            "max_tokens": request.max_tokens,
            "first_token": _rounded(request.first_token),
            "events": [[kind.value, round(time, 4)] for kind, time in request.events],
            "outcome": _outcome(request.outcome),
        }
        return {**entry, "tenant": request.tenant} if self._shows_all else entry

    def _holdings(self, lane: str, holdings: Iterable[Holding], occupants: Iterable[Occupant]) -> list[list[Any]]:
        """Return whose the cells of a lane are; those of requests that this viewer may not see, in one for each use."""
        owners = {one.sequence: one.request for one in occupants if one.lane == lane}
        shown: list[list[Any]] = []
        rest: Counter[str] = Counter()
        for one in holdings:
            use, owner = one.use.value, owners.get(one.sequence) if one.sequence is not None else None
            if owner is None and not self._shows_all:
                rest[use] += one.cells
            else:
                shown.append([use, one.cells, one.sequence, owner])
        return [*shown, *([use, cells, None, None] for use, cells in rest.items())]

    def _latency(self, now: float) -> list[dict[str, Any]]:
        settings = self._engine.config.scheduler
        return [
            {
                "level": level,
                "first_token": _quantiles(first_token, now),
                "gap": _quantiles(self._recorder.gap[level], now),
                "target": settings.target_of(level),
            }
            for level, first_token in self._recorder.first_token.items()
        ]


def _counters(statistics: EngineStatistics) -> dict[str, int]:
    counters = statistics.counters
    return {
        "finished": counters.finished,
        "in_time": counters.in_time,
        "cancelled": counters.cancelled,
        "failed": counters.failed,
        "expired": counters.expired,
        "rejected": counters.rejected.total(),
        "parks": counters.parks.total(),
        "prompt_tokens": counters.prompt_tokens,
        "cached_tokens": counters.cached_tokens,
        "completion_tokens": counters.completion_tokens,
    }


def _lane(lane: LaneStatistics) -> dict[str, Any]:
    return {
        "name": lane.name,
        "kind": lane.kind,
        "serving": lane.serving,
        "down": lane.down,
        "paused": lane.paused,
        "places": lane.places,
        "running": lane.running,
        "failures": lane.failures,
        "cells": lane.cells,
        "evictions": lane.evictions,
    }


def _step(step: StepRecord) -> list[Any]:
    begin, seconds = round(step.begin, 4), round(step.seconds, 4)
    return [step.number, begin, seconds, step.decode_rows, step.prefill_tokens, step.abandoned]


def _quantiles(histogram: SlidingHistogram, now: float) -> dict[str, Any]:
    quantiles: Quantiles = histogram.quantiles(SHARES, now)
    return {"count": quantiles.count, "values": [float(f"{value:.3g}") for value in quantiles.values]}


def _outcome(outcome: Outcome | None) -> str | None:
    if outcome is None or isinstance(outcome, FinishReason):
        return None if outcome is None else outcome.value
    return kind_of(outcome).code or "failed"


def _rounded(time: float | None) -> float | None:
    return None if time is None else round(time, 4)

"""Engines to look at: the books of a scheduler over scripted lanes, behind what a feed asks of an engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from llamalane.api.dashboard.feed import Feed
from llamalane.scheduler import Engine, EngineConfig, EngineState, EngineStatistics, LiveView, ModelConfig
from llamalane.scheduler.statistics import take_statistics
from tests.scheduler.harness import Harness

CONFIG = EngineConfig(models=[ModelConfig(path=Path("scripted.gguf"), name="scripted")])


class LookedAt:
    """What a feed and a stream ask of an engine, over a harness that the test moves on."""

    config = CONFIG
    model_name = "scripted"
    limit = 64

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.state = EngineState.READY

    @property
    def view(self) -> LiveView:
        return self.harness.scheduler.view

    def stats(self) -> EngineStatistics:
        return take_statistics(self.state, self.harness.scheduler)


def as_engine(looked_at: LookedAt) -> Engine:
    """Return it as what it stands for."""
    return cast(Engine, looked_at)


def feed_of(looked_at: LookedAt | Harness, tenants: Sequence[str] | None = None) -> Feed:
    """Return a feed for a viewer who may see these tenants' requests, None for all."""
    engine = looked_at if isinstance(looked_at, LookedAt) else LookedAt(looked_at)
    return Feed(as_engine(engine), lambda tenant: tenants is None or tenant in tenants, shows_all=tenants is None)


def lane_of(message: dict[str, Any], name: str = "lane-0") -> dict[str, Any]:
    """Return what a message tells of a lane."""
    found: dict[str, Any] = next(lane for lane in message["lanes"] if lane["name"] == name)
    return found


def states_of(message: dict[str, Any]) -> dict[str, str]:
    """Return the state of each request that a message tells of, or how it ended."""
    return {entry["id"]: entry["outcome"] or entry["state"] for entry in message["requests"]}

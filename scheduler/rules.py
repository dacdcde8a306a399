"""What a scheduler goes by, in one place: its policies and bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from llamalane.ids import Level
from llamalane.scheduler.admission import AdmissionPolicy
from llamalane.scheduler.config import EngineConfig
from llamalane.scheduler.displacement import DisplacementPolicy
from llamalane.scheduler.growth import GrowthPredictor
from llamalane.scheduler.parking import ParkingCosts
from llamalane.scheduler.priority import LEVELS
from llamalane.streams import Parking


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a scheduler goes by.

    Attributes:
        admission: who gets the next free place.
        displacement: who gives way to whom.
        costs: how those who give way are parked.
        growth: what running requests will come to need.
        targets: for each level, how many seconds there should be at most between two tokens.
        abort_after: a step is abandoned for a more urgent request that would wait longer than so many seconds for its
            end; None for never.
        weights: how much of the service each tenant should get, 1 for those that are not named.
        max_requests, max_tokens: how many requests may wait, and how many prompt tokens they may have together.
    """

    admission: AdmissionPolicy
    displacement: DisplacementPolicy
    costs: ParkingCosts
    growth: GrowthPredictor
    targets: Mapping[Level, float]
    abort_after: float | None
    weights: Mapping[str, float]
    max_requests: int
    max_tokens: int


def rules_of(config: EngineConfig) -> Rules:
    """Return the rules that a configuration tells; they learn while a scheduler uses them, so each needs its own."""
    settings = config.scheduler
    reserve = {Level(settings.levels[name]): places for name, places in settings.reserve.items()}
    return Rules(
        admission=AdmissionPolicy(settings.guaranteed_share, reserve),
        displacement=DisplacementPolicy(settings.max_parks),
        costs=ParkingCosts(config.kv.swap, None if settings.park == "auto" else Parking(settings.park)),
        growth=GrowthPredictor(),
        targets={level: settings.target_of(level) for level in LEVELS},
        abort_after=settings.abort_after,
        weights={},
        max_requests=settings.queue.max_requests,
        max_tokens=settings.queue.max_tokens,
    )

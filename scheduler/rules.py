"""What a scheduler goes by, in one place: its policies and bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from llamalane.ids import Level
from llamalane.scheduler.admission import AdmissionPolicy
from llamalane.scheduler.archive import Archive
from llamalane.scheduler.config_roles import hands_over
from llamalane.scheduler.displacement import DisplacementPolicy
from llamalane.scheduler.fairness import Weights
from llamalane.scheduler.growth import GrowthPredictor
from llamalane.scheduler.handover import HandoverPolicy, LaneRole
from llamalane.scheduler.limits import TenantLimit
from llamalane.scheduler.parking import ParkingCosts
from llamalane.scheduler.priority import LEVELS, Aging
from llamalane.scheduler.queue import QueueBounds
from llamalane.scheduler.stowage import Stowage
from llamalane.streams import Parking

if TYPE_CHECKING:
    from llamalane.scheduler.config import EngineConfig, SchedulerConfig, TenantConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a scheduler goes by.

    Attributes:
        aging: what waiting makes of a level.
        admission: who gets the next free place.
        displacement: who gives way to whom.
        costs: how those who give way are parked.
        stowage: what is kept of prompts when a lane gives them up.
        growth: what running requests will come to need.
        targets: for each level, how many seconds there should be at most between two tokens.
        abort_after: a step is abandoned for a more urgent request that would wait longer than so many seconds for its
            end; None for never.
        bounds: how much may wait.
        limits: what each tenant may have under way, `default_limit` for those that are not named.
        weights: how much of the service each tenant should get.
        handover: which prompts are computed on another lane than their outputs; None where lanes have no roles.
        embedding_admission: who gets the next free place of each model that embeds, by its name.
    """

    aging: Aging
    admission: AdmissionPolicy
    displacement: DisplacementPolicy
    costs: ParkingCosts
    stowage: Stowage
    growth: GrowthPredictor
    targets: Mapping[Level, float]
    abort_after: float | None
    bounds: QueueBounds
    limits: Mapping[str, TenantLimit]
    default_limit: TenantLimit
    weights: Weights
    handover: HandoverPolicy | None = None
    embedding_admission: Mapping[str, AdmissionPolicy] = field(default_factory=dict)

    def admission_for(self, model: str) -> AdmissionPolicy:
        """Return who gets the next free place on the lanes of a model."""
        return self.embedding_admission[model] if model else self.admission


def rules_of(config: EngineConfig, *, can_swap: bool = True, archive: Archive | None = None) -> Rules:
    """Return the rules that a configuration tells; they learn while a scheduler uses them, so each needs its own.

    `can_swap` tells whether the lanes can save cells and put them back; `archive` keeps some over a restart.
    """
    settings = config.scheduler
    park = None if settings.park == "auto" else Parking(settings.park)
    costs = ParkingCosts(config.kv.swap, park, can_swap=can_swap)
    return Rules(
        aging=Aging(settings.ceiling, settings.aging_interval),
        admission=AdmissionPolicy(settings.guaranteed_share, settings.by_level(settings.reserve)),
        displacement=DisplacementPolicy(settings.max_parks),
        costs=costs,
        stowage=Stowage(costs, archive),
        growth=GrowthPredictor(),
        targets=targets_of(settings),
        abort_after=settings.abort_after,
        bounds=bounds_of(settings),
        limits=limits_of(settings),
        default_limit=limit_of(settings.other_tenants),
        weights=weights_of(settings),
        handover=_handover_of(config, costs),
        embedding_admission={
            model.names[0]: AdmissionPolicy(settings.guaranteed_share, {}) for model in config.embedding_models
        },
    )


def targets_of(settings: SchedulerConfig) -> dict[Level, float]:
    """Return for each level how many seconds there should be at most between two tokens."""
    return {level: settings.target_of(level) for level in LEVELS}


def bounds_of(settings: SchedulerConfig) -> QueueBounds:
    """Return how much may wait."""
    queue = settings.queue
    reserve = settings.by_level(queue.reserve)
    return QueueBounds(queue.max_requests, queue.max_tokens, reserve, shed=queue.overflow == "shed")


def limits_of(settings: SchedulerConfig) -> dict[str, TenantLimit]:
    """Return what each tenant may have that is named."""
    return {name: limit_of(tenant) for name, tenant in settings.tenants.items()}


def weights_of(settings: SchedulerConfig) -> Weights:
    """Return the weights of the tenants."""
    return Weights({name: tenant.weight for name, tenant in settings.tenants.items()}, settings.other_tenants.weight)


def limit_of(tenant: TenantConfig) -> TenantLimit:
    """Return what a tenant may have."""
    return TenantLimit(tenant.concurrent, tenant.tokens_per_minute, tenant.weight)


def _handover_of(config: EngineConfig, costs: ParkingCosts) -> HandoverPolicy | None:
    if not hands_over(config):
        return None
    roles = {lane.name: LaneRole(lane.role) for lane in config.streams.lanes}
    return HandoverPolicy(roles, costs, always=config.scheduler.handover == "always")

"""What the configuration has to give so that prompts can be handed over from lane to lane."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from llamalane.errors import ConfigError
from llamalane.kvcache import Layout
from llamalane.kvcache.budget import RegionPlan

if TYPE_CHECKING:
    from llamalane.scheduler.config import EngineConfig

CANNOT_HAND_OVER = (
    "a lane's role is prefill, and sequences of this model cannot be saved on one lane and put back on another: set "
    "the role of every lane to any, or scheduler.handover to never"
)
_NO_MEMORY = (
    "kv.swap is 0, and prompts are handed over from lanes whose role is prefill through host memory: give it some, or "
    "set scheduler.handover to never"
)
_UNLIKE = (
    "kv.layout is partitioned, and the lanes have {counts} sequences: a sequence that was saved on one lane can be put "
    "back only on a lane with as many, and a lane's role is prefill. Give all lanes as many places, or set kv.layout "
    "to paged"
)


def hands_over(config: EngineConfig) -> bool:
    """Return whether prompts may be handed over: a lane is for prompts only, and that is not turned off."""
    roles = [lane.role for lane in config.streams.lanes]
    return "prefill" in roles and config.scheduler.handover != "never"


def check_memory(config: EngineConfig) -> None:
    """Raise `ConfigError` if prompts are to be handed over and no host memory is there for it."""
    if hands_over(config) and config.kv.swap == 0:
        raise ConfigError(_NO_MEMORY)


def exchangeable(regions: Sequence[RegionPlan]) -> bool:
    """Return whether a sequence saved on one of these lanes can be put back on each of the others.

    A saved sequence fits a context divided into as many parts as the one that it comes from.
    """
    return len({region.sequences if region.layout is Layout.PARTITIONED else 0 for region in regions}) <= 1


def paged(config: EngineConfig, regions: Sequence[RegionPlan]) -> EngineConfig:
    """Return a configuration whose lanes can exchange sequences, where the layout is left open and `regions` could not.

    Raises `ConfigError` where it is not.
    """
    if config.kv.layout != "auto" or any(lane.layout is not None for lane in config.streams.lanes):
        counts = [str(region.sequences) for region in regions]
        raise ConfigError(_UNLIKE.format(counts=f"{', '.join(counts[:-1])} and {counts[-1]}"))
    return config.model_copy(update={"kv": config.kv.model_copy(update={"layout": "paged"})})

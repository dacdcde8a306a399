"""The settings for lanes of their own for prompts: what goes together, and what is refused with which words."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from llamalane.errors import ConfigError
from llamalane.kvcache import Layout, RegionPlan
from llamalane.scheduler import EngineConfig
from llamalane.scheduler.config_roles import check_memory, exchangeable, hands_over, paged
from llamalane.scheduler.handover import LaneRole
from llamalane.scheduler.rules import rules_of


def config_of(*roles: str, handover: str = "auto", **kv: Any) -> EngineConfig:
    """A configuration with a lane of each role."""
    return EngineConfig.model_validate(
        {
            "models": [{"path": "model.gguf"}],
            "streams": {"lanes": [{"name": f"{role}-{number}", "role": role} for number, role in enumerate(roles)]},
            "scheduler": {"handover": handover},
            "kv": kv,
        }
    )


def regions_of(layout: Layout, *sequences: int) -> list[RegionPlan]:
    return [RegionPlan(256 * count, count, 256, count, layout) for count in sequences]


def test_lanes_have_no_role_unless_they_are_given_one() -> None:
    config = EngineConfig.model_validate({"models": [{"path": "model.gguf"}], "streams": {"lanes": [{"count": 2}]}})
    assert [lane.role for lane in config.streams.lanes] == ["any", "any"]
    assert config.scheduler.handover == "auto"
    assert not hands_over(config)
    assert rules_of(config).handover is None


@pytest.mark.parametrize(
    ("roles", "told"),
    [
        (["prefill"], "every lane's role is prefill: one must be decode or any, to compute outputs"),
        (["prefill", "prefill"], "every lane's role is prefill"),
        (["decode"], "a lane's role is decode, and no lane's is prefill: one must be, to compute its prompts"),
        (["decode", "any"], "a lane's role is decode, and no lane's is prefill"),
        (["other"], "Input should be 'any', 'prefill' or 'decode'"),
    ],
)
def test_roles_that_leave_something_undone_are_refused(roles: list[str], told: str) -> None:
    with pytest.raises(ValidationError) as refused:
        config_of(*roles)
    assert told in str(refused.value)


@pytest.mark.parametrize("roles", [("prefill", "any"), ("prefill", "decode"), ("prefill", "any", "decode", "decode")])
@pytest.mark.parametrize("handover", ["auto", "always"])
def test_prompts_are_handed_over_where_a_lane_is_for_them(roles: tuple[str, ...], handover: str) -> None:
    config = config_of(*roles, handover=handover)
    assert hands_over(config)
    policy = rules_of(config).handover
    assert policy is not None
    assert [policy.role(lane.name) for lane in config.streams.lanes] == [LaneRole(role) for role in roles]


def test_never_takes_roles_for_nothing() -> None:
    config = config_of("prefill", "decode", handover="never", swap=0)
    assert not hands_over(config)
    assert rules_of(config).handover is None
    check_memory(config)


def test_a_handover_needs_host_memory() -> None:
    with pytest.raises(ConfigError, match=r"kv\.swap is 0, and prompts are handed over"):
        check_memory(config_of("prefill", "decode", swap=0))
    check_memory(config_of("prefill", "decode", swap=1))
    check_memory(config_of("any", "any", swap=0))


def test_partitioned_lanes_exchange_sequences_only_if_they_have_as_many() -> None:
    assert exchangeable(regions_of(Layout.PAGED, 2, 8))
    assert exchangeable(regions_of(Layout.PARTITIONED, 4, 4, 4))
    assert not exchangeable(regions_of(Layout.PARTITIONED, 4, 4, 8))
    assert not exchangeable([*regions_of(Layout.PARTITIONED, 4), *regions_of(Layout.PAGED, 4)])


def test_lanes_that_cannot_are_paged_unless_the_layout_was_asked_for() -> None:
    unlike = regions_of(Layout.PARTITIONED, 2, 4, 8)
    assert paged(config_of("prefill", "decode"), unlike).kv.layout == "paged"
    with pytest.raises(ConfigError, match=r"kv\.layout is partitioned, and the lanes have 2, 4 and 8 sequences"):
        paged(config_of("prefill", "decode", layout="partitioned"), unlike)

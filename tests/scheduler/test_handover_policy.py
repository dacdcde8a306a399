"""Which prompts are handed over: those for which all requests together lose less time by it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from llamalane.scheduler.handover import SHORT, DirectStart, Handover, HandoverPolicy, LaneRole, Slowdown
from llamalane.scheduler.parking import ParkingCosts
from tests.scheduler.test_parking import costs_that_saw

PLENTY = 1 << 20
ROLES = {"prompts": LaneRole.PREFILL, "outputs": LaneRole.DECODE}

seconds = st.floats(1e-5, 1e-1)
directs = st.builds(
    DirectStart, tokens=st.integers(1, 2000), outputs=st.integers(0, 32), token_seconds=st.none() | seconds
)
handovers = st.builds(
    Handover,
    tokens=st.integers(1, 2000),
    before=st.integers(0, 4000),
    token_seconds=seconds,
    cells=st.integers(0, 4000),
)
slowdowns = st.floats(1, 4)


def policy_for(costs: ParkingCosts, *, slower: float = 1.0, always: bool = False) -> HandoverPolicy:
    """A policy that has seen outputs take so many times as long while prompts are computed elsewhere."""
    policy = HandoverPolicy(ROLES, costs, always=always)
    policy.slowdown.observe("outputs", 1, 1.0, disturbed=False)
    for _ in range(200):
        policy.slowdown.observe("outputs", 1, slower, disturbed=True)
    return policy


def lost_directly(direct: DirectStart) -> float:
    """Count the seconds anew: each token makes its own request and every output wait."""
    assert direct.token_seconds is not None
    return sum(direct.token_seconds for _ in range(direct.tokens) for _ in range(direct.outputs + 1))


def lost_by_handover(outputs: int, handover: Handover, save: float, slower: float) -> float:
    """Count them anew: of the prompt's request, then of each output that gets less done meanwhile."""
    waiting = handover.before * handover.token_seconds
    computing = handover.tokens * handover.token_seconds
    saving = restoring = handover.cells * save
    own = waiting + computing + saving + restoring
    others = sum(restoring + (computing - computing / slower) for _ in range(outputs))
    return own + others


@given(direct=directs, handover=handovers, save=seconds, slower=slowdowns)
def test_a_handover_is_made_when_all_together_lose_less_by_it(
    direct: DirectStart, handover: Handover, save: float, slower: float
) -> None:
    assume(direct.token_seconds is not None)
    costs = costs_that_saw(save)
    policy = policy_for(costs, slower=slower)
    here, there = lost_directly(direct), lost_by_handover(direct.outputs, handover, save, slower)
    assume(abs(here - there) > 0.02 * here)
    wins = there < here and direct.tokens > SHORT and direct.outputs > 0 and costs.fits(handover.cells)
    assert policy.pays(direct, handover) is wins


@given(direct=directs, handover=handovers, save=seconds)
def test_no_handover_without_outputs_that_would_wait_or_before_the_lane_is_known(
    direct: DirectStart, handover: Handover, save: float
) -> None:
    policy = policy_for(costs_that_saw(save))
    assert not policy.pays(replace(direct, outputs=0), handover)
    assert not policy.pays(replace(direct, token_seconds=None), handover)
    assert not policy.pays(replace(direct, tokens=min(direct.tokens, SHORT)), handover)


@given(direct=directs, handover=handovers, save=seconds, more=st.integers(1, 1000), slower=slowdowns)
def test_what_costs_more_is_not_handed_over_where_less_was_not(
    direct: DirectStart, handover: Handover, save: float, more: int, slower: float
) -> None:
    policy = policy_for(costs_that_saw(save), slower=slower)
    dearer = [
        replace(handover, before=handover.before + more),
        replace(handover, tokens=handover.tokens + more),
        replace(handover, cells=handover.cells + more),
    ]
    if not policy.pays(direct, handover):
        assert not any(policy.pays(direct, other) for other in dearer)
    if policy.pays(replace(direct, tokens=direct.tokens + more), handover) is False:
        assert not policy.pays(direct, handover)


@given(direct=directs, handover=handovers)
def test_always_hands_over_whatever_is_long_and_can_be_saved(direct: DirectStart, handover: Handover) -> None:
    assert policy_for(ParkingCosts(PLENTY), always=True).pays(direct, handover) is (direct.tokens > SHORT)
    without_memory = policy_for(ParkingCosts(0), always=True)
    assert without_memory.pays(direct, handover) is (direct.tokens > SHORT and handover.cells == 0)


def test_a_lane_without_a_role_is_for_everything() -> None:
    policy = HandoverPolicy(ROLES, ParkingCosts(PLENTY))
    assert [policy.role(name) for name in ("prompts", "outputs", "other")] == [
        LaneRole.PREFILL,
        LaneRole.DECODE,
        LaneRole.ANY,
    ]


@given(slower=st.floats(0.25, 10), usual=seconds, rows=st.integers(1, 8))
def test_the_slowdown_is_the_share_of_time_lost(slower: float, usual: float, rows: int) -> None:
    slowdown = Slowdown()
    slowdown.observe("lane", rows, usual * slower, disturbed=True)
    assert slowdown.share == 0, "nothing is known of undisturbed steps yet"
    for _ in range(200):
        slowdown.observe("lane", rows, usual, disturbed=False)
        slowdown.observe("lane", rows, usual * slower, disturbed=True)
        slowdown.observe("other", rows, 1.0, disturbed=True)
    assert slowdown.share == pytest.approx(max(0.0, 1 - 1 / slower), abs=0.01)
    assert 0 <= slowdown.share < 1

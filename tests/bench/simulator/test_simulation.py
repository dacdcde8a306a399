"""The simulator against production's scheduler, against itself step by step, and against queueing by hand."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from llamalane.bench.simulator.machine import Machine
from llamalane.bench.simulator.policies import Ours
from llamalane.bench.simulator.published import WorkloadOptions, poisson
from llamalane.ids import Level
from llamalane.scheduler.displacement import PROGRESS
from llamalane.scheduler.priority import LEVELS
from llamalane.scheduler.rules import Rules
from tests.bench.simulator.building import (
    MILLISECOND,
    POLICIES,
    Arrival,
    LinearSpeed,
    MakePolicy,
    arrivals_of,
    by_arrival,
    first_come_first_served,
    machines,
    ours,
    requests,
    rules,
    simulate,
)
from tests.bench.simulator.production import Production

every_policy = pytest.mark.parametrize("make_policy", POLICIES.values(), ids=POLICIES)


@settings(max_examples=150)
@given(
    machine=machines,
    spare=st.sampled_from([0, 20]),  # that cells of paused requests are seldom taken
    arrivals=arrivals_of(),
    share=st.sampled_from([0, 2, 10]),
    max_parks=st.sampled_from([0, 1, 3]),
    abort_after=st.sampled_from([None, 0.01, 0.05]),
)
def test_it_does_what_production_does(
    machine: Machine, spare: int, arrivals: list[Arrival], share: int, max_parks: int, abort_after: float | None
) -> None:
    machine = replace(machine, spare=spare)

    def make_rules() -> Rules:
        return rules(machine, share=share, max_parks=max_parks, abort_after=abort_after)

    production = Production(machine, make_rules())
    lives = production.run(requests(arrivals))
    assume(not production.took_paused_cells)  # it takes no time here
    # While steps grow, what the scheduler expects of them does, and at a target's edge it may hear so a run too late.
    longest_run = 1 if machine.speed.growth else None
    outcomes = simulate(machine, Ours(make_rules()), requests(arrivals), longest_run=longest_run)
    arrived = sorted(arrival.at / 1000 for arrival in arrivals)
    moments = [(at, life.admitted, life.first_token, life.ended) for at, life in zip(arrived, lives, strict=True)]
    assert list(by_arrival(outcomes)) == sorted(moments)


@every_policy
@settings(max_examples=50)
@given(machine=machines, arrivals=arrivals_of(tenants=["a", "b", "c"]), partitioned=st.booleans())
def test_skipping_ahead_changes_nothing(
    make_policy: MakePolicy, machine: Machine, arrivals: list[Arrival], partitioned: bool
) -> None:
    machine = replace(machine, partitioned=partitioned)
    if machine.speed.growth or partitioned:  # steps with as many rows are not all as long
        machine = replace(machine, targets=dict.fromkeys(LEVELS, 10.0))  # far from any step, as above
    quick = simulate(machine, make_policy(machine), requests(arrivals))
    slow = simulate(machine, make_policy(machine), requests(arrivals), longest_run=1)
    assert list(by_arrival(quick)) == list(by_arrival(slow))
    assert quick.steps == slow.steps
    assert quick.parks.sum() == slow.parks.sum()


@every_policy
@settings(max_examples=30)
@given(machine=machines, arrivals=arrivals_of(tenants=["a", "b", "c"]))
def test_every_request_ends_once_and_gets_all_its_tokens(
    make_policy: MakePolicy, machine: Machine, arrivals: list[Arrival]
) -> None:
    asked = requests(arrivals)
    outcomes = simulate(machine, make_policy(machine), asked)
    assert len(outcomes) == len(arrivals)
    assert sorted(outcomes.output_tokens) == sorted(arrival.output for arrival in arrivals)
    assert all(request.generated == request.output_tokens for request in asked)
    assert (outcomes.arrival <= outcomes.admitted).all()
    assert (outcomes.admitted < outcomes.first_token).all()
    assert (outcomes.first_token <= outcomes.ended).all()


@settings(max_examples=100)
@given(
    lanes=st.integers(1, 4),
    duration=st.integers(1, 50),
    arrivals=st.lists(
        st.builds(Arrival, at=st.integers(0, 500), prompt=st.integers(1, 16), output=st.integers(1, 30)),
        min_size=1,
        max_size=30,
    ),
)
def test_first_come_first_served_is_a_queue_with_several_servers(
    lanes: int, duration: int, arrivals: list[Arrival]
) -> None:
    speed = LinearSpeed(base=duration * MILLISECOND, row=0, token=0)
    machine = Machine(places=[1] * lanes, speed=speed)
    outcomes = simulate(machine, first_come_first_served(), requests(arrivals))
    assert list(by_arrival(outcomes)) == sorted(queue_by_hand(lanes, duration, arrivals))


def queue_by_hand(servers: int, duration: int, arrivals: Sequence[Arrival]) -> list[tuple[float, float, float, float]]:
    """Serve each arrival by the server that is free first; a step gives a token, and the first one too."""
    free_at = [0] * servers
    moments = []
    for arrival in sorted(arrivals, key=lambda arrival: arrival.at):
        begin = max(arrival.at, heapq.heappop(free_at))
        end = begin + arrival.output * duration
        heapq.heappush(free_at, end)
        moments.append((arrival.at / 1000, begin / 1000, (begin + duration) / 1000, end / 1000))
    return moments


@pytest.mark.parametrize("seed", range(3))
def test_urgent_requests_wait_less_than_first_come_first_served_under_overload(seed: int) -> None:
    source = poisson(WorkloadOptions())
    machine = Machine(places=[4, 4], speed=LinearSpeed())
    rate = 1.3 * machine.capacity(*source.mean_lengths())
    waits = []
    for policy in (ours(machine), first_come_first_served()):
        outcomes = simulate(machine, policy, list(source.requests(rate, seed, count=400)))
        waits.append(np.percentile(outcomes.time_to_first_token[outcomes.level == 1], 99))
    assert waits[0] < waits[1] / 4


def test_the_same_seed_gives_the_same_outcomes() -> None:
    source = poisson(WorkloadOptions(tenants=3))
    machine = Machine(places=[4], speed=LinearSpeed())

    def moments(seed: int) -> list[tuple[float, float, float, float]]:
        return list(by_arrival(simulate(machine, ours(machine), list(source.requests(2.0, seed, count=100)))))

    assert moments(1) == moments(1)
    assert moments(1) != moments(2)


def test_an_idle_lane_begins_at_once_and_a_busy_one_at_the_end_of_its_step() -> None:
    machine = Machine(places=[2], speed=LinearSpeed(base=10 * MILLISECOND, row=0, token=0))
    outcomes = simulate(machine, ours(machine), requests([Arrival(at=3, output=4), Arrival(at=15, output=1)]))
    (_, _, first, ended), (_, admitted, late, _) = by_arrival(outcomes)
    assert (first, ended) == (0.013, 0.043)
    assert (admitted, late) == (0.015, 0.033)  # joins at 23 ms


def test_a_place_that_comes_free_is_filled_in_the_next_step() -> None:
    arrivals = [Arrival(at=0, output=6), Arrival(at=0, output=20), Arrival(at=1, output=1)]
    machine = Machine(places=[2], speed=LinearSpeed(base=10 * MILLISECOND, row=0, token=0))
    (_, _, _, first_end), _, (_, admitted, first_token, _) = by_arrival(
        simulate(machine, ours(machine), requests(arrivals))
    )
    assert (first_end, admitted, first_token) == (0.06, 0.06, 0.07)


def test_a_less_urgent_request_gives_way_and_goes_on_later() -> None:
    machine = Machine(places=[1], speed=LinearSpeed(base=10 * MILLISECOND, row=0, token=0))
    arrivals = [Arrival(at=0, level=5, output=20), Arrival(at=45, level=1, output=3)]
    outcomes = simulate(machine, ours(machine), requests(arrivals))
    (_, _, _, batch_end), (_, admitted, first, urgent_end) = by_arrival(outcomes)
    assert (admitted, first, urgent_end) == (0.045, 0.06, 0.08)
    assert batch_end == pytest.approx(0.01 * (20 + 3))  # its cells stayed, so nothing was computed twice
    assert sorted(outcomes.parks) == [0, 1]


def test_who_was_parked_gives_way_again_only_after_it_has_got_on() -> None:
    machine = Machine(places=[1], speed=LinearSpeed(base=10 * MILLISECOND, row=0, token=0))
    arrivals = [Arrival(at=0, level=5, output=60), *(Arrival(at=at, level=1, output=2) for at in (105, 205))]
    outcomes = simulate(machine, Ours(rules(machine, max_parks=1)), requests(arrivals))
    _, (_, first_admitted, _, first_end), (_, second_admitted, _, _) = by_arrival(outcomes)
    assert first_admitted == 0.105
    assert second_admitted == pytest.approx(first_end + 0.01 * PROGRESS)
    assert sorted(outcomes.parks) == [0, 0, 2]


def test_a_conversation_finds_its_cells_again() -> None:
    first, second = requests([Arrival(at=0, prompt=40, output=10), Arrival(at=0, prompt=80, output=5)])
    first.session = second.session = "talk"
    first.next_turn, first.think = second, 500 * MILLISECOND
    machine = Machine(places=[2], speed=LinearSpeed())
    outcomes = simulate(machine, ours(machine), [first])
    assert list(outcomes.cached_tokens) == [0, 49]  # all but the token that was chosen last
    assert outcomes.arrival[1] == pytest.approx(outcomes.ended[0] + 0.5)


def test_what_finds_the_queue_full_is_refused() -> None:
    machine = Machine(places=[1], speed=LinearSpeed())
    policy = POLICIES["first come"](machine)
    policy._max_requests = 1  # type: ignore[attr-defined]
    outcomes = simulate(machine, policy, requests([Arrival(at=0, level=2, output=50)] * 4))
    assert len(outcomes) == 2
    assert outcomes.refused == {2: 2}


def test_reserved_places_stay_free_for_urgent_requests() -> None:
    machine = Machine(places=[2], speed=LinearSpeed(base=10 * MILLISECOND, row=0, token=0))
    policy = Ours(rules(machine, reserve={Level(1): 1}))
    arrivals = [Arrival(at=0, level=5, output=30), Arrival(at=0, level=5, output=30), Arrival(at=100, level=1)]
    outcomes = simulate(machine, policy, requests(arrivals))
    assert list(outcomes.admitted[outcomes.level == 1]) == [0.1]
    assert max(outcomes.admitted[outcomes.level == 5]) > 0.3  # the second one waited for the first
    assert outcomes.parks.sum() == 0


def test_tenants_get_equal_parts_however_much_they_ask_for() -> None:
    greedy = [Arrival(at=0, tenant="greedy", output=20) for _ in range(60)]
    modest = [Arrival(at=1, tenant="modest", output=20) for _ in range(10)]
    machine = Machine(places=[4], speed=LinearSpeed(), targets=dict.fromkeys(LEVELS, 10.0))
    outcomes = simulate(machine, ours(machine), requests([*greedy, *modest]))
    ends = {name: outcomes.ended[outcomes.tenant == outcomes.tenants.index(name)] for name in outcomes.tenants}
    # While both wait, each second admission is the modest one's.
    assert (ends["greedy"] < ends["modest"].max()).sum() <= 10 + 2 * sum(machine.places)

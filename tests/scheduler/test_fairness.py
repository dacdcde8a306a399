"""Fairness among tenants: who has been served least goes first, and nobody saves up service by being idle."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from llamalane.ids import Level
from llamalane.scheduler.admission import AdmissionPolicy
from llamalane.scheduler.fairness import OUTPUT_WEIGHT, PROMPT_WEIGHT, Fairness, TenantCounters, Weights
from llamalane.scheduler.queue import QueueBounds, WaitingQueue
from llamalane.scheduler.request import Request
from tests.scheduler.building import RequestMaker
from tests.scheduler.oracle import PlainCounters

TENANTS = ("one", "two", "three", "four")
WEIGHTS = {"one": 1.0, "two": 3.0, "three": 0.3}
LEVEL = Level(3)

tenants = st.sampled_from(TENANTS)


class CountersOfTenants(RuleBasedStateMachine):
    """Tenants become backlogged and idle and are served, in any order; the plain counters forget nobody."""

    @initialize()
    def begin(self) -> None:
        self.counters = TenantCounters(Weights(WEIGHTS))
        self.plain = PlainCounters(WEIGHTS)

    @rule(tenant=tenants)
    def become_backlogged_or_idle(self, tenant: str) -> None:
        if tenant in self.plain.backlogged:
            self.counters.leave(tenant)
            self.plain.leave(tenant)
        else:
            self.counters.join(tenant)
            self.plain.join(tenant)

    @rule(tenant=tenants, service=st.integers(0, 50))
    def serve(self, tenant: str, service: int) -> None:
        self.counters.charge(tenant, service)
        self.plain.charge(tenant, service)

    @precondition(lambda self: self.plain.backlogged)
    @rule(service=st.integers(1, 50))
    def serve_the_first(self, service: int) -> None:
        assert self.counters.first() == self.plain.first()
        self.serve(self.plain.first(), service)

    @invariant()
    def nothing_is_lost(self) -> None:
        if not hasattr(self, "plain"):
            return
        assert {tenant: self.counters.counter(tenant) for tenant in TENANTS} == {
            tenant: self.plain.counters[tenant] for tenant in TENANTS
        }
        backlogged = sorted(self.plain.backlogged, key=self.plain.counters.__getitem__)
        assert self.counters.in_order() == backlogged
        assert self.counters.first() == next(iter(backlogged), None)


TestCountersOfTenants = CountersOfTenants.TestCase
TestCountersOfTenants.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(
    operations=st.lists(st.tuples(st.integers(0, 9).map(str), st.none() | st.integers(1, 50)), max_size=200),
    remembered=st.integers(0, 4),
)
def test_whoever_is_forgotten_gains_nothing(operations: list[tuple[str, int | None]], remembered: int) -> None:
    counters, plain = TenantCounters(Weights(), remembered), PlainCounters()
    for tenant, service in operations:
        if service is not None:
            counters.charge(tenant, service)
            plain.charge(tenant, service)
        elif tenant in plain.backlogged:
            counters.leave(tenant)
            plain.leave(tenant)
        else:
            counters.join(tenant)
            plain.join(tenant)
        assert len(counters) <= len(plain.backlogged) + remembered
        assert all(counters.counter(one) >= counter for one, counter in plain.counters.items())


def test_an_idle_tenant_saves_up_nothing() -> None:
    counters = TenantCounters(Weights())
    counters.join("busy")
    counters.charge("busy", 1000)
    counters.join("idle so far")
    assert counters.counter("idle so far") == 1000
    assert counters.first() == "busy", "it became backlogged first"


def test_an_idle_tenant_keeps_what_it_owes() -> None:
    counters = TenantCounters(Weights())
    for tenant in ("greedy", "modest"):
        counters.join(tenant)
    counters.charge("greedy", 1000)
    counters.leave("greedy")
    counters.charge("modest", 10)
    counters.join("greedy")
    assert counters.counter("greedy") == 1000


def test_after_a_quiet_time_newcomers_begin_where_the_last_one_left() -> None:
    counters = TenantCounters(Weights())
    counters.join("first")
    counters.leave("first")
    counters.charge("first", 500)  # its last request runs on
    counters.join("second")
    assert counters.counter("second") == 500


def test_levels_are_counted_apart() -> None:
    fairness = Fairness()
    fairness.charge(Level(2), "one", prompt_tokens=5)
    assert fairness.at(Level(2)).counter("one") == 5
    assert fairness.at(Level(3)).counter("one") == 0


def test_output_counts_twice_and_a_weight_divides() -> None:
    fairness = Fairness(Weights({"heavy": 4.0}))
    for tenant in ("heavy", "light"):
        fairness.charge(LEVEL, tenant, prompt_tokens=10)
        fairness.charge(LEVEL, tenant, output_tokens=1)
    assert fairness.at(LEVEL).counter("light") == 12
    assert fairness.at(LEVEL).counter("heavy") == 3


@pytest.mark.parametrize("weight", [0, -1, math.inf, math.nan])
def test_a_weight_that_divides_nothing_is_refused(weight: float) -> None:
    with pytest.raises(ValueError, match="tenant 'one' must be a number greater than 0"):
        Weights({"one": weight})
    with pytest.raises(ValueError, match="other tenants must be a number greater than 0"):
        Weights(default=weight)


def test_those_not_named_have_the_weight_of_others() -> None:
    fairness = Fairness(Weights({"heavy": 4.0}, default=0.5))
    for tenant in ("heavy", "light"):
        fairness.charge(LEVEL, tenant, prompt_tokens=12)
    assert [fairness.at(LEVEL).counter(tenant) for tenant in ("heavy", "light")] == [3, 24]


class Server:
    """Places whose requests can hold `memory` tokens together; counts what each tenant really gets."""

    def __init__(self, places: int, memory: int, *, share: int = 0, weights: Mapping[str, float] | None = None) -> None:
        self.queue = WaitingQueue[Request](
            QueueBounds(10**9, 10**9), retry_after=lambda *_: 1.0, weights=Weights(weights)
        )
        self.differences = Differences(weights or {})
        self.service: defaultdict[str, float] = defaultdict(float)
        self.most_waiting = 30
        self._policy = AdmissionPolicy(share, {})
        self._maker = RequestMaker()
        self._places = places
        self._memory = memory
        self._left: dict[Request, int] = {}
        """The tokens that each running request has yet to get."""
        self._waiting: Counter[str] = Counter()

    @property
    def backlogged(self) -> Collection[str]:
        return (+self._waiting).keys()

    def arrive(self, tenant: str, prompt: int, output: int) -> None:
        if self._waiting[tenant] < self.most_waiting:
            self.queue.requeue(self._maker.make(LEVEL, prompt="x" * prompt, max_tokens=output, tenant=tenant))
            self._waiting[tenant] += 1
            self.differences.look(self)

    def step(self) -> None:
        """Admit whom there is room for, and give each running request a token."""
        while len(self._left) < self._places:
            choice = self._policy.choose(self.queue, self._places - len(self._left), {})
            if choice is None or choice.request.cells > self._memory - sum(one.cells for one in self._left):
                break
            self._policy.admitted(choice)
            self._admit(choice.request)
        for request in list(self._left):
            self._charge(request.tenant, output_tokens=1)
            self._left[request] -= 1
            if not self._left[request]:
                del self._left[request]

    def _admit(self, request: Request) -> None:
        self.queue.remove(request)
        self._waiting[request.tenant] -= 1
        self._left[request] = request.max_tokens
        self._charge(request.tenant, prompt_tokens=request.prompt_tokens)

    def _charge(self, tenant: str, *, prompt_tokens: int = 0, output_tokens: int = 0) -> None:
        self.queue.fairness.charge(LEVEL, tenant, prompt_tokens=prompt_tokens, output_tokens=output_tokens)
        self.service[tenant] += PROMPT_WEIGHT * prompt_tokens + OUTPUT_WEIGHT * output_tokens
        self.differences.look(self)


class Differences:
    """How far the services of any two tenants have drifted apart in a time in which both were backlogged throughout."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self.worst = 0.0
        self._weights = weights
        self._ranges: dict[tuple[str, str], tuple[float, float]] = {}

    def look(self, server: Server) -> None:
        for pair in itertools.combinations(TENANTS, 2):
            if not all(tenant in server.backlogged for tenant in pair):
                self._ranges.pop(pair, None)
                continue
            one, other = (server.service[tenant] / self._weights.get(tenant, 1.0) for tenant in pair)
            low, high = self._ranges.get(pair, (math.inf, -math.inf))
            low, high = min(low, one - other), max(high, one - other)
            self._ranges[pair] = (low, high)
            self.worst = max(self.worst, high - low)


habits = st.lists(
    st.tuples(st.floats(0.05, 5), st.integers(1, 20), st.integers(1, 20)),
    min_size=len(TENANTS),
    max_size=len(TENANTS),
)
"""For each tenant: requests in a step, and the longest prompt and output."""


@given(
    places=st.integers(1, 6),
    more_memory=st.integers(0, 200),
    habits=habits,
    weights=st.sampled_from([{}, WEIGHTS]),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=40, deadline=None)
def test_backlogged_tenants_drift_apart_no_further_than_the_bound(
    places: int,
    more_memory: int,
    habits: list[tuple[float, int, int]],
    weights: Mapping[str, float],
    seed: int,
) -> None:
    chance = random.Random(seed)
    longest_prompt = max(prompt for _, prompt, _ in habits)
    memory = longest_prompt + max(output for _, _, output in habits) + more_memory
    server = Server(places, memory, weights=weights)
    for _ in range(200):
        for tenant, (rate, prompt, output) in zip(TENANTS, habits, strict=True):
            for _ in range(int(rate) + (chance.random() < rate % 1)):
                server.arrive(tenant, chance.randint(1, prompt), chance.randint(1, output))
        server.step()
    smallest_weight = min([1.0, *weights.values()])
    bound = 2 * max(PROMPT_WEIGHT * longest_prompt, OUTPUT_WEIGHT * memory) / smallest_weight
    assert server.differences.worst <= bound + 1e-6


@pytest.mark.parametrize("share", [0, 10])
def test_a_tenant_that_sends_twenty_times_as_much_gets_no_more(share: int) -> None:
    server = Server(places=4, memory=10**6, share=share)
    server.most_waiting = 10**6
    for _ in range(300):
        for _ in range(20):
            server.arrive("one", prompt=8, output=12)
        server.arrive("two", prompt=8, output=12)
        server.step()
    assert server.backlogged == {"one", "two"}
    assert jain_index([server.service["one"], server.service["two"]]) >= 0.95


def test_a_tenant_of_three_times_the_weight_gets_three_times_as_much() -> None:
    server = Server(places=4, memory=10**6, weights={"one": 3.0})
    for _ in range(1000):
        for tenant in ("one", "two"):
            server.arrive(tenant, prompt=8, output=12)
        server.step()
    assert server.service["one"] == pytest.approx(3 * server.service["two"], rel=0.05)


def jain_index(shares: Collection[float]) -> float:
    """1 when all are equal, 1 / n when one of n has everything."""
    return sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares))

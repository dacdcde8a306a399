"""What docs/scheduling.md promises: who goes before whom, and how long anybody can have to wait.

Every admission is compared with an oracle that works out all priorities, counters and shares anew.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from llamalane.clock import VirtualClock
from llamalane.ids import LEAST_URGENT, Level
from llamalane.scheduler.admission import AdmissionPolicy, Choice
from llamalane.scheduler.fairness import OUTPUT_WEIGHT, PROMPT_WEIGHT, Weights
from llamalane.scheduler.priority import LEVELS, Aging
from llamalane.scheduler.queue import QueueBounds, WaitingQueue
from llamalane.scheduler.request import Request
from tests.scheduler.building import RequestMaker
from tests.scheduler.oracle import INTERVAL, Oracle

TENANTS = ("one", "two", "three")
WEIGHTS = {"two": 2.0}

Reserve = dict[Level, int]
reserves = st.dictionaries(st.sampled_from(LEVELS), st.integers(0, 2), max_size=3)


class Server:
    """Places, a queue and a policy on a virtual clock, and the oracle that knows better.

    At least one place is open to every level.
    """

    def __init__(self, share: int, reserve: Reserve, open_places: int = 1, ceiling: int = 3) -> None:
        aging = Aging(ceiling, INTERVAL)
        self.clock = VirtualClock()
        self.maker = RequestMaker(aging)
        self.queue = WaitingQueue[Request](QueueBounds(10**9, 10**9), lambda *_: 1.0, Weights(WEIGHTS))
        self.policy = AdmissionPolicy(share, reserve)
        self.oracle = Oracle(aging, WEIGHTS)
        self.running: list[Request] = []
        self.admissions: list[Choice[Request]] = []
        self._share = share
        self._reserve = reserve
        self.places = open_places + sum(reserve.values())
        self._seen: Counter[Request] = Counter()
        self._older: dict[Request, set[tuple[Request, int]]] = {}
        self._sheltered: Counter[Request] = Counter()
        """How often each request was admitted by share."""

    def arrive(self, level: Level, tenant: str = "", length: int = 1) -> Request:
        request = self.maker.make(level, self.clock.now(), prompt="x" * length, tenant=tenant)
        self.wait(request)
        return request

    def wait(self, request: Request) -> None:
        """Let a request wait, for the first time or again."""
        self.queue.requeue(request)
        self.oracle.arrive(request)
        self._seen[request] = 0
        waiting = self.oracle.waiting
        self._older[request] = {(one, self._sheltered[one]) for one in waiting if one.order < request.order}
        for other in waiting:
            if other.order > request.order:
                self._older[other].add((request, self._sheltered[request]))

    def give_up(self, request: Request) -> None:
        self.queue.remove(request)
        self.oracle.leave(request)

    def work(self) -> None:
        """Give each running request a token."""
        for request in self.running:
            self.queue.fairness.charge(request.level, request.tenant, output_tokens=1)
            self.oracle.counters[request.level].charge(request.tenant, OUTPUT_WEIGHT)

    def admit(self) -> None:
        """Admit everybody who may take a free place."""
        while (open_to := self._open_to()) is not None:
            running = Counter(request.level for request in self.running)
            choice = self.policy.choose(self.queue, self.places - len(self.running), running)
            if choice is None:
                assert not any(request.level <= open_to for request in self.oracle.waiting), "a place is left empty"
                return
            assert choice == self._expected(open_to)
            self._check_overtaking(choice)
            self._seen.update(request for request in self.oracle.waiting if request.level <= open_to)
            self._take(choice)
            self._check_bound(choice)

    def displace(self) -> None:
        """Let the most urgent request have the place of the least urgent one, if that was submitted at a worse level.

        Nobody else could have taken the place, so this does not count for the bound.
        """
        choice = self.policy.most_urgent(self.queue)
        if choice is None:
            assert not self.oracle.waiting
            return
        assert choice.request is self.oracle.next(self.clock.now())
        victims = [one for one in self.running if one.level > choice.request.level and not self._sheltered[one]]
        if victims:
            victim = max(victims, key=lambda one: one.level)
            self.running.remove(victim)
            self._take(choice)
            self.wait(victim)

    def drain(self) -> None:
        """Let running requests end one by one until nobody waits."""
        self.admit()
        while self.oracle.waiting:
            assert self.running, "all places are free, and somebody waits"
            self.running.pop(0)
            self.admit()
        assert not len(self.queue)

    def _take(self, choice: Choice[Request]) -> None:
        request = choice.request
        self.policy.admitted(choice)
        self.queue.remove(request)
        self.queue.fairness.charge(request.level, request.tenant, prompt_tokens=request.prompt_tokens)
        self.oracle.leave(request)
        self.oracle.counters[request.level].charge(request.tenant, PROMPT_WEIGHT * request.prompt_tokens)
        self.running.append(request)
        self._sheltered[request] += choice.by_share
        self.admissions.append(choice)

    def _open_to(self) -> Level | None:
        """The least urgent level that leaves the reserved places of all better levels free, tried one by one."""

        def promised(bound: int) -> int:
            return sum(count for level, count in self._reserve.items() if level <= bound)

        left = self.places - len(self.running) - 1
        return max(
            (
                level
                for level in LEVELS
                if all(
                    left >= max(0, promised(bound) - sum(one.level <= bound for one in self.running))
                    for bound in range(level)
                )
            ),
            default=None,
        )

    def _expected(self, open_to: Level) -> Choice[Request]:
        waiting = {request.level for request in self.oracle.waiting if request.level <= open_to}
        if any(self._share_is_due(level) for level in waiting):
            return Choice(self.oracle.oldest(open_to), by_share=True, open_to=open_to)
        return Choice(self.oracle.next(self.clock.now(), open_to), by_share=False, open_to=open_to)

    def _share_is_due(self, level: Level) -> bool:
        """Whether none of a level's last admissions was by share, as many as may be without."""
        might = [choice.by_share for choice in self.admissions if choice.open_to >= level]
        return self._share > 0 and len(might) >= self._share - 1 and not any(might[len(might) - self._share + 1 :])

    def _check_overtaking(self, choice: Choice[Request]) -> None:
        """Nobody goes before an older request but for the reasons that are written down."""
        admitted, now = choice.request, self.clock.now()
        mates = [one for one in self.oracle.waiting if one.level == admitted.level]
        for other in self.oracle.waiting:
            if other.order >= admitted.order or other.level > choice.open_to:
                continue
            assert not choice.by_share
            if other.level == admitted.level:
                assert other.tenant != admitted.tenant, "requests of one tenant and level are first come, first served"
                counters = self.oracle.counters[other.level].counters
                assert counters[admitted.tenant] <= counters[other.tenant]
            else:  # the two differ only if it is another tenant's turn
                assert any(self.oracle.urgency(mate, now) < self.oracle.urgency(other, now) for mate in mates)

    def _check_bound(self, choice: Choice[Request]) -> None:
        """A request sees no more than share × (r + 1) admissions to free places that it might have taken.

        r counts each older request that waits meanwhile, and once more when one comes back that was sheltered.
        """
        if self._share:
            for request in [*self.oracle.waiting, choice.request]:
                assert self._seen[request] <= self._share * (len(self._older[request]) + 1)


class Bounds(RuleBasedStateMachine):
    """Requests of several tenants come, run, end, give up, displace others and come back, in any order."""

    @initialize(
        share=st.integers(0, 5), reserve=reserves, open_places=st.integers(1, 3), ceiling=st.sampled_from(LEVELS)
    )
    def begin(self, share: int, reserve: Reserve, open_places: int, ceiling: int) -> None:
        self.server = Server(share, reserve, open_places, ceiling)

    @rule(
        levels=st.lists(st.sampled_from(LEVELS), max_size=4), tenant=st.sampled_from(TENANTS), length=st.integers(1, 9)
    )
    def arrive(self, levels: list[Level], tenant: str, length: int) -> None:
        for level in levels:
            self.server.arrive(level, tenant, length)

    @rule()
    def admit(self) -> None:
        self.server.admit()

    @rule()
    def displace(self) -> None:
        self.server.displace()

    @rule(seconds=st.integers(1, 2 * INTERVAL))
    def time_passes(self, seconds: int) -> None:
        self.server.clock.advance(seconds)
        self.server.work()

    @precondition(lambda self: self.server.running)
    @rule(data=st.data(), comes_back=st.booleans())
    def leave_a_place(self, data: st.DataObject, comes_back: bool) -> None:
        request = data.draw(st.sampled_from(self.server.running))
        self.server.running.remove(request)
        if comes_back:
            self.server.wait(request)

    @precondition(lambda self: self.server.oracle.waiting)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        self.server.give_up(data.draw(st.sampled_from(self.server.oracle.waiting)))

    def teardown(self) -> None:
        if hasattr(self, "server"):
            self.server.drain()


TestBounds = Bounds.TestCase
TestBounds.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


arrivals = st.lists(st.tuples(st.sampled_from(LEVELS), st.sampled_from((*TENANTS, "new"))), min_size=1, max_size=4)


@given(
    share=st.integers(1, 5),
    reserve=reserves,
    level=st.sampled_from(LEVELS),
    pattern=st.lists(arrivals, min_size=1, max_size=4),
)
@settings(deadline=None)
def test_under_endless_arrivals_everybody_is_admitted_within_the_bound(
    share: int, reserve: Reserve, level: Level, pattern: Sequence[Sequence[tuple[Level, str]]]
) -> None:
    """More arrive than can be served, for ever, some of them from tenants that were never seen before."""
    server = Server(share, reserve)
    older = [server.arrive(Level(number % 5 + 1), "three") for number in range(3)]
    request = server.arrive(level, "one")
    # What runs is replaced within as many rounds as there are places, and after four times that a place is open.
    rounds = share * (len(older) + 1) * (4 * server.places + 1)
    for number, arriving in enumerate(itertools.islice(itertools.cycle(pattern), rounds)):
        for other, tenant in arriving:
            server.arrive(other, f"new {number}" if tenant == "new" else tenant)
        server.clock.advance(1)
        server.work()
        server.admit()
        if request.id not in server.queue:
            return
        server.running.pop(0)
    raise AssertionError("still waiting")


@given(level=st.integers(3, 5), later=st.lists(st.tuples(st.integers(3, 5), st.integers(0, 9)), max_size=30))
def test_at_the_ceiling_nobody_is_overtaken_by_a_later_arrival_of_an_aging_level(
    level: int, later: list[tuple[int, int]]
) -> None:
    """That takes one interval for each level below the ceiling, and needs no guaranteed share."""
    server = Server(share=0, reserve={})
    server.running.append(server.maker.make(1))
    request = server.arrive(Level(level))
    server.clock.advance((level - 3) * INTERVAL)
    for other, seconds in later:
        server.arrive(Level(other))
        server.clock.advance(seconds)
    server.running.clear()
    server.admit()
    assert server.running == [request]


def test_without_a_share_there_is_no_bound() -> None:
    """Requests of a strict level can go first for ever, and so can those of ever new tenants."""
    for level, tenant in ((Level(2), "one"), (LEAST_URGENT, "new {}")):
        server = Server(share=0, reserve={})
        server.queue.fairness.charge(LEAST_URGENT, "one", prompt_tokens=1)
        server.oracle.counters[LEAST_URGENT].charge("one", 1)
        server.arrive(level, tenant.format("first"))
        request = server.arrive(LEAST_URGENT, "one")
        for number in range(100):
            server.arrive(level, tenant.format(number))
            server.admit()
            server.running.clear()
        assert request.id in server.queue

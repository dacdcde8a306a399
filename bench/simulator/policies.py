"""Who waits for how long: llamalane's rules, from production's own code, and those of others beside them."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from llamalane.bench.simulator.request import SimulatedRequest, seconds
from llamalane.bench.simulator.row import Row
from llamalane.errors import QueueFullError
from llamalane.ids import LEAST_URGENT, MOST_URGENT, Level
from llamalane.scheduler.admission import Choice
from llamalane.scheduler.growth import GrowthPredictor
from llamalane.scheduler.queue import WaitingQueue
from llamalane.scheduler.rules import Rules

Candidate: TypeAlias = Choice[SimulatedRequest]
"""A request that waits and would be next."""
Loss = Callable[[Row], float]
"""What parking a row would cost."""


class Policy(ABC):
    """Keeps the requests that wait, and says who is next."""

    displaces = False
    """Whether a running request may have to give way to a waiting one."""
    abort_after: float | None = None
    """A step is broken off for a more urgent request that would wait longer than so many seconds for its end."""

    def __init__(self, growth: GrowthPredictor | None = None) -> None:
        self.growth = growth or GrowthPredictor()
        """How long outputs have been, by which a lane is chosen."""

    @abstractmethod
    def __len__(self) -> int:
        """Return how many requests wait."""

    @abstractmethod
    def add(self, request: SimulatedRequest) -> list[SimulatedRequest]:
        """Let a request wait, and give it its `key` and its `rank`.

        Returns whom there is no room for: nobody, or the request itself, or others that are turned out for it.
        """

    @abstractmethod
    def choose(self, free: int, running: Mapping[Level, int]) -> Candidate | None:
        """Return who should get one of `free` places, None for nobody."""

    @abstractmethod
    def admit(self, candidate: Candidate) -> None:
        """Take a candidate out: it has got a place."""

    def most_urgent(self) -> Candidate | None:
        """Return the waiting request for which others may have to give way, None for nobody."""
        return None

    def victims(self, level: Level, rows: Sequence[Row], loss: Loss) -> list[Row]:
        """Return which of `rows` may have to give way to a request of `level`, in the order in which they should."""
        return []

    def requeue(self, request: SimulatedRequest) -> None:
        """Let a request that was parked wait again, where it stood before."""
        raise NotImplementedError("nobody has to give way under this policy")

    def charge(  # noqa: B027  (only fair policies want to know)
        self, request: SimulatedRequest, *, prompt_tokens: int = 0, output_tokens: int = 0
    ) -> None:
        """Take note of what a request has got."""


class Ours(Policy):
    """llamalane's: levels with aging, the guaranteed share, reserved places, displacement, fairness among tenants.

    The rules learn from one run, so each run needs its own.
    """

    def __init__(self, rules: Rules) -> None:
        super().__init__(rules.growth)
        self.displaces = True
        self.abort_after = rules.abort_after
        self._rules = rules
        self._queue = WaitingQueue[SimulatedRequest](
            rules.bounds,
            retry_after=lambda *_: 0.0,
            weights=rules.weights,
            may_shed=lambda request: request.admitted is None,
        )
        self._tenant: str | None = None
        self._several_tenants = False

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, request: SimulatedRequest) -> list[SimulatedRequest]:
        """Let a request wait at its level, aging from now on."""
        request.key = self._rules.aging.key(request.level, seconds(request.arrival))
        request.rank = request.level
        if self._tenant is None:
            self._tenant = request.tenant
        self._several_tenants |= request.tenant != self._tenant
        try:
            with self._queue.reserve_nowait(request.level) as slot:
                shed = slot.fill(request)
        except QueueFullError:
            return [request]
        for other in shed:
            self._queue.remove(other)
        return shed

    def choose(self, free: int, running: Mapping[Level, int]) -> Candidate | None:
        """Return whom the admission policy chooses."""
        return self._rules.admission.choose(self._queue, free, running)

    def most_urgent(self) -> Candidate | None:
        """Return the most urgent request that waits."""
        return self._rules.admission.most_urgent(self._queue)

    def admit(self, candidate: Candidate) -> None:
        """Take a request out of the queue; one that its share has admitted is sheltered from now on."""
        self._rules.admission.admitted(candidate)
        self._queue.remove(candidate.request)
        candidate.request.sheltered |= candidate.by_share

    def victims(self, level: Level, rows: Sequence[Row], loss: Loss) -> list[Row]:
        """Return whom the displacement policy chooses."""
        return self._rules.displacement.victims(level, rows, loss)

    def requeue(self, request: SimulatedRequest) -> None:
        """Let a parked request wait with its old key."""
        self._queue.requeue(request)

    def charge(self, request: SimulatedRequest, *, prompt_tokens: int = 0, output_tokens: int = 0) -> None:
        """Count the tokens for the request's tenant. As long as there is only one, nothing can come of that."""
        if self._several_tenants:
            self._queue.fairness.charge(
                request.level, request.tenant, prompt_tokens=prompt_tokens, output_tokens=output_tokens
            )


class Sorted(Policy):
    """One queue, in the order of a key that never changes; equal keys are first come, first served."""

    def __init__(self, key: Callable[[SimulatedRequest], tuple[int, float]], *, max_requests: int) -> None:
        super().__init__()
        self._key = key
        self._max_requests = max_requests
        self._heap: list[tuple[tuple[int, float], int, SimulatedRequest]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, request: SimulatedRequest) -> list[SimulatedRequest]:
        """Let a request wait in its order."""
        if len(self) >= self._max_requests:
            return [request]
        request.key = self._key(request)
        request.rank = MOST_URGENT
        heapq.heappush(self._heap, (request.key, request.order, request))
        return []

    def choose(self, free: int, running: Mapping[Level, int]) -> Candidate | None:
        """Return the request with the smallest key."""
        return _candidate(self._heap[0][2]) if self._heap and free else None

    def admit(self, candidate: Candidate) -> None:
        """Take out the request with the smallest key."""
        heapq.heappop(self._heap)


class RoundRobin(Policy):
    """A queue for each tenant; the tenants take turns, whatever each turn costs."""

    def __init__(self, *, max_requests: int) -> None:
        super().__init__()
        self._max_requests = max_requests
        self._tenants: OrderedDict[str, deque[SimulatedRequest]] = OrderedDict()
        self._waiting = 0
        self._turns = 0

    def __len__(self) -> int:
        return self._waiting

    def add(self, request: SimulatedRequest) -> list[SimulatedRequest]:
        """Let a request wait behind the others of its tenant."""
        if self._waiting >= self._max_requests:
            return [request]
        request.rank = MOST_URGENT
        self._tenants.setdefault(request.tenant, deque()).append(request)
        self._waiting += 1
        return []

    def choose(self, free: int, running: Mapping[Level, int]) -> Candidate | None:
        """Return the oldest request of the tenant whose turn it is."""
        return _candidate(next(iter(self._tenants.values()))[0]) if self._tenants and free else None

    def admit(self, candidate: Candidate) -> None:
        """Take that request out, and give the turn to the next tenant."""
        tenant, queue = self._tenants.popitem(last=False)
        queue.popleft()
        if queue:
            self._tenants[tenant] = queue
        self._waiting -= 1
        self._turns += 1
        candidate.request.key = (0, self._turns)


def _candidate(request: SimulatedRequest) -> Candidate:
    return Choice(request, by_share=False, open_to=LEAST_URGENT)


def first_come(request: SimulatedRequest) -> tuple[int, float]:
    """The key of llama-server's queue: whoever came first."""
    return 0, seconds(request.arrival)


def by_level(request: SimulatedRequest) -> tuple[int, float]:
    """The key of vLLM's priority queue: the level, then whoever came first, however long anybody has waited."""
    return request.level, seconds(request.arrival)


def shortest(request: SimulatedRequest) -> tuple[int, float]:
    """The key of an oracle that knows how long each output will be: the fewest tokens first."""
    return 0, request.prompt_tokens + request.output_tokens

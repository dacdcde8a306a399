"""What the waiting queue costs, by how many requests wait."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from llamalane.bench.summary import Distribution
from llamalane.ids import Level, RequestId
from llamalane.scheduler.admission import AdmissionPolicy
from llamalane.scheduler.priority import LEVELS, Aging
from llamalane.scheduler.queue import QueueBounds, WaitingQueue

SIZES = (1_000, 10_000, 100_000, 1_000_000)
TENANTS = (1, 10_000)
OPERATIONS = 5_000
_PROMPT_TOKENS = 100


@dataclass(slots=True, eq=False)
class LightRequest:
    """What the queue has to know of a request, and nothing else."""

    id: RequestId
    key: tuple[int, float]
    order: int
    level: Level
    tenant: str
    prompt_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueCosts:
    """Seconds that the operations of a queue take while `waiting` requests of `tenants` tenants wait.

    Attributes:
        push: a request arrives.
        pop: the policy chooses whom to admit; the request leaves and its tenant is charged.
        remove: a request is found by its id and leaves, from anywhere.
        collection: seconds that one full run of Python's garbage collector takes, with the whole queue alive.
    """

    waiting: int
    tenants: int
    push: Distribution
    pop: Distribution
    remove: Distribution
    collection: float


def measure_queue(
    sizes: Sequence[int] = SIZES,
    tenants: Sequence[int] = TENANTS,
    *,
    operations: int = OPERATIONS,
    seed: int = 1,
    tell: Callable[[QueueCosts], None] = lambda costs: None,
) -> list[QueueCosts]:
    """Measure queues of the given sizes, for each number of tenants, telling each result as soon as it is there.

    Requests of all levels and tenants arrive at random, drawn from `seed`. Each operation is timed by itself,
    `operations` times, and undone or repeated so that the size stays the same. The garbage collector does not run
    meanwhile: how often it would depends on everything else that the process allocates. What one run costs is
    measured apart.
    """
    costs = []
    for count in tenants:
        for size in sizes:
            costs.append(_measure(size, count, operations, seed))
            tell(costs[-1])
    return costs


def queue_markdown(costs: Sequence[QueueCosts]) -> str:
    """Return the costs as a table, beside those of the smallest queue with as many tenants."""
    lines = [
        "| tenants | waiting | push, µs | pop, µs | remove by id, µs | full collection, ms |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for cost in costs:
        smallest = min((one for one in costs if one.tenants == cost.tenants), key=lambda one: one.waiting)
        cells = [
            f"{cost.tenants:,}",
            f"{cost.waiting:,}",
            _cell(cost.push, smallest.push),
            _cell(cost.pop, smallest.pop),
            _cell(cost.remove, smallest.remove),
            f"{cost.collection * 1e3:.0f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    lines += [
        "",
        "Each operation: median, (99th percentile), and the median as a multiple of the smallest queue's. Python's "
        "garbage collector was off meanwhile; the last column is what one full run of it takes.",
    ]
    return "\n".join(lines)


def _measure(size: int, tenants: int, operations: int, seed: int) -> QueueCosts:
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        workbench = _Workbench(tenants, seed)
        for _ in range(size):
            workbench.push()
        gc.collect()  # what earlier measurements left
        collection = _seconds(gc.collect)
        for _ in range(operations // 10):  # the first ones find cold caches
            workbench.push()
            workbench.pop()
        pushes, pops, removals = [], [], []
        for _ in range(operations):
            pushes.append(workbench.push())
            pops.append(workbench.pop())
        for request in workbench.sample(operations):
            removals.append(workbench.remove(request))
            workbench.push()
    finally:
        if was_enabled:
            gc.enable()
    push, pop, remove = map(_distribution, (pushes, pops, removals))
    return QueueCosts(waiting=size, tenants=tenants, push=push, pop=pop, remove=remove, collection=collection)


class _Workbench:
    """A queue, and requests that arrive in it one by one. Each operation returns the seconds that it took."""

    def __init__(self, tenants: int, seed: int) -> None:
        self._queue = WaitingQueue[LightRequest](QueueBounds(10**9, 10**12), retry_after=lambda *_: 0.0)
        self._policy = AdmissionPolicy(share=10, reserve={})
        self._random = random.Random(seed)
        self._arrivals = self._arrive(tenants)

    def push(self) -> float:
        request = next(self._arrivals)
        with self._queue.reserve_nowait(request.level) as slot:
            return _seconds(lambda: slot.fill(request))

    def pop(self) -> float:
        return _seconds(self._admit)

    def remove(self, request: RequestId) -> float:
        return _seconds(lambda: self._drop(request))

    def sample(self, count: int) -> list[RequestId]:
        """Choose `count` waiting requests, or all if there are fewer."""
        waiting = [request.id for request in self._queue]
        return self._random.sample(waiting, min(count, len(waiting)))

    def _arrive(self, tenants: int) -> Iterator[LightRequest]:
        aging = Aging(ceiling=3, interval=30.0)
        names = [f"tenant-{number}" for number in range(tenants)]
        order = 0
        while True:
            order += 1
            level = self._random.choice(LEVELS)
            key = aging.key(level, order / 1000)
            tenant = self._random.choice(names)
            yield LightRequest(RequestId(f"request-{order}"), key, order, level, tenant, _PROMPT_TOKENS)

    def _admit(self) -> None:
        choice = self._policy.choose(self._queue, free=1, running={})
        assert choice is not None
        request = choice.request
        self._policy.admitted(choice)
        self._queue.remove(request)
        self._queue.fairness.charge(request.level, request.tenant, prompt_tokens=request.prompt_tokens)

    def _drop(self, request: RequestId) -> None:
        waiting = self._queue.get(request)
        assert waiting is not None
        self._queue.remove(waiting)


def _cell(cost: Distribution, smallest: Distribution) -> str:
    return f"{cost.median * 1e6:.1f} ({cost.p99 * 1e6:.1f}) {cost.median / smallest.median:.1f}×"


def _distribution(seconds: list[float]) -> Distribution:
    distribution = Distribution.of(seconds)
    assert distribution is not None, "at least one operation is measured"
    return distribution


def _seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start

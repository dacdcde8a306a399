"""What two tenants of one level get, one of which asks twenty times as much."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import anyio

from llamalane.bench.promises.asking import sampling_for
from llamalane.bench.promises.urgency import BACKGROUND, SETTLE
from llamalane.bench.promises.watching import WatchedEngine
from llamalane.scheduler import Event, EventKind
from llamalane.scheduler.fairness import OUTPUT_WEIGHT, PROMPT_WEIGHT
from llamalane.streams import StepReport

MANY, FEW = "many", "few"
TIMES = 20
CLIENTS = 10
"""Clients of the tenant that asks little: with 8 places some of them always wait, though it got every place."""
LEVEL = 3
FAIR = 0.95
"""The least that Jain's index may be."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Whose request it is, and the length of its prompt."""

    tenant: str
    prompt_tokens: int


@dataclass(slots=True)
class Shares:
    """What the tenants were served while both had requests waiting.

    Attributes:
        seconds: how long that was.
        service: prompt tokens plus twice the output tokens, of each.
        largest: the largest difference between the two at any time.
        bound: the most that it may be, by docs/scheduling.md.
    """

    seconds: float = 0.0
    service: Counter[str] = field(default_factory=Counter)
    largest: int = 0
    bound: float = 0.0

    @property
    def index(self) -> float:
        """Jain's index of fairness: 1 for equal shares, 0.5 where one of two gets everything."""
        many, few = self.service[MANY], self.service[FEW]
        return (many + few) ** 2 / (2 * (many**2 + few**2))


async def measure_tenants(engine: WatchedEngine, *, seconds: float, seed: int) -> Shares:
    """Let both tenants ask in a closed loop for so many seconds."""
    asked: dict[str, Asked] = {}

    async def client(tenant: str, number: int) -> None:
        for question in BACKGROUND.questions(seed, number):
            sampling = sampling_for(question)
            handle = await engine.submit(question.prompt, priority=LEVEL, sampling=sampling, tenant=tenant)
            asked[handle.id] = Asked(tenant, handle.prompt_tokens)
            try:
                await handle
            finally:
                handle.cancel()

    async with anyio.create_task_group() as group:
        for number in range(TIMES * CLIENTS):
            group.start_soon(client, MANY, number)
        for number in range(CLIENTS):
            group.start_soon(client, FEW, -1 - number)
        await anyio.sleep(SETTLE + seconds)
        group.cancel_scope.cancel()
    shares = shares_of(asked, engine.events, engine.reports)
    longest = max(one.prompt_tokens for one in asked.values())
    together = engine.stats().places * (longest + BACKGROUND.output_tokens.high)
    shares.bound = 2 * max(PROMPT_WEIGHT * longest, OUTPUT_WEIGHT * together)
    return shares


def shares_of(asked: Mapping[str, Asked], events: Iterable[Event], reports: Iterable[StepReport]) -> Shares:
    """Add up what tenants were served while both had requests waiting."""
    shares, waiting = Shares(), set[str]()
    counts: Counter[str] = Counter()
    before: float | None = None
    for time, news in _in_order(events, reports):
        if counts[MANY] and counts[FEW]:
            shares.seconds += time - before if before is not None else 0.0
            if isinstance(news, StepReport):
                for output in news.outputs:
                    shares.service[asked[output.request].tenant] += round(OUTPUT_WEIGHT)
            elif news.kind is EventKind.ADMITTED:
                one = asked[news.request]
                shares.service[one.tenant] += round(PROMPT_WEIGHT) * one.prompt_tokens
            shares.largest = max(shares.largest, abs(shares.service[MANY] - shares.service[FEW]))
        before = time
        if isinstance(news, Event):
            _follow(news, waiting)
            counts = Counter(asked[request].tenant for request in waiting)
    return shares


def _follow(event: Event, waiting: set[str]) -> None:
    match event.kind:
        case EventKind.ACCEPTED | EventKind.PARKED | EventKind.REQUEUED:
            waiting.add(event.request)
        case EventKind.ADMITTED | EventKind.ENDED:
            waiting.discard(event.request)
        case _:
            pass


def _in_order(events: Iterable[Event], reports: Iterable[StepReport]) -> Iterator[tuple[float, Event | StepReport]]:
    """Go through what happened by its time: of a step, that of its end."""
    news: list[tuple[float, Event | StepReport]] = [
        (event.time, event) for event in events if event.kind is not EventKind.STEP
    ]
    for report in reports:
        if report.times is not None:
            news.append((report.times.begin + report.times.decode + report.times.sample, report))
    yield from sorted(news, key=lambda pair: pair[0])

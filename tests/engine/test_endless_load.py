"""Urgent requests, or another tenant's, that never stop coming: everybody is served all the same."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

import anyio
import pytest

from llamalane.bench.promises.waits import SHARE, wait_of
from llamalane.ids import RequestId
from llamalane.scheduler import Event, EventKind, RequestHandle, RequestState, TenantConfig
from llamalane.scheduler.fairness import OUTPUT_WEIGHT, PROMPT_WEIGHT
from llamalane.scheduler.request import Request
from tests.engine.conftest import MakeEngine
from tests.engine.running import Follower, WatchedEngine, greedy

pytestmark = pytest.mark.anyio


def steps_of(request: str, events: list[Event]) -> int:
    """Return in how many steps a request came to its end, from the first one that it had a part in."""
    kinds = [(event.kind, event.request) for event in events]
    start, end = kinds.index((EventKind.STARTED, request)), kinds.index((EventKind.ENDED, request))
    return 1 + sum(kind is EventKind.STEP for kind, _ in kinds[start:end])


async def keep_asking(engine: WatchedEngine, client: int, prompt: int, tokens: int) -> None:
    """Ask urgently without end, each time with a new prompt of so many tokens."""
    number = 0
    while True:
        number += 1
        tenant = f"{client}/{number}"
        await engine.generate([5 + client] * prompt, sampling=greedy(tokens), priority="interactive", tenant=tenant)


async def test_a_batch_request_gets_its_turn_however_many_urgent_ones_wait(make_engine: MakeEngine) -> None:
    follower = Follower()
    tokens = 20
    async with make_engine(places=2, observer=follower) as engine, anyio.create_task_group() as urgent:
        for client in range(8):
            urgent.start_soon(keep_asking, engine, client, 6, 4)
        await follower.wait_for(EventKind.ADMITTED, times=4)
        batch = [await engine.submit("batch", sampling=greedy(tokens), priority="batch") for _ in range(3)]
        for handle in batch:
            assert len((await handle).tokens) == tokens
        urgent.cancel_scope.cancel()
    for handle in batch:
        wait = wait_of(handle.id, follower.events)
        assert wait.fewest >= 2, "there was no other request to be admitted in its place"
        assert wait.admissions <= wait.bound
        assert follower.count(EventKind.PARKED, handle.id) == 0
        assert steps_of(handle.id, follower.events) <= 2 * tokens


async def test_a_batch_prompt_is_computed_however_many_urgent_prompts_there_are(make_engine: MakeEngine) -> None:
    follower = Follower()
    prompt, chunk, tokens = 200, 64, 2
    async with (
        make_engine(places=4, max_step_tokens=chunk, observer=follower) as engine,
        anyio.create_task_group() as urgent,
    ):
        for client in range(9):
            urgent.start_soon(keep_asking, engine, client, prompt, 1)
        await follower.wait_for(EventKind.ADMITTED, times=8)
        batch = await engine.submit([4] * prompt, sampling=greedy(tokens), priority="batch")
        await follower.wait_for(EventKind.ADMITTED, batch.id)
        needed = math.ceil(prompt / chunk) + tokens - 1
        under_way = 1
        await follower.wait_for(EventKind.STEP, times=follower.count(EventKind.STEP) + under_way + 2 * needed)
        assert batch.state is RequestState.DONE
        urgent.cancel_scope.cancel()
    assert steps_of(batch.id, follower.events) <= 2 * needed


@dataclass
class Books:
    """An observer that keeps what two tenants were served, while both have requests waiting.

    Tenants are told apart by the beginnings of their requests' ids.
    """

    tenants: tuple[str, str]
    weights: tuple[float, float]
    handles: dict[str, RequestHandle] = field(default_factory=dict)
    waiting: Counter[str] = field(default_factory=Counter)
    largest: float = 0.0
    """The largest difference between what the two were served, each divided by its weight."""
    served: tuple[float, float] = (0.0, 0.0)

    def __call__(self, event: Event) -> None:
        tenant = event.request.partition(" ")[0]
        if event.kind is EventKind.ACCEPTED:
            self.waiting[tenant] += 1
        elif event.kind is EventKind.ADMITTED:
            self.waiting[tenant] -= 1
        if all(self.waiting[tenant] for tenant in self.tenants):
            first, second = (self._service(tenant) for tenant in self.tenants)
            self.served = first, second
            difference = abs(first / self.weights[0] - second / self.weights[1])
            self.largest = max(self.largest, difference)

    def by_share(self) -> float:
        """Return the most service that admissions by age gave to either tenant beyond its turns."""
        return sum(_service(handle._request) for handle in self.handles.values() if handle._request.sheltered)

    def _service(self, tenant: str) -> float:
        return sum(_service(handle._request) for id, handle in self.handles.items() if id.startswith(tenant))


def _service(request: Request) -> float:
    prompt = PROMPT_WEIGHT * request.prompt_tokens if request.admitted_at is not None else 0.0
    return prompt + OUTPUT_WEIGHT * len(request.generated)


@pytest.mark.parametrize("share", [0, SHARE])
@pytest.mark.parametrize("weight", [1.0, 3.0])
async def test_two_tenants_get_as_much_though_one_asks_twenty_times_as_often(
    make_engine: MakeEngine, weight: float, share: int
) -> None:
    places, prompt, tokens, count = 4, 10, 16, 16
    books = Books(("many", "few"), (1.0, weight))
    tenants = {"few": TenantConfig(weight=weight)}
    async with make_engine(places=places, guaranteed_share=share, tenants=tenants, observer=books) as engine:
        for tenant, asked in (("many", 20 * count), ("few", count)):
            for number in range(asked):
                name = RequestId(f"{tenant} {number}")
                books.handles[name] = engine.submit_tokens_nowait(
                    [5 + number % 200] * prompt, sampling=greedy(tokens), tenant=tenant, request_id=name
                )
        for number in range(count):
            await books.handles[RequestId(f"few {number}")]
        for handle in books.handles.values():
            handle.cancel()
    # All that runs can come to have so many tokens; see docs/scheduling.md.
    most = max(PROMPT_WEIGHT * prompt, OUTPUT_WEIGHT * places * (prompt + tokens))
    assert books.largest <= 2 * most + books.by_share()
    assert books.served[1] > 2 * most, "too little was served for the bound to tell anything"

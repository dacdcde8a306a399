"""Turns that are waited for."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import anyio
import pytest
from anyio.lowlevel import checkpoint

from llamalane.api.batches.gate import Gate, Turn
from llamalane.api.batches.turns import Claim
from llamalane.errors import QueueFullError, RequestShedError, TenantLimitError
from llamalane.ids import Level

pytestmark = pytest.mark.anyio

ALICE, BOB = Claim(Level(5), "alice", 1), Claim(Level(5), "bob", 2)
NEVER = 3600.0
FULL = QueueFullError(NEVER, reason="requests", limit=1)
LIMIT = TenantLimitError(NEVER, tenant="alice", reason="concurrent", limit=1)


class Queue:
    """Tasks that have asked for a turn, and the turns that they got, in that order."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.turns: list[Turn] = []

    async def ask(self, claim: Claim, again: bool = False) -> None:
        self.turns.append(await self.gate.enter(claim, again=again))

    async def settled(self) -> list[str]:
        """Let everybody go as far as they get, and return whose turn it was."""
        for _ in range(20):
            await checkpoint()
        return [turn.claim.tenant for turn in self.turns]


@contextlib.asynccontextmanager
async def queue_at(*claims: Claim, width: int = 10) -> AsyncIterator[Queue]:
    queue = Queue(Gate())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(queue.gate.run)
        for claim in claims:
            tasks.start_soon(queue.ask, claim)
            await checkpoint()
        queue.gate.open(width)
        yield queue
        tasks.cancel_scope.cancel()


async def test_one_item_is_submitted_at_a_time() -> None:
    async with queue_at(ALICE, ALICE, ALICE) as queue:
        assert len(await queue.settled()) == 1
        queue.turns[0].accept()
        assert len(await queue.settled()) == 2
        queue.turns[0].accept()  # a second time
        assert len(await queue.settled()) == 2
        with queue.turns[1]:
            pass
        assert len(await queue.settled()) == 3


async def test_so_many_are_under_way_at_once() -> None:
    async with queue_at(ALICE, ALICE, ALICE, width=2) as queue:
        for number in range(2):
            await queue.settled()
            queue.turns[number].accept()
        assert len(await queue.settled()) == 2
        queue.gate.leave(queue.turns[0])
        assert len(await queue.settled()) == 3


async def test_what_was_sent_back_by_a_full_queue_holds_up_the_others_until_one_ends() -> None:
    async with queue_at(ALICE, BOB, ALICE) as queue:
        await queue.settled()
        first = queue.turns[0]
        first.accept()
        await queue.settled()
        with queue.turns[1] as turn:
            turn.send_back(FULL)
        assert await queue.settled() == ["alice", "bob"]
        queue.gate.leave(first)
        assert await queue.settled() == ["alice", "bob", "alice"]


async def test_a_tenants_limit_holds_up_that_tenant_alone() -> None:
    async with queue_at(ALICE, ALICE, BOB) as queue:
        await queue.settled()
        with queue.turns[0] as turn:
            turn.send_back(LIMIT)
        assert await queue.settled() == ["alice", "bob"]


@pytest.mark.parametrize("error", [QueueFullError(0.02, reason="tokens", limit=1), RequestShedError(0.02)])
async def test_when_it_is_time_the_next_has_its_turn(error: QueueFullError | RequestShedError) -> None:
    async with queue_at(ALICE) as queue:
        await queue.settled()
        turn = queue.turns[0]
        with turn:
            turn.accept()
            turn.send_back(error)
        with anyio.fail_after(30):
            await queue.gate.enter(turn.claim, again=True)


async def test_an_item_that_was_turned_out_makes_no_room() -> None:
    async with queue_at(ALICE, BOB) as queue:
        await queue.settled()
        with queue.turns[0] as turn:
            turn.accept()
            turn.send_back(RequestShedError(NEVER))
        assert await queue.settled() == ["alice"]


async def test_a_closed_gate_gives_no_turns_until_it_is_opened() -> None:
    async with queue_at(ALICE, BOB) as queue:
        await queue.settled()
        queue.gate.close()
        with queue.turns[0] as turn:
            turn.accept()
        assert await queue.settled() == ["alice"]
        queue.gate.open(1)
        assert await queue.settled() == ["alice", "bob"]


async def test_who_no_longer_waits_has_no_turn() -> None:
    async with queue_at() as queue:
        async with anyio.create_task_group() as tasks:
            queue.gate.close()
            tasks.start_soon(queue.ask, ALICE)
            await queue.settled()
            tasks.cancel_scope.cancel()
        queue.gate.open(1)
        with anyio.fail_after(30):
            assert (await queue.gate.enter(BOB)).claim == BOB


@pytest.mark.parametrize("granted_first", [True, False])
async def test_a_turn_that_comes_as_its_task_is_cancelled_goes_to_the_next(granted_first: bool) -> None:
    gate = Gate()
    gate.open(1)

    async def wait_in(scope: anyio.CancelScope) -> None:
        with scope, await gate.enter(ALICE):
            await anyio.sleep_forever()

    async with anyio.create_task_group() as tasks:
        scope = anyio.CancelScope()
        tasks.start_soon(wait_in, scope)
        await checkpoint()
        await checkpoint()
        if granted_first:
            gate._grant()
        scope.cancel()
        gate._grant()
        tasks.start_soon(gate.run)
        with anyio.fail_after(30):
            assert (await gate.enter(BOB)).claim == BOB
        tasks.cancel_scope.cancel()

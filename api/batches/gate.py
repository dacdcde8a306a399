"""Lets the items of batches in, one after the other, as many as keep the lanes busy."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import anyio

from llamalane.api.batches.turns import Claim, Turns, Wish
from llamalane.clock import Clock, MonotonicClock
from llamalane.errors import QueueFullError, RequestShedError, TenantLimitError

SentBack = QueueFullError | RequestShedError | TenantLimitError
"""What an item is sent back with that can come again later."""


class Turn:
    """An item's turn, from the moment at which it may be submitted to its end, which is that of the block."""

    def __init__(self, gate: Gate, claim: Claim) -> None:
        self.claim = claim
        self.makes_room = False
        """Whether the end of this turn lets others in: it was let in itself."""
        self._gate = gate

    def accept(self) -> None:
        """Note that the item is queued: the next one may be submitted."""
        self.makes_room = True
        self._gate.pass_on(self)

    def send_back(self, error: SentBack) -> None:
        """Note that the item is not, or no longer, queued, and that nothing like it will be before it is time."""
        self.makes_room = False
        self._gate.hold(self.claim, error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._gate.leave(self)


@dataclass(eq=False, slots=True)
class _Waiter:
    wish: Wish
    granted: anyio.Event = field(default_factory=anyio.Event)
    turn: Turn | None = None


class Gate:
    """Gives turns to those who wait for one, by the rules of `Turns`, while it is open and `run` runs.

    One item is submitted at a time: until it was accepted, or its turn has ended, nobody else has a turn. So a full
    queue, or a limit, sends one item back each time, and not all of them.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or MonotonicClock()
        self._turns = Turns(width=0)
        self._waiters: list[_Waiter] = []
        self._submitting: Turn | None = None
        self._changed = anyio.Event()

    def open(self, width: int) -> None:
        """Give turns from now on, so that `width` items are under way at each level."""
        self._turns.width = width
        self._changed.set()

    def close(self) -> None:
        """Give no more turns; those that were given go on."""
        self._turns.width = 0

    async def run(self) -> None:
        """Give turns until cancelled."""
        while True:
            self._changed = anyio.Event()
            self._grant()
            now = self._clock.now()
            change = self._turns.next_change(now)
            with anyio.move_on_after(None if change is None else change - now):
                await self._changed.wait()

    async def enter(self, claim: Claim, *, again: bool = False) -> Turn:
        """Wait for a turn; `again` is for an item that was sent back."""
        waiter = _Waiter(Wish(claim, again))
        self._waiters.append(waiter)
        self._changed.set()
        try:
            await waiter.granted.wait()
        except BaseException:
            if waiter.turn is None:
                self._waiters.remove(waiter)
            else:
                self.leave(waiter.turn)
            raise
        assert waiter.turn is not None
        return waiter.turn

    def pass_on(self, turn: Turn) -> None:
        """Let the next item be submitted, if it was the one of this turn that had to be before."""
        if self._submitting is turn:
            self._submitting = None
            self._changed.set()

    def hold(self, claim: Claim, error: SentBack) -> None:
        """Hold back what would be sent back as this item was."""
        until = self._clock.now() + error.retry_after
        if isinstance(error, TenantLimitError):
            self._turns.hold_tenant(claim.tenant, until)
        else:
            self._turns.hold_level(claim.level, until)

    def leave(self, turn: Turn) -> None:
        """End a turn."""
        if turn.makes_room:
            self._turns.end(turn.claim)
        else:
            self._turns.withdraw(turn.claim)
        self.pass_on(turn)
        self._changed.set()

    def _grant(self) -> None:
        if self._submitting is not None:
            return
        wish = self._turns.choose((waiter.wish for waiter in self._waiters), self._clock.now())
        if wish is None:
            return
        waiter = next(waiter for waiter in self._waiters if waiter.wish is wish)
        self._waiters.remove(waiter)
        self._turns.begin(wish.claim)
        waiter.turn = self._submitting = Turn(self, wish.claim)
        waiter.granted.set()

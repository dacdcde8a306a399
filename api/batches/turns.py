"""Decides whose item is next. Pure: time is passed in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from llamalane.ids import Level


@dataclass(frozen=True, slots=True)
class Claim:
    """Whose item it is: of which level, of which tenant, and of which batch, counted by age."""

    level: Level
    tenant: str
    batch: int


@dataclass(frozen=True, slots=True)
class Wish:
    """A claim on the next turn; `again` is for an item that had one before, and was sent back."""

    claim: Claim
    again: bool = False


class Turns:
    """Whose items are under way, and who is held back.

    Each level may have `width` items under way; which of the levels comes first is then for the queue to say, whose
    rules see to it that none of them starves. Within a level, the tenant comes first that has the fewest items under
    way, and of its batches the oldest. An item that was sent back comes before all that its tenant has not sent yet, so
    that those that were do not become more and more.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self._under_way: Counter[Level] = Counter()
        self._of_tenant: Counter[tuple[Level, str]] = Counter()
        self._level_holds: dict[Level, float] = {}
        self._tenant_holds: dict[str, float] = {}

    def choose(self, wishes: Iterable[Wish], now: float) -> Wish | None:
        """Return the wish that is to be granted next, None while none can be."""
        open_ones = [wish for wish in wishes if self._open(wish.claim, now)]
        return min(open_ones, key=self._rank, default=None)

    def next_change(self, now: float) -> float | None:
        """Return when somebody is no longer held back; None while nobody is."""
        holds = [*self._level_holds.values(), *self._tenant_holds.values()]
        return min((until for until in holds if until > now), default=None)

    def begin(self, claim: Claim) -> None:
        """Note that an item is under way."""
        self._under_way[claim.level] += 1
        self._of_tenant[claim.level, claim.tenant] += 1

    def end(self, claim: Claim) -> None:
        """Note that an item which had been let in no longer is: it has made room, so that nobody is held back."""
        self.withdraw(claim)
        self._level_holds.clear()
        self._tenant_holds.pop(claim.tenant, None)

    def withdraw(self, claim: Claim) -> None:
        """Note that an item is no longer under way, which had not been let in, or was sent away: it makes no room."""
        self._under_way[claim.level] -= 1
        self._of_tenant[claim.level, claim.tenant] -= 1
        if not self._of_tenant[claim.level, claim.tenant]:
            del self._of_tenant[claim.level, claim.tenant]

    def hold_level(self, level: Level, until: float) -> None:
        """Hold back all items that are no more urgent than `level`: the queue is full for them."""
        self._level_holds[level] = until

    def hold_tenant(self, tenant: str, until: float) -> None:
        """Hold back all items of a tenant: it has as much under way as it may."""
        self._tenant_holds[tenant] = until

    def _open(self, claim: Claim, now: float) -> bool:
        holds = [until for level, until in self._level_holds.items() if level <= claim.level]
        holds.append(self._tenant_holds.get(claim.tenant, now))
        return max(holds) <= now and self._under_way[claim.level] < self.width

    def _rank(self, wish: Wish) -> tuple[Level, int, bool, int]:
        claim = wish.claim
        return claim.level, self._of_tenant[claim.level, claim.tenant], not wish.again, claim.batch

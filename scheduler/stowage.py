"""What lanes give up of finished prompts goes to host memory, if that is worth it, and comes back when it is wanted."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

from llamalane.ids import MOST_URGENT, Level, SequenceId
from llamalane.kvcache import DiskStatistics, EntryId, Evicted, HostStatistics, Merged, Moved
from llamalane.scheduler.archive import Archive
from llamalane.scheduler.comebacks import Comebacks
from llamalane.scheduler.ledger import LaneLedger
from llamalane.scheduler.parking import ParkingCosts
from llamalane.scheduler.request import Request
from llamalane.streams import Merge, Move, PoolLane, Restore, Restored, Stow, Stowed, Trim

LEAST_TOKENS = 64
"""Fewer tokens are not worth the trouble."""


@dataclass(frozen=True, slots=True)
class _Ticket:
    """A sequence that a lane is to save, left by `level`, or to put back: `entry`, which saves `gain` tokens."""

    lane: str
    sequence: SequenceId
    scope: str
    tokens: Sequence[int]
    whole: bool
    gain: int = 0
    entry: EntryId | None = None
    level: Level = MOST_URGENT


@dataclass(frozen=True, slots=True)
class _Found:
    """Saved cells that can be put back: all of them, of which the first `usable` are kept."""

    read: Callable[[], bytearray | None]
    length: int
    usable: int
    entry: EntryId | None = None


class Stowage:
    """The traffic between the lanes' regions and what is kept outside them.

    `costs` tells what is worth it, and owns the host memory; `archive` keeps files that outlive the engine. Fewer than
    `least_tokens` are left alone.
    """

    def __init__(
        self, costs: ParkingCosts, archive: Archive | None = None, *, least_tokens: int = LEAST_TOKENS
    ) -> None:
        self._costs = costs
        self._least_tokens = least_tokens
        self._host = costs.store
        self._archive = archive
        self._comebacks = Comebacks()
        self._levels: dict[tuple[str, SequenceId], Level] = {}
        """Whose level's prompt a lane's sequence keeps."""
        self._numbers = itertools.count(1)
        self._tickets: dict[int, _Ticket] = {}
        self.restored_tokens = 0
        """Tokens that were put back instead of being computed."""
        self.stowed_bytes = self.restored_bytes = 0
        """What the cells took that were saved, and that were put back."""

    @property
    def statistics(self) -> HostStatistics:
        """The host memory's numbers."""
        return self._host.statistics()

    @property
    def disk_statistics(self) -> DiskStatistics | None:
        """The disk's numbers, None where nothing is kept there."""
        return None if self._archive is None else self._archive.disk.statistics()

    @property
    def idle(self) -> bool:
        """Whether no lane is saving anything."""
        return not self._tickets

    def note_kept(self, ledger: LaneLedger, sequence: SequenceId, level: Level) -> None:
        """Take note that a sequence is about to keep what a request of that level leaves."""
        self._levels[ledger.lane.name, sequence] = level

    def carry_out(self, ledger: LaneLedger, changes: Sequence[object], *, at_end: bool = False) -> None:
        """Tell a lane what its region asks of it; what is given up is saved before, if it is worth it.

        `at_end`, it is worth it whether or not such prompts have come back: they may after a restart.
        """
        for change in changes:
            match change:
                case Evicted(sequence, scope, tokens, keep):
                    ticket = self._ticket_for(ledger, sequence, scope, tokens, at_end=at_end)
                    ledger.edit(Trim(sequence, keep) if ticket is None else Stow(ticket, sequence, keep))
                case Moved(sequence, to):
                    ledger.edit(Move(sequence, to))
                    self._note_moved(ledger, sequence, to)
                case Merged(sequence, source, start, end):
                    ledger.edit(Merge(sequence, source, start, end))
                case _:
                    raise TypeError(f"a region asked for {change!r}")

    def bring_back(self, request: Request, ledger: LaneLedger, cells: int) -> None:
        """Let a lane put back what is kept of a request's prompt outside, if that beats computing it.

        A sequence that nobody uses gets it, where the request will find it. There must be room for all `cells` that the
        request is about to get: with that, it may share fewer of those that are in use than it would without.
        """
        region, tokens = ledger.lane.region, request.findable
        if cells > region.room or not tokens:
            return
        found = self._find(ledger.lane, request.scope, tokens)
        # All of it is put back before its end is dropped, and has to find room.
        if found is None or not region.free or found.length > min(region.room, region.limit):
            return
        gain = found.usable - region.cached(tokens, request.scope)
        if gain < self._least_tokens or not self._pays(found.length, gain, ledger):
            return
        if found.entry is not None:
            self._host.touch(found.entry)
        self._comebacks.note_return(request.level)
        kept = tokens[: found.usable]
        place = region.take(kept, found.length, request.scope, restored=True)
        self.carry_out(ledger, place.changes)
        ticket = self._new_ticket(ledger, place.sequence, request.scope, kept, gain, found.entry)
        ledger.edit(Restore(ticket, place.sequence, found.read, found.usable))
        self.note_kept(ledger, place.sequence, request.level)
        self.carry_out(ledger, region.give_back(place.sequence, kept))

    def note_stowed(self, stowed: Stowed) -> None:
        """Take what a lane has saved."""
        ticket = self._tickets.pop(stowed.ticket, None)
        if ticket is None or stowed.saved is None:
            return
        self.stowed_bytes += len(stowed.saved.data)
        self._comebacks.note_saved(ticket.level)
        self._costs.observe_saving(len(stowed.saved.data), stowed.saved.length, stowed.seconds)
        self._host.put(ticket.scope, ticket.tokens, stowed.saved.data, whole=ticket.whole)
        if self._archive is not None:
            self._archive.put_nowait(ticket.scope, ticket.tokens, stowed.saved.data, whole=ticket.whole)

    def note_restored(self, ledger: LaneLedger, restored: Restored) -> None:
        """Take note that a sequence was put back, or holds nothing."""
        ticket = self._tickets.pop(restored.ticket, None)
        if ticket is None:
            return
        if restored.done:
            self.restored_tokens += ticket.gain
            self.restored_bytes += restored.size
            return
        self.carry_out(ledger, ledger.lane.region.forget(ticket.sequence))
        if ticket.entry is not None:  # it is damaged, or does not fit: it would only fail again
            self._host.forget(ticket.entry)

    def forget_lane(self, lane: str) -> None:
        """Expect nothing any more of a lane that lost its context."""
        self._tickets = {number: ticket for number, ticket in self._tickets.items() if ticket.lane != lane}
        self._levels = {place: level for place, level in self._levels.items() if place[0] != lane}

    def stow_all(self, ledger: LaneLedger) -> None:
        """Save all that a lane keeps for nobody in particular, if it is worth it, and remove it."""
        self.carry_out(ledger, ledger.lane.region.forget_all(), at_end=True)

    def _ticket_for(
        self, ledger: LaneLedger, sequence: SequenceId, scope: str, tokens: Sequence[int], *, at_end: bool
    ) -> int | None:
        scope = _state_scope(ledger.lane, scope)
        size = self._costs.size(len(tokens))
        if len(tokens) < self._least_tokens:
            return None
        if not self._host.wants(scope, tokens, size, whole=not ledger.lane.region.can_roll_back):
            return None
        level = self._levels.get((ledger.lane.name, sequence), MOST_URGENT)
        saving = restoring = self._costs.swap_seconds(len(tokens)) / 2
        gain = self._costs.compute_seconds(len(tokens), ledger.model.token_seconds) - restoring
        if not (saving < gain if at_end else self._comebacks.worth(level, saving, gain)):
            return None
        return self._new_ticket(ledger, sequence, scope, tokens, level=level)

    def _new_ticket(
        self,
        ledger: LaneLedger,
        sequence: SequenceId,
        scope: str,
        tokens: Sequence[int],
        gain: int = 0,
        entry: EntryId | None = None,
        level: Level = MOST_URGENT,
    ) -> int:
        number, whole = next(self._numbers), not ledger.lane.region.can_roll_back
        self._tickets[number] = _Ticket(ledger.lane.name, sequence, scope, tokens, whole, gain, entry, level)
        return number

    def _find(self, lane: PoolLane, tenant: str, tokens: Sequence[int]) -> _Found | None:
        scope, whole = _state_scope(lane, tenant), not lane.region.can_roll_back
        wanted = tokens[: len(tokens) - 1]  # the last one's logits are needed
        stored = self._host.match(scope, wanted, whole=whole)
        if self._archive is not None:
            file = self._archive.disk.match(scope, wanted, whole=whole)
            if file is not None and (stored is None or file.usable > stored.usable):
                return _Found(partial(self._archive.disk.load, file), file.length, file.usable)
        if stored is None:
            return None
        data = cast(bytearray, stored.data)  # nothing else is put there
        return _Found(lambda: data, stored.length, stored.usable, stored.entry)

    def _note_moved(self, ledger: LaneLedger, sequence: SequenceId, to: SequenceId) -> None:
        level = self._levels.pop((ledger.lane.name, sequence), None)
        if level is not None:
            self._levels[ledger.lane.name, to] = level

    def _pays(self, length: int, gain: int, ledger: LaneLedger) -> bool:
        return self._costs.swap_seconds(length) < self._costs.compute_seconds(gain, ledger.model.token_seconds)


def _state_scope(lane: PoolLane, tenant: str) -> str:
    """Return whose cells can be put back on a lane: those of a tenant, from a context divided in the same way."""
    return f"{lane.region.form}/{tenant}"

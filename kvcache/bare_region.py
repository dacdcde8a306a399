"""The books of a lane without cells: its sequences are computed whole in one step, and nothing of them stays."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from llamalane.errors import PoolError, PoolExhaustedError
from llamalane.ids import SequenceId
from llamalane.kvcache.changes import CellChange, RegionStatistics, TakenPlace
from llamalane.kvcache.holdings import Holding


class BareRegion:
    """So many places, each with a sequence id; `limit` is the most tokens of one sequence.

    It can be used where other regions can. Nobody needs cells here, and nothing is ever kept, so nobody can be paused
    either: whoever has to give way begins anew.
    """

    partitioned = False
    shares = False
    can_roll_back = False
    saves_in_parts = False
    form = ""
    cells = 0
    room = 0

    def __init__(self, places: int, limit: int) -> None:
        self.places = places
        self.sequences = places
        self.limit = limit
        self._free = [SequenceId(number) for number in reversed(range(places))]
        self._taken: set[SequenceId] = set()

    @property
    def free(self) -> int:
        """How many sequences can be taken."""
        return len(self._free)

    def cached(self, tokens: Sequence[int], scope: str) -> int:
        """Return how many of the first `tokens` need not be computed: none."""
        return 0

    def need(self, tokens: Sequence[int], cells: int, scope: str) -> int:
        """Return how many cells `tokens` need: none."""
        return 0

    def own(self, sequence: SequenceId) -> int:
        """Return how many cells a sequence that is taken has: none."""
        self._check_taken(sequence)
        return 0

    def owned(self, sequences: Collection[SequenceId]) -> int:
        """Return how many cells several sequences have that are taken: none."""
        return sum(map(self.own, sequences))

    def take(self, tokens: Sequence[int], cells: int, scope: str, *, restored: bool = False) -> TakenPlace:
        """Take a sequence; raises `PoolExhaustedError` when none is free."""
        if len(tokens) > self.limit:
            raise PoolError(f"a sequence has at most {self.limit} tokens here; got {len(tokens)}")
        if not self._free:
            raise PoolExhaustedError("no sequence is free on this lane")
        sequence = self._free.pop()
        self._taken.add(sequence)
        return TakenPlace(sequence, cells=0, cached=0)

    def grow(self, sequence: SequenceId, cells: int) -> tuple[CellChange, ...]:
        """Let a sequence have `cells`, of which it needs none; nothing has to be done for it."""
        self._check_taken(sequence)
        return ()

    def pause(self, sequence: SequenceId) -> None:
        """Refuse: nothing of a sequence stays."""
        raise PoolError(f"sequence {sequence} cannot be paused: nothing of it stays on this lane")

    def settle(self, sequence: SequenceId, cells: int) -> None:
        """Refuse: no sequence is paused."""
        raise PoolError(f"sequence {sequence} is not paused")

    def resume(self, sequence: SequenceId, cells: int) -> tuple[CellChange, ...]:
        """Refuse: no sequence is paused."""
        raise PoolError(f"sequence {sequence} is not paused")

    def note_computed(self, sequence: SequenceId) -> None:
        """Note that a sequence was computed; nothing depends on it here."""
        self._check_taken(sequence)

    def note_stopped(self, sequence: SequenceId) -> None:
        """Note that a sequence was told to stop; nothing depends on it here."""
        self._check_taken(sequence)

    def give_back(self, sequence: SequenceId, kept: Sequence[int] = ()) -> tuple[CellChange, ...]:
        """Free a sequence, of which nothing can be kept; nothing has to be done after it."""
        self._check_taken(sequence)
        if kept:
            raise PoolError(f"sequence {sequence} cannot keep {len(kept)} tokens: nothing of it stays on this lane")
        self._taken.remove(sequence)
        self._free.append(sequence)
        return ()

    def note_copy_cost(self, tokens: int) -> None:
        """Note what copying takes; nothing is ever copied here."""

    def forget(self, sequence: SequenceId) -> tuple[CellChange, ...]:
        """Note that what a sequence keeps is gone; it keeps nothing."""
        return ()

    def forget_all(self) -> tuple[CellChange, ...]:
        """Give up all that is kept, which is nothing."""
        return ()

    def wipe(self) -> None:
        """Note that the lane has a new context; nothing may be taken."""
        if self._taken:
            raise PoolError(f"sequence {min(self._taken)} is still taken")

    def statistics(self) -> RegionStatistics:
        """Return the region's numbers."""
        return RegionStatistics(0, reserved=0, paused=0, kept=0, sequences=self.places, free=self.free)

    def holdings(self) -> tuple[Holding, ...]:
        """Tell whose the cells are: there are none."""
        return ()

    def check(self) -> None:
        """Raise `PoolError` unless every sequence is either free or taken."""
        if sorted([*self._free, *self._taken]) != list(range(self.places)):
            raise PoolError(f"{self._free} are free and {self._taken} taken of {self.places} sequences")

    def _check_taken(self, sequence: SequenceId) -> None:
        if sequence not in self._taken:
            raise PoolError(f"sequence {sequence} is not taken")

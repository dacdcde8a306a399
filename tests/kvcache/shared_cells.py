"""The cells of a lane whose sequences share them, as plainly as possible: each is a thing of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from llamalane.ids import SequenceId
from llamalane.kvcache import CellChange, Evicted, Merged, Moved, Source, TakenPlace


@dataclass(frozen=True, eq=False)
class Cell:
    token: int
    scope: str


class SharedCells:
    """Does what a region asks of a lane, and complains when it cannot be done.

    A row that is to share what another one is still computing waits for it. When that one goes, it gets what is there,
    and the row that waited for most goes on, with the others waiting for it.
    """

    def __init__(self, sequences: int, keepers: int) -> None:
        self._can_run = range(sequences)
        self._can_hold = {*range(sequences), *range(sequences + 1, sequences + 1 + keepers)}
        self.cells: dict[SequenceId, list[Cell]] = {}
        self.prompts: dict[SequenceId, list[int]] = {}
        self.scopes: dict[SequenceId, str] = {}
        self.awaits: dict[SequenceId, Source] = {}
        self.evictions = 0

    @property
    def used(self) -> int:
        """How many cells hold anything."""
        return len({cell for cells in self.cells.values() for cell in cells})

    def tokens(self, sequence: SequenceId) -> list[int]:
        return [cell.token for cell in self.cells.get(sequence, [])]

    def change(self, changes: Iterable[CellChange]) -> None:
        for change in changes:
            match change:
                case Evicted(sequence, _, tokens, keep):
                    assert sequence not in self.prompts
                    assert self.tokens(sequence) == list(tokens)
                    assert keep < len(tokens)
                    del self.cells[sequence][keep:]
                    self.evictions += 1
                case Moved(sequence, to):
                    assert sequence not in self.prompts
                    assert to in self._can_hold
                    assert not self.cells.get(to)
                    self.cells[to] = self.cells.pop(sequence)
                case Merged(sequence, source, start, end):
                    self._merge(sequence, source, start, end)

    def join(self, taken: TakenPlace, prompt: Sequence[int], scope: str, restored: Sequence[int] = ()) -> None:
        """Put a prompt on its place, with `restored` cells from elsewhere."""
        sequence = taken.sequence
        self.scopes[sequence] = scope
        assert sequence in self._can_run
        assert sequence not in self.prompts
        cells = self.cells.setdefault(sequence, [])
        assert len(cells) == taken.cached
        self.prompts[sequence] = list(prompt)
        if restored:
            assert not cells
            cells += [Cell(token, scope) for token in restored]
        if taken.share is not None:
            assert not cells
            self.awaits[sequence] = taken.share
            self._share_what_is_there()

    def compute(self, sequence: SequenceId, tokens: Iterable[int]) -> None:
        """Fill cells of a row that waits for nobody."""
        self.cells[sequence] += [Cell(token, self.scopes[sequence]) for token in tokens]
        self._share_what_is_there()

    def stop(self, sequence: SequenceId) -> None:
        """Take a row off; its cells stay."""
        own = self.awaits.pop(sequence, None)
        left = sorted((one for one in self.awaits if self.awaits[one].sequence == sequence), key=self._awaited)
        if left:
            heir = left.pop()
            for follower in left:
                self.awaits[follower] = Source(heir, self._awaited(follower))
            if own is not None:  # it had nothing yet: what it waited for comes to its heir
                self.awaits[heir] = Source(own.sequence, min(own.length, self._awaited(heir)))
            else:
                length = self.awaits.pop(heir).length
                self._copy(sequence, heir, min(len(self.cells[sequence]), length))
        del self.prompts[sequence]
        self._share_what_is_there()

    def keep(self, sequence: SequenceId, length: int) -> None:
        del self.cells[sequence][length:]

    def _merge(self, sequence: SequenceId, source: SequenceId, start: int, end: int) -> None:
        assert sequence not in self.prompts
        assert source not in self.awaits
        mine, others = self.cells[sequence], self.cells[source]
        assert start < end <= len(others), "the source has computed them"
        assert mine[:start] == others[:start], "these are the same cells already"
        assert mine[start] is not others[start]
        assert self.tokens(sequence)[:end] == self.tokens(source)[:end]
        mine[start:end] = others[start:end]

    def _awaited(self, follower: SequenceId) -> int:
        return self.awaits[follower].length

    def _share_what_is_there(self) -> None:
        while True:
            ready = [
                one
                for one, source in self.awaits.items()
                if source.sequence not in self.prompts
                or (source.sequence not in self.awaits and len(self.cells[source.sequence]) >= source.length)
            ]
            if not ready:
                return
            for one in ready:
                source = self.awaits.pop(one)
                self._copy(source.sequence, one, min(len(self.cells[source.sequence]), source.length))

    def _copy(self, source: SequenceId, to: SequenceId, length: int) -> None:
        assert not self.cells[to]
        self.cells[to] = self.cells[source][:length]

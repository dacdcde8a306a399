"""What is kept in host memory: saved cells of prompts that may come again, and room for those of parked requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NewType

from llamalane.errors import ConfigError, PoolError
from llamalane.kvcache.prefix_tree import PrefixTree
from llamalane.kvcache.stored_prefixes import best_match, covered, covering

Data = bytes | bytearray | memoryview
"""A saved sequence, as the lane's context gave it."""

EntryId = NewType("EntryId", int)
"""Names what was stored once; counted from 1, and never used again."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Saved cells that a prompt can begin with. They stay valid even if their entry goes meanwhile.

    Attributes:
        entry: their entry in the store.
        data: they can be restored as a whole only.
        length: how many tokens they hold.
        usable: how many of these the prompt begins with; the rest has to be cut off after they were restored.
    """

    entry: EntryId
    data: Data
    length: int
    usable: int


@dataclass(frozen=True, slots=True)
class HostStatistics:
    """A host store at one moment; the counters begin with the store."""

    max_bytes: int
    """All that may be used."""
    reserved_bytes: int
    """What is promised to parked requests."""
    used_bytes: int
    """What the entries take."""
    entries: int
    """How many prompts are stored."""
    hits: int
    """How often an entry was used."""
    evictions: int
    """How many entries had to give way."""


@dataclass(frozen=True, slots=True)
class _Entry:
    data: Data
    size: int


class HostStore:
    """Saved cells by the tokens that they hold, `max_bytes` of them at most; 0 stores nothing.

    Parked requests reserve their part of the same bytes, and entries give way to them, those used longest ago first.
    Only the saved cells are counted, not the books.

    `whole` tells that the model cannot drop the end of a sequence. Then an entry serves only prompts that begin with
    all of it, and a longer entry does not replace it. A scope must always be used in the same way.
    """

    def __init__(self, max_bytes: int) -> None:
        if max_bytes < 0:
            raise ConfigError(f"the bytes for saved cells in host memory must be at least 0; got {max_bytes}")
        self._max_bytes = max_bytes
        self._tree = PrefixTree[EntryId]()
        self._entries: dict[EntryId, _Entry] = {}
        """Those used longest ago come first."""
        self._used = self._reserved = 0
        self._newest = self._hits = self._evictions = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, entry: object) -> bool:
        return entry in self._entries

    @property
    def used_bytes(self) -> int:
        """What the entries take."""
        return self._used

    @property
    def reserved_bytes(self) -> int:
        """What is promised to parked requests."""
        return self._reserved

    def match(self, scope: str, tokens: Sequence[int], *, whole: bool = False) -> Stored | None:
        """Return the entry that saves most of `tokens`, None when none saves any.

        Changes nothing: whoever uses what was found says so with `touch` or `take`.
        """
        match = best_match(self._tree, scope, tokens, whole=whole)
        if match.holder is None:
            return None
        data = self._entries[match.holder].data
        return Stored(match.holder, data, self._tree.length(match.holder), match.length)

    def wants(self, scope: str, tokens: Sequence[int], size: int, *, whole: bool = False) -> bool:
        """Return whether `put` would store `size` bytes for these tokens. Changes nothing."""
        fits = size <= self._max_bytes - self._reserved
        return fits and len(tokens) > 0 and covering(self._tree, scope, tokens, whole=whole) is None

    def put(self, scope: str, tokens: Sequence[int], data: Data, *, whole: bool = False) -> EntryId | None:
        """Store saved cells that hold `tokens`, and return their new entry; None when they are not worth it.

        They are not when an entry holds as much already, which counts as used then, or when they are larger than what
        is not reserved. Entries of the same scope that hold only a part of the new one's tokens are replaced by it.
        `data` must not change afterwards.
        """
        size = memoryview(data).nbytes
        if not self.wants(scope, tokens, size, whole=whole):
            holder = covering(self._tree, scope, tokens, whole=whole)
            if holder is not None:
                self._renew(holder)
            return None
        for part in covered(self._tree, scope, tokens, whole=whole):
            self.forget(part)
        self._evict(size)
        self._newest += 1
        entry = EntryId(self._newest)
        self._tree.insert(entry, scope, tokens)
        self._entries[entry] = _Entry(data, size)
        self._used += size
        return entry

    def touch(self, entry: EntryId) -> None:
        """Note that an entry is used. One that is gone meanwhile is no error."""
        if entry in self._entries:
            self._hits += 1
            self._renew(entry)

    def take(self, entry: EntryId) -> Data:
        """Use an entry for the last time: return its data and forget it. Raises `PoolError` when it is gone."""
        if entry not in self._entries:
            raise PoolError(f"entry {entry} is not stored")
        self._hits += 1
        data = self._entries[entry].data
        self.forget(entry)
        return data

    def forget(self, entry: EntryId) -> None:
        """Give up an entry. One that is gone meanwhile is no error."""
        gone = self._entries.pop(entry, None)
        if gone is not None:
            self._tree.remove(entry)
            self._used -= gone.size

    def reserve(self, size: int) -> bool:
        """Promise `size` bytes to a parked request; returns False, and changes nothing, when too few are left."""
        if size < 0:
            raise PoolError(f"at least 0 bytes can be reserved; got {size}")
        if size > self._max_bytes - self._reserved:
            return False
        self._evict(size)
        self._reserved += size
        return True

    def release(self, size: int) -> None:
        """Take back what was promised."""
        if not 0 <= size <= self._reserved:
            raise PoolError(f"{size} bytes cannot be released where {self._reserved} are reserved")
        self._reserved -= size

    def statistics(self) -> HostStatistics:
        """Return the store's numbers."""
        return HostStatistics(
            self._max_bytes,
            reserved_bytes=self._reserved,
            used_bytes=self._used,
            entries=len(self._entries),
            hits=self._hits,
            evictions=self._evictions,
        )

    def check(self) -> None:
        """Raise `PoolError` unless the books add up."""
        self._tree.check()
        used = sum(entry.size for entry in self._entries.values())
        if self._tree.holders != self._entries.keys() or used != self._used:
            raise PoolError(f"{used} bytes are stored in {len(self._entries)} entries; counted were {self._used}")
        if self._reserved < 0 or self._reserved + used > self._max_bytes:
            raise PoolError(f"more is stored or promised than there may be: {self.statistics()}")

    def _renew(self, entry: EntryId) -> None:
        """Make an entry the one that was used last."""
        self._entries[entry] = self._entries.pop(entry)

    def _evict(self, size: int) -> None:
        """Give up entries until `size` more bytes fit."""
        while self._reserved + self._used + size > self._max_bytes:
            self._evictions += 1
            self.forget(next(iter(self._entries)))

"""Saved cells in a directory, for prompts that come again after a restart."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from llamalane.errors import ConfigError
from llamalane.kvcache.host_store import Data
from llamalane.kvcache.prefix_tree import PrefixTree
from llamalane.kvcache.state_file import (
    Unusable,
    digest,
    file_size,
    pack_tokens,
    read_head,
    read_payload,
    write_state,
)
from llamalane.kvcache.stored_prefixes import best_match, covered, covering

SUFFIX = ".cells"
UNFINISHED = ".unfinished"


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file whose cells a prompt can begin with.

    Attributes:
        name: its name in the directory.
        length: how many tokens its cells hold.
        usable: how many of these the prompt begins with; the rest has to be cut off after they were restored.
    """

    name: str
    length: int
    usable: int


@dataclass(frozen=True, slots=True)
class DiskStatistics:
    """A disk store at one moment; the counters begin with the store."""

    max_bytes: int
    """All that the files may take."""
    entries: int
    """How many prompts are stored that this store can use."""
    hits: int
    """How many files were read."""
    evictions: int
    """How many files had to give way."""
    damaged: int
    """How many files were removed because they were damaged."""
    failures: int
    """How often a file could not be written or read: no space, no permission, a broken disk."""


@dataclass(frozen=True, slots=True)
class _Found:
    """A file in the directory; `used` is its modification time in nanoseconds, which each use renews."""

    used: int
    name: str
    size: int


class DiskStore:
    """Files of saved cells by the tokens that they hold, `max_bytes` of them at most.

    `key` tells all that two contexts must have in common to use each other's cells: the build of llama.cpp, the model,
    the types of the cells and their layout. Files of other keys are not used; they count, and give way like all others
    when they were used longest ago. Several processes can use one directory; each keeps to its own bound.

    Prompts are private: files can be read by their owner only, and a directory into which everybody can write is
    refused, since a forged file could end the process. Scopes are told apart by a digest.

    Any thread may call any method. `save` and `load` take as long as the disk; `match` and `wants` never wait for it.
    None raises for what is on the disk: what cannot be used does not count. Only the constructor raises `ConfigError`
    when the directory cannot be used at all. `whole` is explained with `HostStore`.
    """

    def __init__(self, directory: Path | str, key: str, max_bytes: int) -> None:
        if max_bytes < 1:
            raise ConfigError(f"the bytes for saved cells on disk must be at least 1; got {max_bytes}")
        self._directory = _usable(Path(directory))
        self._max_bytes = max_bytes
        self._key = digest(key)
        self._prefix = f"{self._key.hex()[:16]}-"
        self._index = PrefixTree[str]()
        """File names by the digest of their scope, and their tokens."""
        self._lock = Lock()
        """Held while the index or a counter is used, never while a file is."""
        self._saving = Lock()
        self._hits = self._evictions = self._damaged = self._failures = 0
        try:
            self._make_room(0)
        except OSError as error:
            raise _unusable(self._directory, error) from error

    def __len__(self) -> int:
        return len(self._index)

    def match(self, scope: str, tokens: Sequence[int], *, whole: bool = False) -> StoredFile | None:
        """Return the file that saves most of `tokens`, None when none saves any."""
        with self._lock:
            match = best_match(self._index, digest(scope).hex(), tokens, whole=whole)
            if match.holder is None:
                return None
            return StoredFile(match.holder, self._index.length(match.holder), match.length)

    def wants(self, scope: str, tokens: Sequence[int], size: int, *, whole: bool = False) -> bool:
        """Return whether `save` would write `size` bytes for these tokens."""
        with self._lock:
            covers = covering(self._index, digest(scope).hex(), tokens, whole=whole)
        return len(tokens) > 0 and covers is None and file_size(len(tokens), size) <= self._max_bytes

    def save(self, scope: str, tokens: Sequence[int], data: Data, *, whole: bool = False) -> bool:
        """Write saved cells that hold `tokens` to a file of their own; returns whether that was worth it, and done.

        It is not worth it when a file holds as much already, which counts as used then, or when they are larger than
        the bound. Files of the same scope that hold only a part of the tokens are replaced by it.
        """
        payload = memoryview(data).cast("B")
        size = file_size(len(tokens), payload.nbytes)
        scope_digest = digest(scope)
        with self._saving:
            if len(tokens) == 0 or size > self._max_bytes:
                return False
            if self._renew_covering(scope_digest.hex(), tokens, whole=whole):
                return False
            with self._lock:
                replaced = covered(self._index, scope_digest.hex(), tokens, whole=whole)
            for name in replaced:
                self._remove(name)
            try:
                if not self._make_room(size):
                    return False
                self._write(scope_digest, tokens, payload)
            except OSError:
                self._note_failure()
                return False
        return True

    def load(self, file: StoredFile) -> bytearray | None:
        """Read the cells of a file that `match` has found; None when they are not to be had.

        A damaged file is removed: it would take its room, and be found again after every restart. A file that has
        become somebody else's is left alone; it gives way when its time comes.
        """
        with self._lock:
            if file.name not in self._index:
                return None
            expected = self._key.hex(), self._index.scope(file.name), self._index.tokens(file.name)
        payload: bytearray | Unusable = Unusable.FOREIGN
        try:
            with open(self._directory / file.name, "rb") as opened:
                head = read_head(opened)
                if isinstance(head, Unusable):
                    payload = head
                elif (head.key.hex(), head.scope.hex(), head.tokens) == expected:
                    payload = read_payload(opened, head)
        except FileNotFoundError:
            pass  # another process has removed it
        except OSError:
            self._note_failure()
        if isinstance(payload, Unusable):
            self._drop({file.name})
            if payload is Unusable.DAMAGED:
                self._remove_damaged(file.name)
            return None
        with contextlib.suppress(OSError):
            os.utime(self._directory / file.name)
        with self._lock:
            self._hits += 1
        return payload

    def forget(self, file: StoredFile) -> None:
        """Remove a file, if it is still there."""
        self._remove(file.name)

    def statistics(self) -> DiskStatistics:
        """Return the store's numbers."""
        with self._lock:
            return DiskStatistics(
                self._max_bytes,
                entries=len(self._index),
                hits=self._hits,
                evictions=self._evictions,
                damaged=self._damaged,
                failures=self._failures,
            )

    def check(self) -> None:
        """Raise `PoolError` unless the index adds up."""
        with self._lock:
            self._index.check()

    def _renew_covering(self, scope: str, tokens: Sequence[int], *, whole: bool) -> bool:
        """Note that a file is used which holds as much as `tokens`; returns whether there is one."""
        while True:
            with self._lock:
                name = covering(self._index, scope, tokens, whole=whole)
            if name is None:
                return False
            try:
                os.utime(self._directory / name)
            except FileNotFoundError:  # another process has removed it
                self._drop({name})
            except OSError:
                return True
            else:
                return True

    def _write(self, scope: bytes, tokens: Sequence[int], payload: memoryview) -> None:
        """Write a file under another name first, so that nobody ever reads a part of it.

        It need not reach the disk before that: what a power failure leaves does not pass its checksums.
        """
        name = f"{self._prefix}{digest(scope + pack_tokens(tokens)).hex()[:32]}{SUFFIX}"
        descriptor, temporary = tempfile.mkstemp(UNFINISHED, self._prefix, self._directory)  # of mode 0600
        try:
            with open(descriptor, "wb") as file:
                write_state(file, self._key, scope, tokens, payload)
            os.replace(temporary, self._directory / name)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        with self._lock:
            if name not in self._index:
                self._index.insert(name, scope.hex(), tokens)

    def _make_room(self, size: int) -> bool:
        """Remove the files used longest ago until `size` more bytes fit, and read what is new.

        Returns whether they fit. Files that another process has not finished count as well: if it died, they are
        removed in their turn.
        """
        found = sorted(self._found(), key=lambda file: (file.used, file.name))
        excess = sum(file.size for file in found) + size - self._max_bytes
        gone = set()
        for file in found:
            if excess <= 0:
                break
            with contextlib.suppress(OSError):  # not ours to remove
                (self._directory / file.name).unlink(missing_ok=True)
                excess -= file.size
                gone.add(file.name)
        with self._lock:
            self._evictions += len(gone)
        self._refresh({file.name for file in found if file.name not in gone})
        return excess <= 0

    def _refresh(self, names: set[str]) -> None:
        """Bring the index up to date with the files that there are."""
        with self._lock:
            known = set(self._index.holders)
        self._drop(known - names)
        for name in sorted(names - known):
            if name.startswith(self._prefix) and name.endswith(SUFFIX):
                self._add(name)

    def _add(self, name: str) -> None:
        """Enter a file that is new to the index, unless it cannot be used."""
        try:
            with open(self._directory / name, "rb") as file:
                head = read_head(file)
        except OSError:
            return
        if head is Unusable.DAMAGED:
            self._remove_damaged(name)
        elif not isinstance(head, Unusable) and head.key == self._key:
            with self._lock:
                if name not in self._index:
                    self._index.insert(name, head.scope.hex(), head.tokens)

    def _found(self) -> list[_Found]:
        """List the files of stores of all keys, unfinished ones included."""
        found = []
        with os.scandir(self._directory) as entries:
            for entry in entries:
                if entry.name.endswith((SUFFIX, UNFINISHED)) and entry.is_file(follow_symlinks=False):
                    with contextlib.suppress(FileNotFoundError):
                        status = entry.stat(follow_symlinks=False)
                        found.append(_Found(status.st_mtime_ns, entry.name, status.st_size))
        return found

    def _remove(self, name: str) -> None:
        self._drop({name})
        with contextlib.suppress(OSError):  # gone, or not ours to remove
            (self._directory / name).unlink()

    def _remove_damaged(self, name: str) -> None:
        self._remove(name)
        with self._lock:
            self._damaged += 1

    def _note_failure(self) -> None:
        with self._lock:
            self._failures += 1

    def _drop(self, names: set[str]) -> None:
        """Forget files that are gone."""
        with self._lock:
            for name in names:
                if name in self._index:
                    self._index.remove(name)


def _usable(directory: Path) -> Path:
    """Return the directory, made if need be; raises `ConfigError` when it cannot be used."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = directory.stat().st_mode
        with tempfile.TemporaryFile(dir=directory):
            pass  # it can be written
    except OSError as error:
        raise _unusable(directory, error) from error
    if mode & stat.S_IWOTH:
        raise ConfigError(f"the directory {directory} for saved cells can be written by everybody: chmod o-w it")
    return directory


def _unusable(directory: Path, error: OSError) -> ConfigError:
    return ConfigError(f"the directory {directory} for saved cells cannot be used: {error.strerror}")

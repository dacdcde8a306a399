"""The folder in which files and batches are kept, which only one server at a time may use."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Collection
from pathlib import Path
from typing import IO, BinaryIO

from llamalane.errors import ConfigError

_PRIVATE = 0o700
"""Prompts and answers are nobody else's business."""


class BatchFolder:
    """A database, and the contents of files, each under its id; what is being written has a name of its own.

    A file is where it belongs only once all of it is on the disk, so that a kill leaves nothing but files that nobody
    knows, which `sweep` removes.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files = path / "files"
        self._lock: BinaryIO | None = None

    @property
    def database(self) -> Path:
        """Where the database is."""
        return self._path / "batches.sqlite3"

    def open(self) -> None:
        """Make the folder if it is not there, and keep others out; raises `ConfigError` when that cannot be done."""
        try:
            self._path.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
            self._files.mkdir(mode=_PRIVATE, exist_ok=True)
            lock = (self._path / "lock").open("ab")
        except OSError as error:
            raise ConfigError(f"the folder for batches cannot be used: {error}") from error
        if not lock_exclusively(lock):
            lock.close()
            message = "another server keeps its batches in this folder: each needs a folder of its own"
            raise ConfigError(message, source=str(self._path))
        self._lock = lock

    def close(self) -> None:
        """Let others in; closing twice is allowed."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def path(self, file_id: str) -> Path:
        """Return where the content of a file is."""
        return self._files / file_id

    def new_path(self) -> Path:
        """Return where a content can be written that will be kept, or not."""
        return self._files / f"{secrets.token_hex(12)}.part"

    def keep(self, written: Path, file_id: str) -> None:
        """Let what was written be the content of a file."""
        with written.open("rb+") as file:
            os.fsync(file.fileno())
        written.rename(self.path(file_id))
        folder = os.open(self._files, os.O_RDONLY)
        try:
            os.fsync(folder)
        except OSError as error:
            if error.errno != errno.EINVAL:  # some file systems keep their folders in order without
                raise
        finally:
            os.close(folder)

    def remove(self, file_id: str) -> None:
        """Remove the content of a file; it need not be there."""
        discard(self.path(file_id))

    def sweep(self, known: Collection[str]) -> None:
        """Remove the contents of all files but those `known`."""
        for path in self._files.iterdir():
            if path.name not in known:
                discard(path)


def discard(path: Path) -> None:
    """Remove a file; it need not be there."""
    with contextlib.suppress(FileNotFoundError):
        path.unlink()


def lock_exclusively(file: IO[bytes]) -> bool:
    """Keep other processes from locking an open file until it is closed; False when one of them has done so."""
    try:
        import fcntl  # noqa: PLC0415  (POSIX has it, Windows does not: there, nothing is locked)
    except ImportError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

"""The database of a folder of batches: opened, checked, and used by one thread at a time."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.to_thread

from llamalane.errors import BatchStoreError, ConfigError

APPLICATION = 0x11A3A0BA
"""Marks a file as ours (SQLite's `application_id`)."""
VERSION = 1
"""Counts the schemas; a file with a later one was written by a newer llamalane."""

_LOG_BYTES = 64 * 1024 * 1024
"""The log is cut to this length when what it holds has gone into the database."""

_SCHEMA = """
CREATE TABLE files (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    filename TEXT NOT NULL,
    purpose TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER
);
CREATE INDEX files_of_tenant ON files (tenant, number);
CREATE INDEX files_by_expiry ON files (expires_at) WHERE expires_at IS NOT NULL;

CREATE TABLE batches (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    key TEXT NOT NULL,
    most_urgent INTEGER NOT NULL,
    separate_users INTEGER NOT NULL,
    level INTEGER NOT NULL,
    endpoint TEXT NOT NULL,
    input_file_id TEXT NOT NULL,
    completion_window TEXT NOT NULL,
    metadata TEXT,
    output_seconds INTEGER,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    status TEXT NOT NULL,
    times TEXT NOT NULL,
    ended_at INTEGER,
    model TEXT,
    total INTEGER NOT NULL DEFAULT 0,
    completed INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    prompt_tokens INTEGER NOT NULL DEFAULT 0,
    cached_tokens INTEGER NOT NULL DEFAULT 0,
    completion_tokens INTEGER NOT NULL DEFAULT 0,
    output_file_id TEXT,
    error_file_id TEXT,
    errors TEXT
);
CREATE INDEX batches_of_tenant ON batches (tenant, number);
CREATE INDEX batches_under_way ON batches (input_file_id) WHERE ended_at IS NULL;
CREATE INDEX batches_by_end ON batches (ended_at) WHERE ended_at IS NOT NULL;

-- What came of the items of batches that have not ended; once they have, their output files hold it.
CREATE TABLE results (
    batch INTEGER NOT NULL REFERENCES batches (number) ON DELETE CASCADE,
    line INTEGER NOT NULL,
    succeeded INTEGER NOT NULL,
    text BLOB NOT NULL,
    PRIMARY KEY (batch, line)
);
"""

T = TypeVar("T")


class Database:
    """A database file, on whose connection everything runs one after the other, on worker threads.

    What was committed is on the disk, even if the machine fails: the file is written ahead to a log that is flushed at
    each commit.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._turn = anyio.CapacityLimiter(1)
        self._lock = threading.Lock()
        """For a thread that goes on although nobody waits for it any more."""

    async def open(self) -> None:
        """Open the file, or make it; raises `ConfigError` for one that cannot be used, and changes nothing then."""
        self._connection = await anyio.to_thread.run_sync(open_connection, self._path, limiter=self._turn)

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` in a transaction and return what it returns; what it raises undoes all that it did.

        A wait that is cancelled while `work` runs lets it finish. Raises `BatchStoreError` when the file cannot be
        read or written.
        """
        return await anyio.to_thread.run_sync(self._run, work, limiter=self._turn)

    async def shrink(self) -> None:
        """Give the room of what was deleted back to the disk."""
        await self.run(lambda connection: connection.execute("PRAGMA incremental_vacuum").fetchall())

    async def close(self) -> None:
        """Close the file; closing twice is allowed."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await anyio.to_thread.run_sync(connection.close, limiter=self._turn)

    def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        connection = self._connection
        if connection is None:
            raise BatchStoreError("the database of files and batches is closed")
        try:
            with self._lock, connection:
                connection.execute("BEGIN IMMEDIATE")
                return work(connection)
        except sqlite3.Error as error:
            raise BatchStoreError(f"the database of files and batches cannot be used: {error}") from error


def open_connection(path: Path) -> sqlite3.Connection:
    """Open a database, or make it; raises `ConfigError` for one that cannot be used."""
    connection: sqlite3.Connection | None = None
    try:
        # Which thread it is that uses it changes; that it is one at a time is for the caller to see to.
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        _prepare(connection, path)
    except sqlite3.Error as error:
        _close(connection)
        raise ConfigError(f"cannot use the database: {error}", source=str(path)) from error
    except BaseException:
        _close(connection)
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    [application] = connection.execute("PRAGMA application_id").fetchone()
    [version] = connection.execute("PRAGMA user_version").fetchone()
    [tables] = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application != APPLICATION and (application or version or tables):
        raise ConfigError("this is another application's database", source=str(path))
    if version > VERSION:
        message = f"a newer llamalane wrote this database: its schema is {version}, and {VERSION} is known here"
        raise ConfigError(message, source=str(path))
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA journal_size_limit = {_LOG_BYTES}")
    if version == 0:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # results come and go, and so should their room
    connection.execute("PRAGMA journal_mode = WAL")
    if version == 0:
        connection.executescript(
            f"BEGIN IMMEDIATE;{_SCHEMA}PRAGMA application_id = {APPLICATION};PRAGMA user_version = {VERSION};COMMIT;"
        )


def _close(connection: sqlite3.Connection | None) -> None:
    if connection is not None:
        connection.close()

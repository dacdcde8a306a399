"""The table of files. Every function is part of the transaction of the connection that it is given."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from llamalane.api.batches.pages import Page, page_query
from llamalane.api.batches.records import Purpose, StoredFile
from llamalane.errors import BatchConflictError, StorageLimitError, UnknownFileError

_COLUMNS = ("id", "tenant", "filename", "purpose", "bytes", "created_at", "expires_at")
_UNUSED = "NOT EXISTS (SELECT 1 FROM batches WHERE input_file_id = files.id AND ended_at IS NULL)"


@dataclass(frozen=True, slots=True)
class StorageLimits:
    """How many files a tenant may have, and how many bytes in all of them."""

    files: int
    bytes: int


def insert_file(connection: sqlite3.Connection, file: StoredFile, limits: StorageLimits | None = None) -> None:
    """Add a file; raises `StorageLimitError` when its tenant may not have it."""
    if limits is not None:
        check_room(connection, file.tenant, limits, file.bytes)
    values = [getattr(file, name) for name in _COLUMNS]
    marks = ", ".join("?" for _ in _COLUMNS)
    connection.execute(f"INSERT INTO files ({', '.join(_COLUMNS)}) VALUES ({marks})", values)


def check_room(connection: sqlite3.Connection, tenant: str, limits: StorageLimits, size: int) -> int:
    """Return how many bytes a tenant may store yet; raises `StorageLimitError` if not a file of `size` bytes."""
    query = "SELECT count(*), coalesce(sum(bytes), 0) FROM files WHERE tenant = ?"
    count, used = connection.execute(query, [tenant]).fetchone()
    if count >= limits.files:
        raise StorageLimitError(f"{count} files are stored, and at most {limits.files} can be: delete some")
    room: int = limits.bytes - used
    if size > room:
        raise StorageLimitError(
            f"the files that are stored have {used} bytes, and at most {limits.bytes} can be stored: there is no room "
            f"for {size} bytes more; delete some files"
        )
    return room


def find_file(
    connection: sqlite3.Connection, file_id: str, tenant: str | None, *, param: str | None = None
) -> StoredFile:
    """Return a file; raises `UnknownFileError` for one that is not there, or is another tenant's.

    `param` is what the client calls the id.
    """
    row = _named(connection).execute("SELECT * FROM files WHERE id = ?", [file_id]).fetchone()
    if row is None or tenant not in (None, row["tenant"]):
        raise UnknownFileError(file_id, param=param)
    return _file(row)


def list_files(connection: sqlite3.Connection, page: Page) -> tuple[list[StoredFile], bool]:
    """Return a page of files, and whether there are more; raises `UnknownFileError` for a page after no file."""
    if page.after is not None:
        find_file(connection, page.after, page.tenant, param="after")
    rows = _named(connection).execute(*page_query("files", page)).fetchall()
    return [_file(row) for row in rows[: page.limit]], len(rows) > page.limit


def delete_file(connection: sqlite3.Connection, file_id: str, tenant: str | None) -> None:
    """Remove a file.

    Raises `UnknownFileError` for one that is not there, or is another tenant's, and `BatchConflictError` for one that
    a batch needs that has not ended.
    """
    find_file(connection, file_id, tenant)
    query = "SELECT id FROM batches WHERE input_file_id = ? AND ended_at IS NULL"
    user = connection.execute(query, [file_id]).fetchone()
    if user is not None:
        raise BatchConflictError(
            f"file {file_id} is the input of batch {user[0]}, which has not ended: cancel it first"
        )
    connection.execute("DELETE FROM files WHERE id = ?", [file_id])


def delete_expired_files(connection: sqlite3.Connection, now: int) -> Sequence[str]:
    """Remove the files whose time is over, but for inputs of batches that have not ended; return their ids."""
    query = f"SELECT id FROM files WHERE expires_at <= ? AND {_UNUSED}"
    ids = [file_id for [file_id] in connection.execute(query, [now])]
    connection.executemany("DELETE FROM files WHERE id = ?", [[file_id] for file_id in ids])
    return ids


def next_file_expiry(connection: sqlite3.Connection) -> int | None:
    """Return when the next file will have to be removed, as far as that can be told."""
    expiry: int | None
    [expiry] = connection.execute(f"SELECT min(expires_at) FROM files WHERE {_UNUSED}").fetchone()
    return expiry


def all_file_ids(connection: sqlite3.Connection) -> set[str]:
    """Return the ids of all files."""
    return {file_id for [file_id] in connection.execute("SELECT id FROM files")}


def _named(connection: sqlite3.Connection) -> sqlite3.Cursor:
    cursor = connection.cursor()
    cursor.row_factory = sqlite3.Row
    return cursor


def _file(row: sqlite3.Row) -> StoredFile:
    values = {name: row[name] for name in _COLUMNS}
    return StoredFile(**{**values, "purpose": Purpose(row["purpose"])})

"""The tables of batches and of their items' results. Every function is part of its connection's transaction.

A batch changes its status here only, and only from one that allows it, so that whoever comes second finds out.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from llamalane.api.batches.file_rows import find_file, insert_file
from llamalane.api.batches.pages import Page, page_query
from llamalane.api.batches.records import (
    NO_USAGE,
    Batch,
    BatchError,
    BatchOrder,
    BatchStatus,
    ItemUsage,
    Purpose,
    StoredFile,
)
from llamalane.errors import BatchConflictError, InvalidRequestError, StorageLimitError, UnknownBatchError
from llamalane.ids import Level

_ORDER = tuple(field.name for field in fields(BatchOrder))
_CANCELLABLE = frozenset({BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS})


@dataclass(frozen=True, slots=True)
class ItemResult:
    """What came of one item: its line in the input, and the line of the output that tells it."""

    line: int
    succeeded: bool
    text: bytes
    usage: ItemUsage = NO_USAGE


def insert_batch(connection: sqlite3.Connection, order: BatchOrder, most_under_way: int) -> Batch:
    """Add a batch that is to be validated.

    Raises `UnknownFileError` for an input that is not there, `InvalidRequestError` for one that is no input, and
    `StorageLimitError` when the tenant has `most_under_way` batches that have not ended.
    """
    source = find_file(connection, order.input_file_id, order.tenant, param="input_file_id")
    if source.purpose is not Purpose.BATCH:
        raise InvalidRequestError(f"file {source.id} is the output of a batch, and no input", param="input_file_id")
    query = "SELECT count(*) FROM batches WHERE tenant = ? AND ended_at IS NULL"
    [count] = connection.execute(query, [order.tenant]).fetchone()
    if count >= most_under_way:
        raise StorageLimitError(
            f"{count} batches have not ended, and at most {most_under_way} can be under way: wait for one, or cancel it"
        )
    values: dict[str, Any] = {name: getattr(order, name) for name in _ORDER}
    values["metadata"] = None if order.metadata is None else json.dumps(order.metadata)
    values |= {"status": BatchStatus.VALIDATING, "times": "{}"}
    names = ", ".join(values)
    marks = ", ".join(f":{name}" for name in values)
    connection.execute(f"INSERT INTO batches ({names}) VALUES ({marks})", values)
    return find_batch(connection, order.id, order.tenant)


def find_batch(connection: sqlite3.Connection, batch_id: str, tenant: str | None, *, param: str | None = None) -> Batch:
    """Return a batch; raises `UnknownBatchError` for one that is not there, or is another tenant's.

    `param` is what the client calls the id.
    """
    row = _named(connection).execute("SELECT * FROM batches WHERE id = ?", [batch_id]).fetchone()
    if row is None or tenant not in (None, row["tenant"]):
        raise UnknownBatchError(batch_id, param=param)
    return _batch(row)


def list_batches(connection: sqlite3.Connection, page: Page) -> tuple[list[Batch], bool]:
    """Return a page of batches, and whether there are more; raises `UnknownBatchError` for a page after no batch."""
    if page.after is not None:
        find_batch(connection, page.after, page.tenant, param="after")
    rows = _named(connection).execute(*page_query("batches", page)).fetchall()
    return [_batch(row) for row in rows[: page.limit]], len(rows) > page.limit


def batches_under_way(connection: sqlite3.Connection) -> list[Batch]:
    """Return the batches that have not ended, the oldest first."""
    query = "SELECT * FROM batches WHERE ended_at IS NULL ORDER BY number"
    return [_batch(row) for row in _named(connection).execute(query)]


def count_batches(connection: sqlite3.Connection) -> Counter[BatchStatus]:
    """Return how many batches have each status."""
    rows = connection.execute("SELECT status, count(*) FROM batches GROUP BY status")
    return Counter({BatchStatus(status): count for status, count in rows})


def start_batch(connection: sqlite3.Connection, batch: Batch, total: int, model: str | None, now: int) -> Batch:
    """Let the items of a batch begin; raises `BatchConflictError` when it is no longer being validated."""
    allowed = {BatchStatus.VALIDATING}
    return _move(connection, batch, allowed, BatchStatus.IN_PROGRESS, now, total=total, model=model)


def fail_batch(connection: sqlite3.Connection, batch: Batch, errors: Sequence[BatchError], now: int) -> Batch:
    """End a batch whose input cannot be used; raises `BatchConflictError` when it is no longer being validated."""
    told = json.dumps([asdict(error) for error in errors])
    return _move(connection, batch, {BatchStatus.VALIDATING}, BatchStatus.FAILED, now, errors=told)


def begin_finalizing(connection: sqlite3.Connection, batch: Batch, now: int) -> Batch:
    """Note that all items have been run; raises `BatchConflictError` when the batch is not running."""
    return _move(connection, batch, {BatchStatus.IN_PROGRESS}, BatchStatus.FINALIZING, now)


def cancel_batch(connection: sqlite3.Connection, batch_id: str, tenant: str | None, now: int) -> Batch:
    """Let a batch be cancelled; one that already is stays as it is.

    Raises `UnknownBatchError`, and `BatchConflictError` for one that has ended or is about to.
    """
    batch = find_batch(connection, batch_id, tenant)
    if batch.status in (BatchStatus.CANCELLING, BatchStatus.CANCELLED):
        return batch
    return _move(connection, batch, _CANCELLABLE, BatchStatus.CANCELLING, now)


_ENDINGS: Mapping[BatchStatus, Collection[BatchStatus]] = {
    BatchStatus.COMPLETED: {BatchStatus.FINALIZING},
    BatchStatus.EXPIRED: {BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS},
    BatchStatus.CANCELLED: {BatchStatus.CANCELLING},
}


def end_batch(
    connection: sqlite3.Connection,
    batch: Batch,
    ending: BatchStatus,
    now: int,
    *,
    output: StoredFile | None,
    errors: StoredFile | None,
) -> Batch:
    """End a batch with the files of its results, which are kept nowhere else from then on.

    Raises `BatchConflictError` when its status does not lead to `ending`.
    """
    for file in (output, errors):
        if file is not None:
            insert_file(connection, file)
    connection.execute("DELETE FROM results WHERE batch = ?", [batch.number])
    ids = {"output_file_id": output and output.id, "error_file_id": errors and errors.id}
    return _move(connection, batch, _ENDINGS[ending], ending, now, **ids)


def record_result(connection: sqlite3.Connection, batch: Batch, result: ItemResult) -> bool:
    """Note what came of an item; False, and nothing changes, if that is known already or the batch does not run."""
    values = [batch.number, result.line, result.succeeded, result.text, batch.number, BatchStatus.IN_PROGRESS]
    query = (
        "INSERT OR IGNORE INTO results (batch, line, succeeded, text) SELECT ?, ?, ?, ? "
        "WHERE EXISTS (SELECT 1 FROM batches WHERE number = ? AND status = ?)"
    )
    if not connection.execute(query, values).rowcount:
        return False
    usage = result.usage
    connection.execute(
        "UPDATE batches SET completed = completed + ?, failed = failed + ?, prompt_tokens = prompt_tokens + ?, "
        "cached_tokens = cached_tokens + ?, completion_tokens = completion_tokens + ? WHERE number = ?",
        [
            *(result.succeeded, not result.succeeded),
            *(usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens, batch.number),
        ],
    )
    return True


def finished_lines(connection: sqlite3.Connection, batch: Batch) -> set[int]:
    """Return the lines of the input whose results are known."""
    return {line for [line] in connection.execute("SELECT line FROM results WHERE batch = ?", [batch.number])}


def forget_batches(connection: sqlite3.Connection, ended_before: int) -> Counter[BatchStatus]:
    """Remove the batches that ended before or at that time, and return how many there were of each status."""
    query = "SELECT status, count(*) FROM batches WHERE ended_at <= ? GROUP BY status"
    counts = Counter({BatchStatus(status): count for status, count in connection.execute(query, [ended_before])})
    connection.execute("DELETE FROM batches WHERE ended_at <= ?", [ended_before])
    return counts


def first_end(connection: sqlite3.Connection) -> int | None:
    """Return when the first of the batches that have ended did so."""
    end: int | None
    [end] = connection.execute("SELECT min(ended_at) FROM batches").fetchone()
    return end


def _move(
    connection: sqlite3.Connection,
    batch: Batch,
    allowed: Collection[BatchStatus],
    status: BatchStatus,
    now: int,
    **changes: object,
) -> Batch:
    """Give a batch another status, and note when."""
    current = find_batch(connection, batch.id, None)
    if current.status not in allowed:
        raise BatchConflictError(f"batch {batch.id} is {current.status}, and cannot become {status}")
    values = {
        **changes,
        "status": status,
        "times": json.dumps({**current.times, status: now}),
        "ended_at": now if status.ended else None,
    }
    assignments = ", ".join(f"{name} = :{name}" for name in values)
    connection.execute(f"UPDATE batches SET {assignments} WHERE id = :id", {**values, "id": batch.id})
    return find_batch(connection, batch.id, None)


def _named(connection: sqlite3.Connection) -> sqlite3.Cursor:
    cursor = connection.cursor()
    cursor.row_factory = sqlite3.Row
    return cursor


def _batch(row: sqlite3.Row) -> Batch:
    order: dict[str, Any] = {name: row[name] for name in _ORDER}
    order |= {
        "most_urgent": Level(row["most_urgent"]),
        "level": Level(row["level"]),
        "separate_users": bool(row["separate_users"]),
        "metadata": None if row["metadata"] is None else json.loads(row["metadata"]),
    }
    return Batch(
        number=row["number"],
        order=BatchOrder(**order),
        status=BatchStatus(row["status"]),
        times=json.loads(row["times"]),
        model=row["model"],
        total=row["total"],
        completed=row["completed"],
        failed=row["failed"],
        usage=ItemUsage(row["prompt_tokens"], row["cached_tokens"], row["completion_tokens"]),
        output_file_id=row["output_file_id"],
        error_file_id=row["error_file_id"],
        errors=tuple(BatchError(**error) for error in json.loads(row["errors"] or "[]")),
    )

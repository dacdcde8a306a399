"""The files that tell what came of a batch."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from llamalane.api.batch import error_line
from llamalane.api.batches.input import BatchInput, BatchTask, FinishedWork
from llamalane.api.batches.records import Batch, Purpose, StoredFile, new_file_id


@dataclass(frozen=True, slots=True)
class Unserved:
    """Why the items that have no result were not served."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Written:
    """How many bytes the answers have, and the errors: of items, and of those that were not served."""

    answers: int
    errors: int


def write_outputs(
    database: Path, batch: Batch, source: Path, answers: Path, errors: Path, unserved: Unserved | None
) -> Written:
    """Write the results of a batch, in the order of its input, and then the items that are `unserved`.

    Runs on a worker thread, with a connection of its own, which keeps nobody else waiting.
    """
    with answers.open("xb") as good, errors.open("xb") as bad:
        done = set[int]()
        for line, succeeded, text in _results(database, batch):
            (good if succeeded else bad).write(text)
            done.add(line)
        if unserved is not None:
            for task in _remaining(source, done):
                bad.write(error_line(task.custom_id, {"code": unserved.code, "message": unserved.message}))
        return Written(good.tell(), bad.tell())


def _results(database: Path, batch: Batch) -> Iterator[tuple[int, bool, bytes]]:
    with contextlib.closing(sqlite3.connect(database)) as connection:
        query = "SELECT line, succeeded, text FROM results WHERE batch = ? ORDER BY line"
        yield from connection.execute(query, [batch.number])


def _remaining(source: Path, done: set[int]) -> Iterator[BatchTask]:
    if not source.exists():  # whoever removed it behind our back took the names of its items away
        return
    with source.open("rb") as file:
        entries = BatchInput(file, FinishedWork(lines=done))
        while (entry := entries.next()) is not None:
            if isinstance(entry, BatchTask):
                yield entry


def output_file(batch: Batch, what: str, size: int, now: int, kept_until: int | None) -> StoredFile | None:
    """Return the record of a file of `size` bytes with a batch's output or errors; None for an empty one."""
    if not size:
        return None
    return StoredFile(
        id=new_file_id(),
        tenant=batch.order.tenant,
        filename=f"{batch.id}_{what}.jsonl",
        purpose=Purpose.BATCH_OUTPUT,
        bytes=size,
        created_at=now,
        expires_at=kept_until,
    )

"""A store of files and batches, and what to put into it."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from llamalane.api.batches.batch_rows import ItemResult
from llamalane.api.batches.file_rows import StorageLimits
from llamalane.api.batches.records import Batch, BatchOrder, ItemUsage, Purpose, StoredFile, new_batch_id, new_file_id
from llamalane.api.batches.store import BatchStore
from llamalane.ids import Level

NOW = 1_800_000_000
LIMITS = StorageLimits(files=1000, bytes=10**9)
COMPLETIONS = "/v1/completions"
_NAMES = itertools.count()


@contextlib.asynccontextmanager
async def opened(folder: Path, kind: type[BatchStore] = BatchStore) -> AsyncIterator[BatchStore]:
    store = kind(folder)
    async with store.opened():
        yield store


def file_of(data: bytes, *, tenant: str = "", created: int = NOW, expires: int | None = None) -> StoredFile:
    name = f"tasks-{next(_NAMES)}.jsonl"
    return StoredFile(new_file_id(), tenant, name, Purpose.BATCH, len(data), created, expires)


async def add_file(
    store: BatchStore, data: bytes = b"", *, limits: StorageLimits = LIMITS, **fields: Any
) -> StoredFile:
    file = file_of(data, **fields)
    async with store.writing() as path:
        path.write_bytes(data)
        await store.add_file(path, file, limits)
    return file


def order_of(source: StoredFile, **changes: Any) -> BatchOrder:
    fields: dict[str, Any] = {
        "id": new_batch_id(),
        "tenant": source.tenant,
        "key": source.tenant,
        "most_urgent": Level(1),
        "separate_users": False,
        "level": Level(5),
        "endpoint": COMPLETIONS,
        "input_file_id": source.id,
        "completion_window": "24h",
        "metadata": None,
        "output_seconds": None,
        "created_at": NOW,
        "expires_at": NOW + 24 * 3600,
    }
    return BatchOrder(**{**fields, **changes})


async def add_batch(store: BatchStore, data: bytes = b"", *, tenant: str = "", **changes: Any) -> Batch:
    source = await add_file(store, data, tenant=tenant)
    return await store.add_batch(order_of(source, **changes), most_under_way=100)


def result(line: int, *, succeeded: bool = True, text: bytes | None = None) -> ItemResult:
    usage = ItemUsage(5, 2, 3) if succeeded else ItemUsage()
    return ItemResult(line, succeeded, f"result {line}\n".encode() if text is None else text, usage)


async def limit_database(store: BatchStore, pages: int) -> None:
    """Let the database have so many pages, or as many as it has: then it is as if the disk were full."""
    await store._database.run(lambda rows: rows.execute(f"PRAGMA max_page_count = {pages}").fetchall())

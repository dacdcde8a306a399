"""Files and batches on the disk: their records in a database, their contents beside it."""

from __future__ import annotations

import contextlib
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.to_thread

from llamalane.api.batches import batch_rows, file_rows
from llamalane.api.batches.batch_rows import ItemResult
from llamalane.api.batches.database import Database
from llamalane.api.batches.file_rows import StorageLimits
from llamalane.api.batches.folder import BatchFolder, discard
from llamalane.api.batches.output import Unserved, output_file, write_outputs
from llamalane.api.batches.pages import Page
from llamalane.api.batches.records import Batch, BatchError, BatchOrder, BatchStatus, StoredFile
from llamalane.errors import BatchStoreError, LlamalaneError

T = TypeVar("T")


class BatchStore:
    """What is kept of files and batches, in a folder; open for as long as the block of `opened` lasts.

    `tenant`, wherever it is asked for, says whose file or batch it may be; None for anybody's. All times are in
    seconds since 1970. Whatever reads or writes raises `BatchStoreError` when that fails.
    """

    def __init__(self, path: Path) -> None:
        self.statuses: Counter[BatchStatus] = Counter()
        """How many batches have each status."""
        self._folder = BatchFolder(path)
        self._database = Database(self._folder.database)
        self._expiry_changed = anyio.Event()
        self._one_writer = anyio.CapacityLimiter(1)
        """Of outputs: two at once would take twice as much from whatever else runs."""

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Open the folder; raises `ConfigError` when it cannot be used."""
        await anyio.to_thread.run_sync(self._folder.open)
        try:
            await self._database.open()
            known = await self._database.run(file_rows.all_file_ids)
            await self._touch(partial(self._folder.sweep, known))
            self.statuses = await self._database.run(batch_rows.count_batches)
            yield
        finally:
            with anyio.CancelScope(shield=True):
                await self._database.close()
                await anyio.to_thread.run_sync(self._folder.close)

    def path(self, file_id: str) -> Path:
        """Return where the content of a file is."""
        return self._folder.path(file_id)

    @contextlib.asynccontextmanager
    async def writing(self) -> AsyncIterator[Path]:
        """Lend a path at which a content can be written; what is still there at the end of the block is removed."""
        path = self._folder.new_path()
        try:
            yield path
        finally:
            with anyio.CancelScope(shield=True):
                await self._touch(partial(discard, path))

    async def check_room(self, tenant: str, limits: StorageLimits) -> int:
        """Return how many bytes a tenant may store yet; raises `StorageLimitError` if it may have no more files."""
        return await self._database.run(lambda rows: file_rows.check_room(rows, tenant, limits, size=0))

    async def add_file(self, written: Path, file: StoredFile, limits: StorageLimits) -> None:
        """Keep what was written as a file; raises `StorageLimitError` when its tenant may not have it."""
        await self._touch(partial(self._folder.keep, written, file.id))
        await self._keeping([file], lambda rows: file_rows.insert_file(rows, file, limits))
        self._expiry_changed.set()

    async def find_file(self, file_id: str, tenant: str | None) -> StoredFile:
        """Return a file; raises `UnknownFileError`."""
        return await self._database.run(lambda rows: file_rows.find_file(rows, file_id, tenant))

    async def list_files(self, page: Page) -> tuple[list[StoredFile], bool]:
        """Return a page of files, and whether there are more; raises `UnknownFileError` for a page after no file."""
        return await self._database.run(lambda rows: file_rows.list_files(rows, page))

    async def delete_file(self, file_id: str, tenant: str | None) -> None:
        """Remove a file; raises `UnknownFileError`, and `BatchConflictError` for the input of a batch under way."""
        await self._database.run(lambda rows: file_rows.delete_file(rows, file_id, tenant))
        await self._touch(partial(self._folder.remove, file_id))

    async def delete_expired(self, now: int, retention: float | None) -> Sequence[str]:
        """Remove the files whose time is over, and the batches that ended too long ago; return the files' ids."""
        ids = await self._database.run(lambda rows: file_rows.delete_expired_files(rows, now))
        for file_id in ids:
            await self._touch(partial(self._folder.remove, file_id))
        if retention is not None:
            await self._change(lambda rows: batch_rows.forget_batches(rows, int(now - retention)))
        return ids

    async def next_expiry(self, retention: float | None) -> float | None:
        """Return when the next file or batch will have to be removed; None while none has to be."""
        times: list[float | None] = [await self._database.run(file_rows.next_file_expiry)]
        if retention is not None:
            end = await self._database.run(batch_rows.first_end)
            times.append(None if end is None else end + retention)
        return min((time for time in times if time is not None), default=None)

    async def wait_for_other_expiry(self) -> None:
        """Wait until something has changed about what expires when."""
        await self._expiry_changed.wait()
        self._expiry_changed = anyio.Event()

    async def add_batch(self, order: BatchOrder, most_under_way: int) -> Batch:
        """Add a batch that is to be validated; raises what `insert_batch` raises."""
        return await self._change(lambda rows: batch_rows.insert_batch(rows, order, most_under_way))

    async def find_batch(self, batch_id: str, tenant: str | None) -> Batch:
        """Return a batch; raises `UnknownBatchError`."""
        return await self._database.run(lambda rows: batch_rows.find_batch(rows, batch_id, tenant))

    async def list_batches(self, page: Page) -> tuple[list[Batch], bool]:
        """Return a page of batches, and whether there are more; raises `UnknownBatchError` for one after no batch."""
        return await self._database.run(lambda rows: batch_rows.list_batches(rows, page))

    async def batches_under_way(self) -> list[Batch]:
        """Return the batches that have not ended, the oldest first."""
        return await self._database.run(batch_rows.batches_under_way)

    async def start_batch(self, batch: Batch, total: int, model: str | None, now: int) -> Batch:
        """Let the items of a batch begin; raises `BatchConflictError` when it is no longer being validated."""
        return await self._change(lambda rows: batch_rows.start_batch(rows, batch, total, model, now))

    async def fail_batch(self, batch: Batch, errors: Sequence[BatchError], now: int) -> Batch:
        """End a batch whose input cannot be used; raises `BatchConflictError` when it is no longer being validated."""
        return await self._change(lambda rows: batch_rows.fail_batch(rows, batch, errors, now))

    async def cancel_batch(self, batch_id: str, tenant: str | None, now: int) -> Batch:
        """Let a batch be cancelled; raises `UnknownBatchError`, and `BatchConflictError` when it is too late."""
        return await self._change(lambda rows: batch_rows.cancel_batch(rows, batch_id, tenant, now))

    async def begin_finalizing(self, batch: Batch, now: int) -> Batch:
        """Note that all items have been run; raises `BatchConflictError` when the batch is not running."""
        return await self._change(lambda rows: batch_rows.begin_finalizing(rows, batch, now))

    async def record_result(self, batch: Batch, result: ItemResult) -> bool:
        """Note what came of an item; False when that is known already, or the batch does not run."""
        return await self._database.run(lambda rows: batch_rows.record_result(rows, batch, result))

    async def finished_lines(self, batch: Batch) -> set[int]:
        """Return the lines of the input whose results are known."""
        return await self._database.run(lambda rows: batch_rows.finished_lines(rows, batch))

    async def end_batch(
        self, batch: Batch, ending: BatchStatus, now: int, *, kept_until: int | None, unserved: Unserved | None = None
    ) -> Batch:
        """Write the results of a batch, and the items that are `unserved`, to files, and end it.

        The files are removed after `kept_until`. A kill in the middle leaves the batch as it was. Raises
        `BatchConflictError` when its status does not lead to `ending`.
        """
        source = self._folder.path(batch.order.input_file_id)
        async with self.writing() as answers, self.writing() as errors:
            write = partial(write_outputs, self._folder.database, batch, source, answers, errors, unserved)
            sizes = await self._touch(write, self._one_writer)
            output = output_file(batch, "output", sizes.answers, now, kept_until)
            failures = output_file(batch, "error", sizes.errors, now, kept_until)
            for path, file in ((answers, output), (errors, failures)):
                if file is not None:
                    await self._touch(partial(self._folder.keep, path, file.id))
            ended = await self._keeping(
                [file for file in (output, failures) if file is not None],
                lambda rows: batch_rows.end_batch(rows, batch, ending, now, output=output, errors=failures),
            )
        await self._database.shrink()
        return ended

    async def _keeping(self, files: Sequence[StoredFile], work: Callable[[sqlite3.Connection], T]) -> T:
        """Run what records files whose contents are there already; if it is refused, they are removed."""
        try:
            return await self._change(work)
        except LlamalaneError:  # after a cancellation, they may be recorded all the same
            for file in files:
                await self._touch(partial(self._folder.remove, file.id))
            raise

    async def _change(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run what may change how many batches have which status, and count them anew."""
        before = self.statuses
        changed, self.statuses = await self._database.run(lambda rows: (work(rows), batch_rows.count_batches(rows)))
        if self.statuses != before:
            self._expiry_changed.set()
        return changed

    async def _touch(self, work: Callable[[], T], limiter: anyio.CapacityLimiter | None = None) -> T:
        """Run what uses the folder on a worker thread."""
        try:
            return await anyio.to_thread.run_sync(work, limiter=limiter)
        except (OSError, sqlite3.Error) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise BatchStoreError(f"the folder of files and batches cannot be used: {reason}") from error

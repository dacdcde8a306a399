"""Files and batches on the disk."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import anyio
import pytest

from llamalane.api.batches.file_rows import StorageLimits
from llamalane.api.batches.output import Unserved
from llamalane.api.batches.pages import Page
from llamalane.api.batches.records import Batch, BatchError, BatchStatus, ItemUsage
from llamalane.api.batches.store import BatchStore
from llamalane.errors import (
    BatchConflictError,
    BatchStoreError,
    ConfigError,
    InvalidRequestError,
    StorageLimitError,
    UnknownBatchError,
    UnknownFileError,
)
from tests.api.batches.lines import jsonl, record
from tests.api.batches.storing import (
    LIMITS,
    NOW,
    add_batch,
    add_file,
    file_of,
    limit_database,
    opened,
    order_of,
    result,
)

pytestmark = pytest.mark.anyio


async def running_batch(store: BatchStore, data: bytes = b"", total: int = 3) -> Batch:
    return await store.start_batch(await add_batch(store, data), total, "tiny", NOW + 1)


async def test_files_are_kept_and_found_by_their_tenant_only(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        file = await add_file(store, b"hello", tenant="alice")
    async with opened(tmp_path) as store:
        for tenant in ("alice", None):
            assert await store.find_file(file.id, tenant) == file
        assert store.path(file.id).read_bytes() == b"hello"
        for file_id, tenant in ((file.id, "bob"), ("file-none", "alice"), ("file-none", None)):
            with pytest.raises(UnknownFileError):
                await store.find_file(file_id, tenant)
            with pytest.raises(UnknownFileError):
                await store.delete_file(file_id, tenant)
        await store.delete_file(file.id, "alice")
        assert not store.path(file.id).exists()
        with pytest.raises(UnknownFileError):
            await store.find_file(file.id, "alice")


async def test_lists_come_in_pages(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        files = [await add_file(store, tenant="alice") for _ in range(3)]
        other = await add_file(store, tenant="bob")

        async def page(limit: int, **options: object) -> tuple[list[int], bool]:
            found, more = await store.list_files(Page(limit, **options))  # type: ignore[arg-type]
            return [[*files, other].index(file) for file in found], more

        assert await page(10) == ([3, 2, 1, 0], False)
        assert await page(2, tenant="alice") == ([2, 1], True)
        assert await page(2, tenant="alice", after=files[1].id) == ([0], False)
        assert await page(2, tenant="alice", descending=False) == ([0, 1], True)
        assert await page(3, tenant="alice", descending=False) == ([0, 1, 2], False)
        assert await page(3, descending=False, after=files[1].id) == ([2, 3], False)
        assert await page(3, purpose="batch_output") == ([], False)
        assert await page(3, purpose="batch", tenant="bob") == ([3], False)
        with pytest.raises(UnknownFileError):
            await page(2, tenant="alice", after=other.id)
        batches = [await add_batch(store, tenant=tenant) for tenant in ("alice", "bob", "alice")]
        assert await store.list_batches(Page(1, tenant="alice")) == ([batches[2]], True)
        assert await store.list_batches(Page(1, tenant="alice", after=batches[2].id)) == ([batches[0]], False)
        with pytest.raises(UnknownBatchError):
            await store.list_batches(Page(1, tenant="alice", after=batches[1].id))


async def test_a_tenant_may_store_so_much_and_no_more(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        limits = StorageLimits(files=2, bytes=10)
        await add_file(store, b"12345678", limits=limits, tenant="alice")
        assert await store.check_room("alice", limits) == 2
        with pytest.raises(StorageLimitError, match="8 bytes, and at most 10 can be stored: there is no room for 3 "):
            await add_file(store, b"123", limits=limits, tenant="alice")
        await add_file(store, b"123", limits=limits, tenant="bob")
        last = await add_file(store, b"12", limits=limits, tenant="alice")
        with pytest.raises(StorageLimitError, match="2 files are stored, and at most 2 can be"):
            await store.check_room("alice", limits)
        with pytest.raises(StorageLimitError):
            await add_file(store, b"", limits=limits, tenant="alice")
        await store.delete_file(last.id, "alice")
        await add_file(store, b"12", limits=limits, tenant="alice")
        assert len(list((tmp_path / "files").iterdir())) == 3


async def test_what_a_kill_left_behind_is_removed_and_nothing_else(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        file = await add_file(store, b"hello")
    for name in ("0123.part", "file-unknown"):
        (tmp_path / "files" / name).write_bytes(b"x")
    async with opened(tmp_path):
        assert [path.name for path in (tmp_path / "files").iterdir()] == [file.id]


async def test_a_path_that_was_lent_is_cleared(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        with anyio.CancelScope() as scope:
            async with store.writing() as path:
                path.write_bytes(b"x")
                scope.cancel()
                await anyio.lowlevel.checkpoint()
        assert scope.cancelled_caught
        assert list((tmp_path / "files").iterdir()) == []


async def test_only_one_server_at_a_time_may_use_a_folder(tmp_path: Path) -> None:
    async with opened(tmp_path):
        with pytest.raises(ConfigError, match="another server keeps its batches in this folder"):
            async with opened(tmp_path):
                pass
    async with opened(tmp_path):
        pass


async def test_others_cannot_read_the_folder(tmp_path: Path) -> None:
    async with opened(tmp_path / "new" / "folder"):
        assert (tmp_path / "new" / "folder").stat().st_mode & 0o077 == 0


async def test_a_folder_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"the folder for batches cannot be used: .*file"):
        async with opened(tmp_path / "file"):
            pass


async def test_a_file_that_cannot_be_kept_is_told(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        with pytest.raises(BatchStoreError, match="No such file or directory"):
            await store.add_file(tmp_path / "missing", file_of(b""), LIMITS)
        assert await store.list_files(Page(10)) == ([], False)


async def test_a_batch_is_kept_with_all_that_was_asked_for(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        changes: dict[str, Any] = {"metadata": {"a": "b"}, "output_seconds": 3600, "separate_users": True, "level": 4}
        batch = await add_batch(store, tenant="alice", **changes)
        assert batch.status is BatchStatus.VALIDATING
    async with opened(tmp_path) as store:
        assert store.statuses == {BatchStatus.VALIDATING: 1}
        assert await store.find_batch(batch.id, "alice") == batch
        assert (batch.order.metadata, batch.order.separate_users, batch.order.level) == ({"a": "b"}, True, 4)
        for batch_id, tenant in ((batch.id, "bob"), ("batch_none", None)):
            with pytest.raises(UnknownBatchError):
                await store.find_batch(batch_id, tenant)
            with pytest.raises(UnknownBatchError):
                await store.cancel_batch(batch_id, tenant, NOW)


async def test_a_batch_needs_an_input_of_its_tenant(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        file = await add_file(store, tenant="alice")
        with pytest.raises(UnknownFileError):
            await store.add_batch(order_of(file, tenant="bob"), 100)
        batch = await running_batch(store)
        await store.record_result(batch, result(1))
        batch = await store.begin_finalizing(batch, NOW)
        ended = await store.end_batch(batch, BatchStatus.COMPLETED, NOW, kept_until=None)
        assert ended.output_file_id is not None
        output = await store.find_file(ended.output_file_id, None)
        with pytest.raises(InvalidRequestError, match="is the output of a batch, and no input"):
            await store.add_batch(order_of(output), 100)


async def test_a_tenant_may_have_so_many_batches_under_way(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        batch = await add_batch(store, tenant="alice")
        source = await add_file(store, tenant="alice")
        with pytest.raises(StorageLimitError, match="1 batches have not ended, and at most 1 can be under way"):
            await store.add_batch(order_of(source), most_under_way=1)
        await store.fail_batch(batch, [BatchError("empty_file", "no")], NOW)
        await store.add_batch(order_of(source), most_under_way=1)


async def test_results_are_recorded_once_and_survive(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        batch = await running_batch(store)
        assert await store.record_result(batch, result(1))
        assert await store.record_result(batch, result(3, succeeded=False))
        assert not await store.record_result(batch, result(1, text=b"another"))
        assert not await store.record_result(batch, result(1, succeeded=False))
    async with opened(tmp_path) as store:
        assert await store.finished_lines(batch) == {1, 3}
        [batch] = await store.batches_under_way()
        assert (batch.total, batch.completed, batch.failed, batch.usage) == (3, 1, 1, ItemUsage(5, 2, 3))
        assert (batch.model, batch.times) == ("tiny", {"in_progress": NOW + 1})


async def test_a_finished_batch_has_its_results_in_files_and_nowhere_else(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        batch = await running_batch(store)
        for line in (3, 1):
            await store.record_result(batch, result(line))
        await store.record_result(batch, result(2, succeeded=False))
        batch = await store.begin_finalizing(batch, NOW + 2)
        ended = await store.end_batch(batch, BatchStatus.COMPLETED, NOW + 3, kept_until=NOW + 9)
        assert (ended.status, ended.times["completed"]) == (BatchStatus.COMPLETED, NOW + 3)
        assert ended.output_file_id is not None
        assert ended.error_file_id is not None
        assert store.path(ended.output_file_id).read_bytes() == b"result 1\nresult 3\n"
        assert store.path(ended.error_file_id).read_bytes() == b"result 2\n"
        output = await store.find_file(ended.output_file_id, "")
        assert (output.purpose, output.bytes, output.filename) == ("batch_output", 18, f"{batch.id}_output.jsonl")
        assert (output.created_at, output.expires_at) == (NOW + 3, NOW + 9)
        assert await store.finished_lines(batch) == set()
        assert await store.batches_under_way() == []
        assert store.statuses == {BatchStatus.COMPLETED: 1}
        assert not await store.record_result(ended, result(2))
        assert len(list((tmp_path / "files").iterdir())) == 3


async def test_items_that_were_not_served_are_among_the_errors(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        batch = await running_batch(store, jsonl(*map(record, "abc")))
        await store.record_result(batch, result(2))
        await store.cancel_batch(batch.id, "", NOW)
        unserved = Unserved("batch_cancelled", "why")
        ended = await store.end_batch(batch, BatchStatus.CANCELLED, NOW, kept_until=None, unserved=unserved)
        assert ended.output_file_id is not None
        assert ended.error_file_id is not None
        assert store.path(ended.output_file_id).read_bytes() == b"result 2\n"
        lines = [json.loads(line) for line in store.path(ended.error_file_id).read_bytes().splitlines()]
        assert [(line["custom_id"], line["response"]) for line in lines] == [("a", None), ("c", None)]
        assert [line["error"] for line in lines] == [{"code": "batch_cancelled", "message": "why"}] * 2


async def test_a_batch_without_results_has_no_files(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        batch = await add_batch(store)
        ended = await store.end_batch(batch, BatchStatus.EXPIRED, NOW, kept_until=None)
        assert (ended.output_file_id, ended.error_file_id) == (None, None)
        assert len(list((tmp_path / "files").iterdir())) == 1


async def test_a_status_follows_only_from_those_that_lead_to_it(tmp_path: Path) -> None:
    async def end(store: BatchStore, batch: Batch, ending: BatchStatus) -> Batch:
        return await store.end_batch(batch, ending, NOW, kept_until=None)

    async with opened(tmp_path) as store:
        batch = await add_batch(store)
        for too_early in (BatchStatus.COMPLETED, BatchStatus.CANCELLED):
            with pytest.raises(BatchConflictError, match=f"is validating, and cannot become {too_early}"):
                await end(store, batch, too_early)
        with pytest.raises(BatchConflictError):
            await store.begin_finalizing(batch, NOW)
        assert not await store.record_result(batch, result(1))
        batch = await store.start_batch(batch, 3, "tiny", NOW)
        for again in (store.start_batch(batch, 3, "tiny", NOW), store.fail_batch(batch, [], NOW)):
            with pytest.raises(BatchConflictError, match="is in_progress"):
                await again
        await store.begin_finalizing(batch, NOW)
        with pytest.raises(BatchConflictError, match="is finalizing, and cannot become cancelling"):
            await store.cancel_batch(batch.id, None, NOW)
        await end(store, batch, BatchStatus.COMPLETED)
        with pytest.raises(BatchConflictError, match="is completed"):
            await end(store, batch, BatchStatus.COMPLETED)


async def test_cancelling_may_be_repeated(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        batch = await running_batch(store)
        assert (await store.cancel_batch(batch.id, "", NOW)).status is BatchStatus.CANCELLING
        assert not await store.record_result(batch, result(1))
        assert (await store.cancel_batch(batch.id, "", NOW + 5)).times["cancelling"] == NOW
        await store.end_batch(batch, BatchStatus.CANCELLED, NOW, kept_until=None)
        assert (await store.cancel_batch(batch.id, "", NOW + 5)).status is BatchStatus.CANCELLED


async def test_the_input_of_a_batch_under_way_stays(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        source = await add_file(store, expires=NOW + 10)
        batch = await store.add_batch(order_of(source), 100)
        with pytest.raises(BatchConflictError, match=f"is the input of batch {batch.id}, which has not ended"):
            await store.delete_file(source.id, "")
        assert await store.next_expiry(None) is None
        assert await store.delete_expired(NOW + 20, None) == []
        await store.fail_batch(batch, [], NOW)
        assert await store.next_expiry(None) == NOW + 10
        assert await store.delete_expired(NOW + 9, None) == []
        assert await store.delete_expired(NOW + 10, None) == [source.id]
        assert not store.path(source.id).exists()


async def test_batches_are_forgotten_when_they_ended_long_ago(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await add_batch(store)
        batch = await store.fail_batch(await add_batch(store), [BatchError("a", "b", "c", 4)], NOW)
        assert batch.errors == (BatchError("a", "b", "c", 4),)
        assert await store.next_expiry(60.5) == NOW + 60.5
        await store.delete_expired(NOW + 60, 60.5)
        assert store.statuses == {BatchStatus.VALIDATING: 1, BatchStatus.FAILED: 1}
        await store.delete_expired(NOW + 61, 60.5)
        assert store.statuses == {BatchStatus.VALIDATING: 1}
        with pytest.raises(UnknownBatchError):
            await store.find_batch(batch.id, None)


async def add_a_file(store: BatchStore, _: Batch) -> None:
    await add_file(store, expires=NOW)


async def end_a_batch(store: BatchStore, batch: Batch) -> None:
    await store.end_batch(batch, BatchStatus.EXPIRED, NOW, kept_until=None)


async def fail_a_batch(store: BatchStore, batch: Batch) -> None:
    await store.fail_batch(batch, [], NOW)


@pytest.mark.parametrize("change", [add_a_file, end_a_batch, fail_a_batch])
async def test_whoever_waits_for_what_expires_hears_of_changes(
    tmp_path: Path, change: Callable[[BatchStore, Batch], Coroutine[Any, Any, None]]
) -> None:
    async with opened(tmp_path) as store:
        batch = await add_batch(store)
        await store.wait_for_other_expiry()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(change, store, batch)
            with anyio.fail_after(30):
                await store.wait_for_other_expiry()


async def test_a_full_disk_is_told_and_loses_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        batch = await running_batch(store)
        await store.record_result(batch, result(1))
        await limit_database(store, pages=1)  # as many as there are, then
        with pytest.raises(BatchStoreError, match="database or disk is full"):
            await store.record_result(batch, result(2, text=b"x" * 100_000))
        assert await store.finished_lines(batch) == {1}
        await limit_database(store, pages=10_000)
        assert await store.record_result(batch, result(2, text=b"x" * 100_000))

"""How batches are run, on an engine that says what a test has written for it."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from llamalane.api.batches.records import Batch, BatchStatus
from llamalane.api.batches.store import BatchStore
from llamalane.errors import (
    ContextError,
    EngineClosedError,
    LaneDownError,
    LlamalaneError,
    QueueFullError,
    RequestCancelledError,
    RequestFailedError,
    RequestShedError,
    TenantLimitError,
)
from llamalane.ids import Level
from llamalane.scheduler import EngineState
from tests.api.batches.lines import jsonl
from tests.api.batches.running import SETTINGS, batches_on
from tests.api.batches.storing import NOW, add_batch, add_file, limit_database, order_of, result
from tests.api.fake_engine import Play, ScriptedEngine

pytestmark = pytest.mark.anyio

NAMES = [f"item-{number:02}" for number in range(20)]
WIDTH = 12
"""A scripted engine has 8 places."""
FULL = QueueFullError(0.01, reason="requests", limit=1)


async def test_every_item_is_answered_once_at_the_least_urgent_level(tmp_path: Path) -> None:
    async with batches_on(ScriptedEngine(), tmp_path) as batches:
        batch = await batches.ended(await batches.add(*NAMES))
        assert (batch.status, batch.total, batch.completed, batch.failed) == (BatchStatus.COMPLETED, 20, 20, 0)
        assert batch.model == "scripted"
        lines = batches.lines(batch.output_file_id)
        assert list(lines) == NAMES
        assert {line["response"]["status_code"] for line in lines.values()} == {200}
        assert {line["response"]["body"]["priority"] for line in lines.values()} == {5}
        assert batch.error_file_id is None
        assert (batch.usage.prompt_tokens, batch.usage.completion_tokens) == (60, 40)
        assert batches.engine.submissions == 20
        assert batches.runner.outcomes == {"completed": 20}


@pytest.mark.parametrize(("concurrent", "width"), [(None, WIDTH), (3, 3)])
async def test_no_more_are_under_way_than_keep_the_lanes_busy(
    tmp_path: Path, concurrent: int | None, width: int
) -> None:
    release = anyio.Event()
    engine = ScriptedEngine([Play(release=release)] * 20)
    async with batches_on(engine, tmp_path, replace(SETTINGS, concurrent_items=concurrent)) as batches:
        batch = await batches.add(*NAMES)
        assert await batches.submitted(width) == NAMES[:width]
        release.set()
        assert (await batches.ended(batch)).completed == 20


async def test_an_item_that_finds_the_queue_full_comes_again(tmp_path: Path) -> None:
    release = anyio.Event()
    plays = [Play(release=release), *[Play(refusal=FULL)] * 3]
    async with batches_on(ScriptedEngine(plays), tmp_path) as batches:
        batch = await batches.add("a", "b", "c")
        assert await batches.submitted(3) == ["a", "b", "c"]
        release.set()
        assert (await batches.ended(batch)).completed == 3
        assert batches.engine.submissions == 6


async def test_an_item_that_was_sent_back_is_before_those_that_were_not_sent(tmp_path: Path) -> None:
    async with batches_on(ScriptedEngine([Play(refusal=FULL)] * 2), tmp_path) as batches:
        await batches.ended(await batches.add("a", "b", "c"))
        assert [handle.prompt for handle in batches.engine.handles] == ["a", "b", "c"]


async def test_a_full_queue_is_not_asked_before_it_is_time(tmp_path: Path) -> None:
    later = QueueFullError(3600, reason="requests", limit=1)
    release = anyio.Event()
    async with batches_on(ScriptedEngine([Play(release=release), Play(refusal=later)]), tmp_path) as batches:
        batch = await batches.add(*NAMES)
        await batches.submitted(1)
        assert batches.engine.submissions == 2
        release.set()  # one of ours ends: there is room, whatever the queue said
        assert (await batches.ended(batch)).completed == 20


async def test_an_item_that_was_turned_out_comes_again(tmp_path: Path) -> None:
    async with batches_on(ScriptedEngine([Play(error=RequestShedError(0.01))]), tmp_path) as batches:
        batch = await batches.ended(await batches.add("a", "b"))
        assert (batch.completed, batch.failed) == (2, 0)
        assert batches.engine.submissions == 3


async def test_a_tenant_at_its_limit_does_not_hold_up_another(tmp_path: Path) -> None:
    limit = TenantLimitError(3600, tenant="alice", reason="tokens_per_minute", limit=1)
    async with batches_on(ScriptedEngine([Play(refusal=limit)], state=EngineState.LOADING), tmp_path) as batches:
        hers, his = await batches.add("a", tenant="alice"), await batches.add("b", "c", tenant="bob")
        batches.engine.enter(EngineState.READY)
        assert (await batches.ended(his)).completed == 2
        assert (await batches.store.find_batch(hers.id, None)).completed == 0


async def test_tenants_take_turns(tmp_path: Path) -> None:
    engine = ScriptedEngine([Play(release=anyio.Event())] * 12, state=EngineState.LOADING)
    async with batches_on(engine, tmp_path) as batches:
        await batches.add(*NAMES, tenant="alice")
        his = await batches.add(*NAMES, tenant="bob")
        with anyio.fail_after(30):
            while (await batches.store.find_batch(his.id, None)).status is BatchStatus.VALIDATING:
                pass
        await batches.settled()
        engine.enter(EngineState.READY)
        assert await batches.submitted(WIDTH) == sorted(NAMES[:6] * 2)


@pytest.mark.parametrize(
    ("error", "status"),
    [(RequestFailedError("no"), 500), (RequestCancelledError("no"), 409), (ContextError("no"), 500)],
)
async def test_an_item_that_fails_is_an_error_and_harms_no_other(
    tmp_path: Path, error: LlamalaneError, status: int
) -> None:
    async with batches_on(ScriptedEngine([Play(error=error)]), tmp_path) as batches:
        batch = await batches.ended(await batches.add("a", "b", "c"))
        assert (batch.status, batch.completed, batch.failed) == (BatchStatus.COMPLETED, 2, 1)
        [line] = batches.lines(batch.error_file_id).values()
        assert (line["response"]["status_code"], line["error"]) == (status, None)
        assert line["response"]["body"]["error"]["message"] == str(error)
        assert len(batches.lines(batch.output_file_id)) == 2
        assert batches.runner.outcomes == {"completed": 2, "failed": 1}


async def test_a_fault_of_ours_is_told_without_its_words_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fault: Any = ZeroDivisionError("secret")
    async with batches_on(ScriptedEngine([Play(refusal=fault)]), tmp_path) as batches:
        batch = await batches.ended(await batches.add("a"))
        [line] = batches.lines(batch.error_file_id).values()
    assert line["response"]["status_code"] == 500
    assert "secret" not in str(line)
    assert "ZeroDivisionError: secret" in caplog.text


async def test_bodies_that_are_wrong_are_errors_of_their_items(tmp_path: Path) -> None:
    async with batches_on(ScriptedEngine(), tmp_path) as batches:
        for body, status, param in (
            ({"stream": True}, 400, "stream"),
            ({"temperature": "hot"}, 400, "temperature"),
            ({"priority": 9}, 400, "priority"),
            ({"unheard_of": 1}, 400, "unheard_of"),
        ):
            batch = await batches.ended(await batches.add("a", body=body))
            [line] = batches.lines(batch.error_file_id).values()
            answer = line["response"]
            assert (answer["status_code"], answer["body"]["error"]["param"]) == (status, param)


async def test_items_may_ask_for_what_the_key_allows(tmp_path: Path) -> None:
    async with batches_on(ScriptedEngine(), tmp_path) as batches:
        for body, level in (({}, 4), ({"priority": 5}, 5), ({"priority": 3}, 3), ({"service_tier": "flex"}, 5)):
            changes = {"level": Level(4), "most_urgent": Level(3), "separate_users": True}
            batch = await batches.add("a", tenant="alice", body={**body, "user": "carol"}, **changes)
            assert (await batches.ended(batch)).completed == 1
            options = batches.engine.handles[-1].options
            assert (options["priority"], options["tenant"], options["cache_salt"]) == (level, "alice", "carol")
        batch = await batches.add("a", body={"priority": 2}, most_urgent=Level(3))
        [line] = batches.lines((await batches.ended(batch)).error_file_id).values()
        assert line["response"]["status_code"] == 403


async def test_an_engine_that_drains_gets_no_more_and_the_next_one_does_the_rest(tmp_path: Path) -> None:
    releases = [anyio.Event() for _ in range(WIDTH)]
    engine = ScriptedEngine([Play(release=release) for release in releases])
    async with batches_on(engine, tmp_path) as batches:
        batch = await batches.add(*NAMES)
        await batches.submitted(WIDTH)
        engine.enter(EngineState.DRAINING)
        await batches.settled()
        for release in releases[:5]:
            release.set()
        await batches.settled()
        assert engine.submissions == WIDTH
        assert (await batches.store.find_batch(batch.id, None)).completed == 5
    assert [handle.cancelled for handle in engine.handles] == [0] * 5 + [1] * 7
    next_engine = ScriptedEngine()
    async with batches_on(next_engine, tmp_path) as batches:
        ended = await batches.ended(batch)
        assert (ended.status, ended.completed) == (BatchStatus.COMPLETED, 20)
        assert list(batches.lines(ended.output_file_id)) == NAMES
    assert next_engine.submissions == 15


@pytest.mark.parametrize("error", [EngineClosedError("it ends"), LaneDownError("no lane is left")])
async def test_items_that_end_with_the_engine_are_done_by_the_next_one(tmp_path: Path, error: LlamalaneError) -> None:
    async with batches_on(ScriptedEngine([Play(), Play(error=error)]), tmp_path) as batches:
        batch = await batches.add("a", "b", "c")
        await batches.submitted(2)
        assert (await batches.store.find_batch(batch.id, None)).status is BatchStatus.IN_PROGRESS
    async with batches_on(ScriptedEngine(), tmp_path) as batches:
        ended = await batches.ended(batch)
        assert (ended.completed, ended.failed) == (3, 0)
        assert list(batches.lines(ended.output_file_id)) == ["a", "b", "c"]


async def test_an_engine_that_never_gets_ready_runs_nothing(tmp_path: Path) -> None:
    engine = ScriptedEngine(state=EngineState.NEW)
    async with batches_on(engine, tmp_path) as batches:
        batch = await batches.add("a")
        engine.enter(EngineState.CLOSED)
        await batches.settled()
        assert engine.submissions == 0
        assert (await batches.store.find_batch(batch.id, None)).status is BatchStatus.IN_PROGRESS


async def test_a_cancelled_batch_keeps_what_is_done(tmp_path: Path) -> None:
    engine = ScriptedEngine([Play(), *[Play(release=anyio.Event())] * 19])
    async with batches_on(engine, tmp_path) as batches:
        batch = await batches.add(*NAMES)
        await batches.submitted(WIDTH + 1)
        assert (await batches.store.cancel_batch(batch.id, None, NOW)).status is BatchStatus.CANCELLING
        batches.runner.break_off(batch.id)
        ended = await batches.ended(batch)
        assert (ended.status, ended.completed, ended.failed) == (BatchStatus.CANCELLED, 1, 0)
        assert list(batches.lines(ended.output_file_id)) == NAMES[:1]
        errors = batches.lines(ended.error_file_id)
        assert list(errors) == NAMES[1:]
        assert {line["error"]["code"] for line in errors.values()} == {"batch_cancelled"}
        assert [handle.cancelled for handle in engine.handles] == [0] + [1] * WIDTH
        assert batches.runner.outcomes == {"completed": 1, "cancelled": 19}
        other = await batches.add("other")
        engine.plays.clear()
        assert (await batches.ended(other)).completed == 1


async def test_a_batch_expires_when_its_window_ends(tmp_path: Path) -> None:
    engine = ScriptedEngine([Play(), *[Play(release=anyio.Event())] * 19])
    async with batches_on(engine, tmp_path, now=NOW + 0.9) as batches:
        batch = await batches.add(*NAMES, expires_at=NOW + 1)
        ended = await batches.ended(batch)
        assert ended.status is BatchStatus.EXPIRED
        assert ended.times["expired"] == NOW
        errors = batches.lines(ended.error_file_id)
        assert sorted([*errors, *batches.lines(ended.output_file_id)]) == NAMES
        assert {line["error"]["code"] for line in errors.values()} == {"batch_expired"}
        assert batches.runner.outcomes["expired"] == len(errors) == 20 - ended.completed


async def test_a_batch_whose_window_ended_while_nobody_ran_it_expires(tmp_path: Path) -> None:
    async with batches_on(ScriptedEngine(state=EngineState.LOADING), tmp_path) as batches:
        batch = await batches.add("a", "b")
        await batches.settled()
    engine = ScriptedEngine()
    async with batches_on(engine, tmp_path, now=batch.order.expires_at) as batches:
        ended = await batches.ended(batch)
        assert ended.status is BatchStatus.EXPIRED
        assert list(batches.lines(ended.error_file_id)) == ["a", "b"]
        assert engine.submissions == 0


@pytest.mark.parametrize("ending", [BatchStatus.COMPLETED, BatchStatus.CANCELLED])
async def test_an_ending_that_was_interrupted_is_gone_on_with(tmp_path: Path, ending: BatchStatus) -> None:
    async with batches_on(ScriptedEngine(state=EngineState.LOADING), tmp_path) as batches:
        store = batches.store
        batch = await store.start_batch(await add_batch(store, jsonl()), 1, "scripted", NOW)
        await store.record_result(batch, result(1))
        if ending is BatchStatus.COMPLETED:
            await store.begin_finalizing(batch, NOW)
        else:
            await store.cancel_batch(batch.id, None, NOW)
    async with batches_on(ScriptedEngine(state=EngineState.LOADING), tmp_path) as batches:
        ended = await batches.ended(batch)
        assert ended.status is ending
        assert ended.output_file_id is not None


async def test_a_batch_that_is_cancelled_before_it_was_looked_at_is_cancelled(tmp_path: Path) -> None:
    async with batches_on(ScriptedEngine(), tmp_path) as batches:
        batch = await add_batch(batches.store, b"not even JSON")
        await batches.store.cancel_batch(batch.id, None, NOW)
        batches.runner.wake()
        batches.runner.break_off(batch.id)
        ended = await batches.ended(batch)
        assert (ended.status, ended.error_file_id) == (BatchStatus.CANCELLED, None)


class CancelledMeanwhile(BatchStore):
    """A store in which a batch is cancelled by somebody else just before its runner gives it another status."""

    async def start_batch(self, batch: Batch, total: int, model: str | None, now: int) -> Batch:
        if batch.order.metadata == {"cancel": "start"}:
            await self.cancel_batch(batch.id, None, now)
        return await super().start_batch(batch, total, model, now)

    async def begin_finalizing(self, batch: Batch, now: int) -> Batch:
        if batch.order.metadata == {"cancel": "finalizing"}:
            await self.cancel_batch(batch.id, None, now)
        return await super().begin_finalizing(batch, now)

    async def end_batch(self, batch: Batch, ending: BatchStatus, now: int, **options: Any) -> Batch:
        if ending is BatchStatus.EXPIRED:
            await self.cancel_batch(batch.id, None, now)
        return await super().end_batch(batch, ending, now, **options)


@pytest.mark.parametrize("moment", ["start", "finalizing", "expiry"])
async def test_a_batch_may_be_cancelled_at_any_moment(
    tmp_path: Path, moment: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = ScriptedEngine([Play(release=anyio.Event())] * 2 if moment == "expiry" else [])
    async with batches_on(engine, tmp_path, now=NOW + 0.9, kind=CancelledMeanwhile) as batches:
        window = 1 if moment == "expiry" else 60
        batch = await batches.add("a", "b", metadata={"cancel": moment}, expires_at=NOW + window)
        ended = await batches.ended(batch)
        assert ended.status is BatchStatus.CANCELLED
        assert ended.completed == (2 if moment == "finalizing" else 0)
        assert (ended.output_file_id is not None) == (moment == "finalizing")
        assert (ended.error_file_id is not None) == (moment == "expiry")
        assert len(list((tmp_path / "files").iterdir())) == (1 if moment == "start" else 2)
    assert caplog.text == ""


async def test_an_input_that_cannot_be_used_fails_the_batch(tmp_path: Path) -> None:
    async with batches_on(ScriptedEngine(), tmp_path) as batches:
        batch = await add_batch(batches.store, b"not even JSON")
        batches.runner.wake()
        ended = await batches.ended(batch)
        assert (ended.status, ended.times) == (BatchStatus.FAILED, {"failed": NOW})
        assert [(error.code, error.line) for error in ended.errors] == [("invalid_json_line", 1)]
        missing = await add_file(batches.store, b"")
        batches.store.path(missing.id).unlink()
        batch = await batches.store.add_batch(order_of(missing), 100)
        batches.runner.wake()
        [error] = (await batches.ended(batch)).errors
        assert (error.code, error.message) == (
            "input_unreadable",
            "the file cannot be read: No such file or directory",
        )
        assert batches.engine.submissions == 0


async def test_an_input_that_was_changed_behind_our_back_harms_no_other_item(tmp_path: Path) -> None:
    async with batches_on(ScriptedEngine(state=EngineState.LOADING), tmp_path) as batches:
        batch = await batches.add("a", "b", "c")
        await batches.settled()
        path = batches.store.path(batch.order.input_file_id)
        path.write_bytes(path.read_bytes().replace(b'"prompt": "b"}', b'"prompt": "b"]'))
        batches.engine.enter(EngineState.READY)
        ended = await batches.ended(batch)
        assert (ended.completed, ended.failed) == (2, 1)


async def test_a_batch_whose_input_is_gone_can_be_cancelled_and_keeps_what_is_done(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with batches_on(ScriptedEngine([Play(), Play(release=anyio.Event())]), tmp_path) as batches:
        batch = await batches.add("a", "b")
        await batches.submitted(2)
        path = batches.store.path(batch.order.input_file_id)
    path.unlink()
    async with batches_on(ScriptedEngine(), tmp_path) as batches:
        await batches.settled()
        assert "stays as it is" in caplog.text
        await batches.store.cancel_batch(batch.id, None, NOW)
        batches.runner.wake()
        ended = await batches.ended(batch)
        assert (ended.status, ended.completed) == (BatchStatus.CANCELLED, 1)
        assert list(batches.lines(ended.output_file_id)) == ["a"]


async def test_a_result_that_cannot_be_recorded_is_computed_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    release = anyio.Event()
    engine = ScriptedEngine([Play(), Play(texts=["x" * 100_000], release=release)])
    async with batches_on(engine, tmp_path) as batches:
        batch = await batches.add("a", "b")
        await batches.submitted(2)
        await limit_database(batches.store, pages=1)
        release.set()
        await batches.settled()
        assert "database or disk is full" in caplog.text
        assert "Traceback" not in caplog.text
        assert (await batches.store.find_batch(batch.id, None)).completed == 1
        await limit_database(batches.store, pages=10_000)
        batches.runner.wake()
        assert (await batches.ended(batch)).completed == 2
        assert list(batches.lines((await batches.ended(batch)).output_file_id)) == ["a", "b"]
        assert engine.submissions == 3


async def test_outputs_are_kept_for_as_long_as_is_asked_and_allowed(tmp_path: Path) -> None:
    for asked, retention, kept in ((3600, None, 3600), (7200, 3600.0, 3600), (None, 60.0, 60), (None, None, None)):
        async with batches_on(ScriptedEngine(), tmp_path, replace(SETTINGS, retention=retention)) as batches:
            ended = await batches.ended(await batches.add("a", output_seconds=asked))
            assert ended.output_file_id is not None
            output = await batches.store.find_file(ended.output_file_id, None)
            assert output.expires_at == (None if kept is None else NOW + kept)


async def test_files_are_removed_at_their_time(tmp_path: Path) -> None:
    async with batches_on(ScriptedEngine(), tmp_path, now=NOW + 0.9) as batches:
        kept = await add_file(batches.store, expires=NOW + 100)
        expiring = await add_file(batches.store, expires=NOW)
        with anyio.fail_after(30):
            while batches.store.path(expiring.id).exists():
                await batches.settled()
        assert batches.store.path(kept.id).exists()

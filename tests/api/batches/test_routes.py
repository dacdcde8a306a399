"""`/v1/files` and `/v1/batches` as HTTP: what clients may ask for, what they get, and whose it is."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from fastapi import FastAPI

from llamalane.api import ApiConfig, create_app, lifespan_of
from llamalane.api.batch import SERVERS
from llamalane.api.batches.records import BatchStatus
from llamalane.api.config import BatchesConfig, KeyConfig
from llamalane.errors import ConfigError
from llamalane.scheduler import EngineState
from tests.api.asgi import client_of, exchange
from tests.api.batches.lines import jsonl, record
from tests.api.fake_engine import Play, ScriptedEngine, as_engine
from tests.api.test_keys import ALICE, BOB, sha256

pytestmark = pytest.mark.anyio

ROOT = "the key of root"
COMPLETIONS = "/v1/completions"
TASKS = jsonl(record("a"), record("b"))
KEYS = [
    KeyConfig(name="alice", sha256=sha256(ALICE), level="background"),
    KeyConfig(name="bob", sha256=sha256(BOB)),
    KeyConfig(name="root", sha256=sha256(ROOT), admin=True),
]


def app_of(folder: Path | None, engine: ScriptedEngine | None = None, **options: Any) -> FastAPI:
    api = {name: options.pop(name) for name in ("keys", "above_level", "max_body_bytes") if name in options}
    config = ApiConfig(batches=BatchesConfig(folder=folder, **options), **api)
    return create_app(as_engine(engine or ScriptedEngine()), api=config)


@contextlib.asynccontextmanager
async def clients(app: FastAPI, *keys: str) -> AsyncIterator[list[httpx.AsyncClient]]:
    async with lifespan_of(app)(app), contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(client_of(app, {"x-api-key": key})) for key in keys or ("",)]


async def upload(
    client: httpx.AsyncClient, data: bytes = TASKS, fields: dict[str, str] | None = None
) -> httpx.Response:
    fields = {"purpose": "batch"} if fields is None else fields
    return await client.post("/v1/files", data=fields, files={"file": ("tasks.jsonl", data)})


async def create(client: httpx.AsyncClient, source: str, **changes: Any) -> httpx.Response:
    body = {"input_file_id": source, "endpoint": COMPLETIONS, "completion_window": "24h", **changes}
    return await client.post("/v1/batches", json=body)


async def ended(client: httpx.AsyncClient, batch: str) -> dict[str, Any]:
    with anyio.fail_after(30):
        while True:
            shown: dict[str, Any] = (await client.get(f"/v1/batches/{batch}")).json()
            if shown["status"] in ("completed", "failed", "expired", "cancelled"):
                return shown


def error_of(answer: httpx.Response) -> dict[str, Any]:
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


async def test_files_are_uploaded_listed_read_and_deleted(tmp_path: Path) -> None:
    async with clients(app_of(tmp_path)) as [client]:
        files = [(await upload(client)).json() for _ in range(3)]
        assert set(files[0]) == {
            *("id", "object", "bytes", "created_at", "expires_at", "filename", "purpose", "status", "status_details")
        }
        assert files[0]["expires_at"] - files[0]["created_at"] == 30 * 24 * 3600
        listed = (await client.get("/v1/files")).json()
        assert listed["data"] == files[::-1]
        assert (listed["object"], listed["has_more"]) == ("list", False)
        assert (listed["first_id"], listed["last_id"]) == (files[2]["id"], files[0]["id"])
        query = {"limit": 1, "order": "asc", "after": files[0]["id"], "purpose": "batch"}
        page = (await client.get("/v1/files", params=query)).json()
        assert (page["data"], page["has_more"]) == ([files[1]], True)
        path = f"/v1/files/{files[0]['id']}"
        assert (await client.get(path)).json() == files[0]
        content = await client.get(f"{path}/content")
        assert (content.content, content.headers["content-type"]) == (TASKS, "application/octet-stream")
        assert (await client.delete(path)).json() == {"id": files[0]["id"], "object": "file", "deleted": True}
        for answer in (await client.get(path), await client.get(f"{path}/content"), await client.delete(path)):
            assert (answer.status_code, error_of(answer)["code"]) == (404, "file_not_found")


async def test_a_file_says_how_long_it_is_kept(tmp_path: Path) -> None:
    async with clients(app_of(tmp_path, retention=7200)) as [client]:
        for seconds, kept in (("3600", 3600), ("90000", 7200)):
            expiry = {"expires_after[anchor]": "created_at", "expires_after[seconds]": seconds}
            file = (await upload(client, fields={"purpose": "batch", **expiry})).json()
            assert file["expires_at"] - file["created_at"] == kept


WRONG_FIELDS: list[tuple[dict[str, str], str]] = [
    ({}, "purpose"),
    ({"purpose": "fine-tune"}, "purpose"),
    ({"purpose": ""}, "purpose"),
    ({"purpose": "batch", "color": "red"}, "color"),
    ({"purpose": "batch", "expires_after": "3600"}, "expires_after"),
    ({"purpose": "batch", "expires_after[anchor]": "created_at"}, "expires_after.seconds"),
    (
        {"purpose": "batch", "expires_after[anchor]": "created_at", "expires_after[seconds]": "3599"},
        "expires_after.seconds",
    ),
    (
        {"purpose": "batch", "expires_after[anchor]": "now", "expires_after[seconds]": "3600"},
        "expires_after.anchor",
    ),
]


async def test_a_form_with_wrong_fields_is_refused_and_keeps_nothing(tmp_path: Path) -> None:
    async with clients(app_of(tmp_path)) as [client]:
        for fields, param in WRONG_FIELDS:
            answer = await upload(client, fields=fields)
            assert (answer.status_code, error_of(answer)["param"]) == (400, param), fields
        assert (await client.get("/v1/files")).json()["data"] == []
        assert list((tmp_path / "files").iterdir()) == []


async def test_a_body_that_is_no_form_is_refused(tmp_path: Path) -> None:
    async with clients(app_of(tmp_path)) as [client]:
        answer = await client.post("/v1/files", json={"purpose": "batch"})
        assert answer.status_code == 400
        assert "must be a form" in error_of(answer)["message"]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # httpx leaves a form that is not read to its end to trio
async def test_files_larger_than_any_other_body_are_taken_up_to_a_bound(tmp_path: Path) -> None:
    app = app_of(tmp_path, max_body_bytes=1024, max_file_bytes=100_000)
    async with clients(app) as [client]:
        assert (await upload(client, b"x" * 100_000)).status_code == 200
        for size in (100_001, 1_000_000):  # the second one is refused unread
            answer = await upload(client, b"x" * size)
            assert (answer.status_code, error_of(answer)["type"]) == (413, "invalid_request_error")
        assert (await client.post(COMPLETIONS, json={"prompt": "x" * 2000})).status_code == 413
        assert len(list((tmp_path / "files").iterdir())) == 1


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # httpx leaves a form that is not read to its end to trio
async def test_a_tenant_stores_what_it_may_and_no_more(tmp_path: Path) -> None:
    app = app_of(tmp_path, keys=KEYS, max_files=2, max_bytes=1500)
    async with clients(app, ALICE, BOB) as [alice, bob]:
        assert (await upload(alice, b"x" * 1000)).status_code == 200
        answer = await upload(alice, b"x" * 501)
        assert (answer.status_code, error_of(answer)["code"]) == (400, "storage_limit")
        assert "500 bytes more can be stored" in error_of(answer)["message"]
        assert (await upload(alice, b"x" * 500)).status_code == 200
        answer = await upload(alice, b"")
        assert (answer.status_code, error_of(answer)["code"]) == (400, "storage_limit")
        assert (await upload(bob, b"x" * 1000)).status_code == 200


async def test_what_a_client_that_leaves_has_sent_is_removed(tmp_path: Path) -> None:
    app = app_of(tmp_path)
    pieces = [b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\n', b"x" * 2_000_000]
    async with lifespan_of(app)(app):
        async with exchange(app, "/v1/files", pieces, "multipart/form-data; boundary=b") as request:
            with anyio.fail_after(30):
                while not any((tmp_path / "files").iterdir()):
                    await anyio.lowlevel.checkpoint()
            request.leave()
        assert list((tmp_path / "files").iterdir()) == []


async def test_a_batch_is_created_runs_and_is_told_of(tmp_path: Path) -> None:
    engine = ScriptedEngine()
    async with clients(app_of(tmp_path, engine)) as [client]:
        source = (await upload(client)).json()["id"]
        changes: dict[str, Any] = {
            "metadata": {"a": "b"},
            "output_expires_after": {"anchor": "created_at", "seconds": 3600},
        }
        created = (await create(client, source, **changes)).json()
        assert (created["status"], created["priority"], created["errors"]) == ("validating", 5, None)
        batch = await ended(client, created["id"])
        assert (batch["status"], batch["metadata"], batch["model"]) == ("completed", {"a": "b"}, "scripted")
        assert batch["request_counts"] == {"total": 2, "completed": 2, "failed": 0}
        assert batch["usage"]["total_tokens"] == 10
        output = (await client.get(f"/v1/files/{batch['output_file_id']}")).json()
        assert (output["purpose"], output["expires_at"] - output["created_at"]) == ("batch_output", 3600)
        assert (await client.get("/v1/batches")).json()["data"] == [batch]
        answer = await client.post(f"/v1/batches/{batch['id']}/cancel")
        assert (answer.status_code, error_of(answer)["code"]) == (409, "batch_conflict")
        assert answer.headers["x-should-retry"] == "false"
        metrics = (await client.get("/metrics")).text.splitlines()
        assert 'llamalane_batches{status="completed"} 1.0' in metrics
        assert 'llamalane_batches{status="in_progress"} 0.0' in metrics
        assert 'llamalane_batch_items_total{outcome="completed"} 2.0' in metrics
        assert 'llamalane_batch_items_total{outcome="expired"} 0.0' in metrics


WRONG_BATCHES: list[tuple[dict[str, Any], str]] = [
    ({"input_file_id": None}, "input_file_id"),
    ({"input_file_id": 5}, "input_file_id"),
    ({"endpoint": "/v1/images/generations"}, "endpoint"),
    ({"endpoint": None}, "endpoint"),
    ({"completion_window": "soon"}, "completion_window"),
    ({"completion_window": "0h"}, "completion_window"),
    ({"completion_window": "31d"}, "completion_window"),
    ({"completion_window": "24h "}, "completion_window"),
    ({"completion_window": 24}, "completion_window"),
    ({"metadata": "x"}, "metadata"),
    ({"metadata": {"a": 1}}, "metadata.a"),
    ({"metadata": {"a": "x" * 513}}, "metadata.a"),
    ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
    ({"output_expires_after": 3600}, "output_expires_after"),
    ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after.seconds"),
    ({"priority": 0}, "priority"),
    ({"priority": "soon"}, "priority"),
    ({"color": "red"}, "color"),
]


async def test_a_batch_that_is_asked_for_wrongly_is_refused(tmp_path: Path) -> None:
    async with clients(app_of(tmp_path)) as [client]:
        source = (await upload(client)).json()["id"]
        for changes, param in WRONG_BATCHES:
            answer = await create(client, source, **changes)
            assert (answer.status_code, error_of(answer)["param"]) == (400, param), changes
        assert (await client.get("/v1/batches")).json()["data"] == []


async def test_a_body_that_is_no_object_or_too_large_is_refused(tmp_path: Path) -> None:
    large = b'{"metadata": {"a": "' + b"x" * 70_000 + b'"}}'
    async with clients(app_of(tmp_path)) as [client]:
        for data, message in ((b"hello", "not valid JSON"), (b"[]", "must be a JSON object"), (large, "too large")):
            answer = await client.post("/v1/batches", content=data)
            assert answer.status_code == 400
            assert message in error_of(answer)["message"]


async def test_a_batch_needs_a_file_that_is_there(tmp_path: Path) -> None:
    async with clients(app_of(tmp_path)) as [client]:
        answer = await create(client, "file-none")
        assert (answer.status_code, error_of(answer)["param"]) == (404, "input_file_id")


async def test_a_completion_window_has_a_unit(tmp_path: Path) -> None:
    async with clients(app_of(tmp_path, ScriptedEngine(state=EngineState.LOADING))) as [client]:
        source = (await upload(client)).json()["id"]
        for window, seconds in (("1s", 1), ("90m", 5400), ("24h", 86_400), ("30d", 2_592_000)):
            batch = (await create(client, source, completion_window=window)).json()
            assert (batch["completion_window"], batch["expires_at"] - batch["created_at"]) == (window, seconds)


async def test_a_tenant_has_so_many_batches_under_way(tmp_path: Path) -> None:
    engine = ScriptedEngine([Play(release=anyio.Event())] * 2)
    async with clients(app_of(tmp_path, engine, max_batches=1)) as [client]:
        source = (await upload(client)).json()["id"]
        first = (await create(client, source)).json()["id"]
        answer = await create(client, source)
        assert (answer.status_code, error_of(answer)["code"]) == (400, "storage_limit")
        assert (await client.post(f"/v1/batches/{first}/cancel")).json()["status"] == "cancelling"
        assert (await ended(client, first))["status"] == "cancelled"
        assert (await create(client, source)).status_code == 200


async def test_the_input_of_a_batch_under_way_is_not_deleted(tmp_path: Path) -> None:
    engine = ScriptedEngine([Play(release=anyio.Event())] * 2)
    async with clients(app_of(tmp_path, engine)) as [client]:
        source = (await upload(client)).json()["id"]
        batch = (await create(client, source)).json()["id"]
        answer = await client.delete(f"/v1/files/{source}")
        assert (answer.status_code, error_of(answer)["code"]) == (409, "batch_conflict")
        await client.post(f"/v1/batches/{batch}/cancel")
        await ended(client, batch)
        assert (await client.delete(f"/v1/files/{source}")).status_code == 200


async def test_files_and_batches_are_their_tenants(tmp_path: Path) -> None:
    app = app_of(tmp_path, keys=KEYS)
    async with clients(app, ALICE, BOB, ROOT) as [alice, bob, root]:
        source = (await upload(alice)).json()["id"]
        batch = await ended(alice, (await create(alice, source)).json()["id"])
        output = batch["output_file_id"]
        for path in (f"/v1/files/{source}", f"/v1/files/{output}/content", f"/v1/batches/{batch['id']}"):
            assert (await alice.get(path)).status_code == 200
            assert (await bob.get(path)).status_code == 404
            assert (await root.get(path)).status_code == 200
        answers = [
            await bob.delete(f"/v1/files/{source}"),
            await bob.post(f"/v1/batches/{batch['id']}/cancel"),
            await create(bob, source),
            await create(root, source),  # a batch is its key's, and so is its input
            await bob.get("/v1/files", params={"after": source}),
            await bob.get("/v1/batches", params={"after": batch["id"]}),
        ]
        assert {answer.status_code for answer in answers} == {404}
        assert [error_of(answer)["param"] for answer in answers] == [None, None, *["input_file_id"] * 2, *["after"] * 2]
        for path, count in (("/v1/files", 2), ("/v1/batches", 1)):
            counts = [len((await client.get(path)).json()["data"]) for client in (alice, bob, root)]
            assert counts == [count, 0, count]
        assert (await root.delete(f"/v1/files/{source}")).status_code == 200
        async with client_of(app) as stranger:
            assert (await stranger.get("/v1/files")).status_code == 401


async def test_without_keys_of_single_clients_everybody_sees_all(tmp_path: Path) -> None:
    async with clients(app_of(tmp_path), "any", "other") as [one, other]:
        file = (await upload(one)).json()["id"]
        assert (await other.get(f"/v1/files/{file}")).status_code == 200


async def test_a_batch_has_the_priority_that_its_key_allows(tmp_path: Path) -> None:
    engine = ScriptedEngine()
    async with clients(app_of(tmp_path, engine, keys=KEYS), ALICE) as [alice]:
        source = (await upload(alice)).json()["id"]
        answer = await create(alice, source, priority="normal")
        assert (answer.status_code, error_of(answer)["code"]) == (403, "permission_denied")
        batch = (await create(alice, source, priority="background")).json()
        assert batch["priority"] == 4
        await ended(alice, batch["id"])
        assert {handle.options["priority"] for handle in engine.handles} == {4}
        assert {handle.options["tenant"] for handle in engine.handles} == {"alice"}
        body = {"input_file_id": source, "endpoint": COMPLETIONS, "completion_window": "1h"}
        answer = await alice.post("/v1/batches", json=body, headers={"X-Priority": "4"})
        assert answer.json()["priority"] == 4
        urgent = jsonl(record("a", body={"prompt": "x", "priority": 1}))
        batch = (await create(alice, (await upload(alice, urgent)).json()["id"])).json()
        errors = (await ended(alice, batch["id"]))["error_file_id"]
        assert b'"status_code": 403' in (await alice.get(f"/v1/files/{errors}/content")).content
    async with clients(app_of(tmp_path, engine, keys=KEYS, above_level="cap"), ALICE) as [alice]:
        batch = (await create(alice, (await upload(alice, urgent)).json()["id"], priority=1)).json()
        assert batch["priority"] == 4
        assert (await ended(alice, batch["id"]))["request_counts"]["completed"] == 1
        assert engine.handles[-1].options["priority"] == 4


async def test_a_list_that_is_asked_for_wrongly_is_refused(tmp_path: Path) -> None:
    async with clients(app_of(tmp_path)) as [client]:
        for name, value in (("limit", "0"), ("limit", "x"), ("limit", "10001"), ("order", "up")):
            answer = await client.get("/v1/files", params={name: value})
            assert (answer.status_code, error_of(answer)["param"]) == (400, name), value
        answer = await client.get("/v1/batches", params={"limit": "101"})
        assert (answer.status_code, error_of(answer)["param"]) == (400, "limit")


async def test_without_a_folder_they_are_off_and_the_answer_says_what_to_set() -> None:
    async with clients(app_of(None)) as [client]:
        for answer in (
            await upload(client),
            await client.get("/v1/files"),
            await client.get("/v1/files/file-1/content"),
            await client.get("/v1/batches"),
            await create(client, "file-1"),
            await client.post("/v1/batches/batch_1/cancel"),
        ):
            assert (answer.status_code, error_of(answer)["code"]) == (404, "batches_off")
            assert "api.batches.folder" in error_of(answer)["message"]
        assert "llamalane_batches" not in (await client.get("/metrics")).text


async def test_without_the_lifespan_they_are_not_there(tmp_path: Path) -> None:
    async with client_of(app_of(tmp_path)) as client:
        answer = await client.get("/v1/files")
        assert answer.status_code == 503
        assert "lifespan" in error_of(answer)["message"]


async def test_a_folder_that_cannot_be_used_ends_the_lifespan(tmp_path: Path) -> None:
    async with clients(app_of(tmp_path)):
        with pytest.raises(ConfigError, match="another server"):
            async with clients(app_of(tmp_path)):
                pass


async def test_what_a_host_raises_comes_out_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        async with clients(app_of(tmp_path)):
            raise ZeroDivisionError


async def test_files_can_be_had_while_the_engine_does_not_run(tmp_path: Path) -> None:
    engine = ScriptedEngine(state=EngineState.LOADING)
    async with clients(app_of(tmp_path, engine)) as [client]:
        batch = (await create(client, (await upload(client)).json()["id"])).json()
        engine.enter(EngineState.READY)
        assert (await ended(client, batch["id"]))["status"] == "completed"
        engine.enter(EngineState.DRAINING)
        later = (await create(client, batch["input_file_id"])).json()["id"]
        assert (await client.get(f"/v1/batches/{later}")).status_code == 200
    async with clients(app_of(tmp_path)) as [client]:
        assert (await ended(client, later))["status"] == "completed"


def test_all_settings_and_statuses_are_documented() -> None:
    text = (Path(__file__).parents[3] / "docs" / "batches.md").read_text()
    names = [*BatchesConfig.model_fields, *BatchStatus, *SERVERS]
    assert [name for name in names if f"`{name}`" not in text and f"{name}:" not in text] == []

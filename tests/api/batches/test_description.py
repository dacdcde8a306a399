"""Answers about files and batches are as the API's description tells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from llamalane.errors import RequestError
from llamalane.scheduler import EngineState
from tests.api.batches.lines import jsonl, record
from tests.api.batches.test_routes import TASKS, app_of, clients, create, ended, upload
from tests.api.fake_engine import Play, ScriptedEngine
from tests.api.test_openapi import check

pytestmark = pytest.mark.anyio


async def described(client: httpx.AsyncClient, answer: httpx.Response, path: str) -> dict[str, Any]:
    """Check an answer against the description of the endpoint at `path`, and return its body."""
    schema = (await client.get("/openapi.json")).json()
    method, status = answer.request.method.lower(), str(answer.status_code)
    body: dict[str, Any] = answer.json()
    check(body, schema["paths"][path][method]["responses"][status]["content"]["application/json"]["schema"], schema)
    return body


async def test_files_are_as_they_are_described(tmp_path: Path) -> None:
    file_path = "/v1/files/{file_id}"
    async with clients(app_of(tmp_path)) as [client]:
        expiry = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
        file = await described(client, await upload(client, fields={"purpose": "batch", **expiry}), "/v1/files")
        await described(client, await client.get("/v1/files"), "/v1/files")
        url = f"/v1/files/{file['id']}"
        await described(client, await client.get(url), file_path)
        wrong = await upload(client, fields={})
        assert wrong.status_code == 400
        await described(client, wrong, "/v1/files")
        await described(client, await client.delete(url), file_path)
        gone = await client.delete(url)
        assert gone.status_code == 404
        await described(client, gone, file_path)
        assert (await described(client, await client.get("/v1/files"), "/v1/files"))["data"] == []


async def test_batches_are_as_they_are_described(tmp_path: Path) -> None:
    plays = [Play(), Play(refusal=RequestError("never"))]
    async with clients(app_of(tmp_path, ScriptedEngine(plays))) as [client]:
        batch_path = "/v1/batches/{batch_id}"
        source = (await upload(client)).json()["id"]
        created = await described(client, await create(client, source, metadata={"a": "b"}), "/v1/batches")
        assert (await ended(client, created["id"]))["request_counts"]["failed"] == 1
        broken = (await upload(client, jsonl(record("a"), record("a")))).json()["id"]
        failed = await ended(client, (await create(client, broken)).json()["id"])
        assert failed["errors"]
        for batch in (created, failed):
            await described(client, await client.get(f"/v1/batches/{batch['id']}"), batch_path)
        listed = await described(client, await client.get("/v1/batches?limit=2"), "/v1/batches")
        assert len(listed["data"]) == 2
        late = await client.post(f"/v1/batches/{created['id']}/cancel")
        assert late.status_code == 409
        await described(client, late, f"{batch_path}/cancel")
        await described(client, await create(client, "nobody"), "/v1/batches")


async def test_a_batch_that_is_cancelled_is_as_it_is_described(tmp_path: Path) -> None:
    engine = ScriptedEngine()
    engine.enter(EngineState.LOADING)
    async with clients(app_of(tmp_path, engine)) as [client]:
        source = (await upload(client, TASKS)).json()["id"]
        batch = (await create(client, source)).json()
        cancelled = await client.post(f"/v1/batches/{batch['id']}/cancel")
        shown = await described(client, cancelled, "/v1/batches/{batch_id}/cancel")
        assert shown["status"] in ("cancelling", "cancelled")


async def test_what_is_taken_is_described(tmp_path: Path) -> None:
    async with clients(app_of(tmp_path)) as [client]:
        paths = (await client.get("/openapi.json")).json()["paths"]
    [(media_type, form)] = paths["/v1/files"]["post"]["requestBody"]["content"].items()
    assert media_type == "multipart/form-data"
    assert form["schema"]["required"] == ["file", "purpose"]
    assert form["schema"]["properties"].keys() == {
        *("file", "purpose", "expires_after[anchor]", "expires_after[seconds]")
    }
    for path, names in (
        ("/v1/files", ["limit", "after", "order", "purpose"]),
        ("/v1/batches", ["limit", "after"]),
    ):
        assert [one["name"] for one in paths[path]["get"]["parameters"]] == names
    [header] = paths["/v1/batches"]["post"]["parameters"]
    assert header["name"].lower() == "x-priority"
    assert list(paths["/v1/files/{file_id}/content"]["get"]["responses"]["200"]["content"]) == [
        "application/octet-stream"
    ]

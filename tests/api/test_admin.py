"""`/admin`: who may, what it does, and what it answers to mistakes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from llamalane.api import ApiConfig, create_app
from llamalane.api.config import KeyConfig
from llamalane.errors import RequestCancelledError
from llamalane.scheduler import EngineState, RequestState
from tests.api.asgi import client_of
from tests.api.fake_engine import Play, ScriptedEngine, as_engine
from tests.api.test_authentication import KEYS, entry

pytestmark = pytest.mark.anyio

PATHS = (
    "/admin/drain",
    "/admin/lanes/lane0/pause",
    "/admin/lanes/lane0/resume",
    "/admin/requests/cmpl-a/cancel",
    "/admin/requests/cmpl-a/priority",
)


@contextlib.asynccontextmanager
async def client(
    engine: ScriptedEngine, key: str = "root's key", keys: list[KeyConfig] = KEYS
) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(create_app(as_engine(engine), api=ApiConfig(keys=keys)), {"x-api-key": key}) as connected:
        yield connected


def error_of(answer: httpx.Response) -> dict[str, Any]:
    error: dict[str, Any] = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return error


@pytest.mark.parametrize("path", PATHS)
async def test_only_keys_that_may_administer_do(path: str) -> None:
    engine = ScriptedEngine(explanations=[entry("cmpl-a/0", "alice")])
    async with client(engine, "alice's key") as connected:
        answer = await connected.post(path, json={"priority": 1})
        assert answer.status_code == 403
        assert "this API key may not administer" in error_of(answer)["message"]
    async with client(engine, "wrong") as connected:
        assert (await connected.post(path, json={"priority": 1})).status_code == 401
    async with client(engine, keys=[]) as connected:
        answer = await connected.post(path, json={"priority": 1})
        assert answer.status_code == 403
        assert "no API key may administer" in error_of(answer)["message"]
        assert error_of(answer)["type"] == "permission_error"
    assert engine.administered == []


async def test_draining_answers_when_it_is_done() -> None:
    engine = ScriptedEngine()
    async with client(engine) as connected:
        first = await connected.post("/admin/drain")
        assert first.json() == {"object": "drain", "state": "draining"}
        assert (await connected.get("/health")).status_code == 503
        assert (await connected.post("/admin/drain", json={"patience": 2.5})).status_code == 200
    assert engine.administered == [("drain", "None"), ("drain", "2.5")]


@pytest.mark.parametrize("state", [EngineState.LOADING, EngineState.CLOSED])
async def test_what_takes_no_requests_cannot_be_drained(state: EngineState) -> None:
    engine = ScriptedEngine(state=state)
    async with client(engine) as connected:
        answer = await connected.post("/admin/drain")
    assert answer.status_code == 503
    assert error_of(answer)["code"] == "engine_unavailable"
    assert engine.administered == []


async def test_lanes_are_paused_and_resumed_by_name() -> None:
    engine = ScriptedEngine(lanes_down=(False, False))
    async with client(engine) as connected:
        answer = await connected.post("/admin/lanes/lane1/pause")
        assert answer.json() == {"object": "lane", "name": "lane1", "paused": False, "running": 3}
        assert (await connected.post("/admin/lanes/lane1/resume")).status_code == 200
    assert engine.administered == [("pause_lane", "lane1"), ("resume_lane", "lane1")]


@pytest.mark.parametrize("what", ["pause", "resume"])
async def test_an_unknown_lane_is_told_with_those_that_there_are(what: str) -> None:
    engine = ScriptedEngine(lanes_down=(False, False))
    async with client(engine) as connected:
        answer = await connected.post(f"/admin/lanes/gpu/{what}")
    assert answer.status_code == 404
    error = error_of(answer)
    assert (error["code"], error["message"]) == ("lane_not_found", "no lane is called 'gpu'; there are lane0, lane1")
    assert engine.administered == []


async def test_a_request_or_all_choices_of_an_answer_are_cancelled() -> None:
    names = ("cmpl-a/0", "cmpl-a/1", "cmpl-ab/0")
    leaving = replace(entry("cmpl-a/2", ""), state=RequestState.LEAVING)
    engine = ScriptedEngine(explanations=[*(entry(name, "alice") for name in names), leaving])
    async with client(engine) as connected:
        answer = await connected.post("/admin/requests/cmpl-a/cancel")
        assert answer.json() == {"object": "requests", "cancelled": ["cmpl-a/0", "cmpl-a/1"]}
        await connected.post("/admin/requests/cmpl-ab/0/cancel")
    assert engine.administered == [("cancel", name) for name in names]


async def test_the_client_of_a_cancelled_request_is_told_and_does_not_try_again() -> None:
    engine = ScriptedEngine([Play(error=RequestCancelledError("request cmpl-a/0 was cancelled"))])
    async with client(engine, "alice's key") as connected:
        answer = await connected.post("/v1/completions", json={"prompt": "x"})
    assert answer.status_code == 409
    assert answer.headers["x-should-retry"] == "false"
    assert error_of(answer)["code"] == "cancelled"


@pytest.mark.parametrize(("priority", "level"), [(1, "1"), ("batch", "5"), ("4", "4")])
async def test_a_request_gets_another_priority(priority: object, level: str) -> None:
    engine = ScriptedEngine(explanations=[entry("cmpl-a/0", "alice")])
    async with client(engine) as connected:
        answer = await connected.post("/admin/requests/cmpl-a/priority", json={"priority": priority})
    assert answer.json() == {"object": "requests", "priority": int(level), "changed": ["cmpl-a/0"]}
    assert engine.administered == [("set_priority", "cmpl-a/0", level)]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"priority": 0}', "priority"),
        (b'{"priority": true}', "priority"),
        (b'{"priority": "sometime"}', "priority"),
        (b'{"priority": [1]}', "priority"),
        (b'{"priority": null}', "priority"),
        (b"{}", "priority"),
        (b'{"priority": 1, "more": 2}', "more"),
        (b"[]", None),
        (b"{", None),
        (b"", None),
    ],
)
async def test_a_priority_that_is_none_is_refused(body: bytes, param: str | None) -> None:
    engine = ScriptedEngine(explanations=[entry("cmpl-a/0", "alice")])
    async with client(engine) as connected:
        answer = await connected.post("/admin/requests/cmpl-a/priority", content=body)
    assert answer.status_code == 400
    assert error_of(answer)["param"] == param
    assert engine.administered == []


@pytest.mark.parametrize("body", [b'{"patience": -1}', b'{"patience": "long"}', b'{"seconds": 1}', b"x"])
async def test_a_patience_that_is_none_is_refused(body: bytes) -> None:
    engine = ScriptedEngine()
    async with client(engine) as connected:
        assert (await connected.post("/admin/drain", content=body)).status_code == 400
    assert engine.state is EngineState.READY


@pytest.mark.parametrize("what", ["cancel", "priority"])
async def test_an_unknown_request_is_told_with_what_to_do(what: str) -> None:
    engine = ScriptedEngine(explanations=[entry("cmpl-a/0", "alice")])
    async with client(engine) as connected:
        answer = await connected.post(f"/admin/requests/cmpl-z/{what}", json={"priority": 1})
    assert answer.status_code == 404
    assert error_of(answer)["code"] == "request_not_found"
    assert "GET /v1/queue lists those that do" in error_of(answer)["message"]

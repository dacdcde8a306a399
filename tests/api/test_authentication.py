"""What a key opens: levels, queue entries, metrics, and pages of other origins."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from pydantic import SecretStr

from llamalane.api import ApiConfig, create_app
from llamalane.api.config import KeyConfig
from llamalane.ids import Level, RequestId
from llamalane.scheduler import RequestState
from llamalane.scheduler.explain import Explanation
from tests.api.asgi import client_of
from tests.api.fake_engine import Play, ScriptedEngine, as_engine
from tests.api.test_keys import sha256

pytestmark = pytest.mark.anyio

BODY = {"prompt": "a secret prompt"}
KEYS = [
    KeyConfig(name="alice", sha256=sha256("alice's key"), level="normal"),
    KeyConfig(name="batcher", sha256=sha256("batcher's key"), tenant="night", level="batch", separate_users=True),
    KeyConfig(name="root", sha256=sha256("root's key"), admin=True),
]


def app_of(engine: ScriptedEngine, **api: Any) -> FastAPI:
    return create_app(as_engine(engine), api=ApiConfig(keys=KEYS, **api))


@contextlib.asynccontextmanager
async def client(key: str, engine: ScriptedEngine | None = None, **api: Any) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with client_of(app_of(engine or ScriptedEngine(), **api), headers) as connected:
        yield connected


def entry(name: str, tenant: str) -> Explanation:
    return Explanation(
        request=RequestId(name),
        state=RequestState.RUNNING,
        level=Level(3),
        position=None,
        effective_priority=3.0,
        reason="it runs",
        estimated_start=None,
        events=(),
        lane="main",
        prompt_tokens=1,
        generated_tokens=1,
        tenant=tenant,
    )


@pytest.mark.parametrize(
    ("fields", "headers", "param"),
    [
        ({"priority": 2}, {}, "priority"),
        ({"priority": "interactive"}, {}, "priority"),
        ({}, {"X-Priority": "agent"}, "priority"),
        ({"service_tier": "priority"}, {}, "service_tier"),
    ],
)
async def test_a_level_above_the_keys_is_refused(fields: dict[str, Any], headers: dict[str, str], param: str) -> None:
    engine = ScriptedEngine()
    async with client("alice's key", engine) as connected:
        answer = await connected.post("/v1/completions", json={**BODY, **fields}, headers=headers)
    assert answer.status_code == 403
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert (error["type"], error["code"], error["param"]) == ("permission_error", "permission_denied", param)
    assert "allows priorities from 3 (normal) to 5" in error["message"]
    assert not engine.handles


async def test_a_level_above_the_keys_is_capped_where_that_is_wanted() -> None:
    engine = ScriptedEngine()
    async with client("alice's key", engine, above_level="cap") as connected:
        answer = await connected.post("/v1/completions", json={**BODY, "service_tier": "priority"})
    assert answer.headers["x-priority"] == "3"
    assert answer.json()["service_tier"] == "default"
    assert engine.handles[0].options["priority"] == 3


@pytest.mark.parametrize("fields", [{}, {"service_tier": "auto"}, {"priority": 5}])
async def test_a_request_that_names_no_level_gets_one_that_its_key_allows(fields: dict[str, Any]) -> None:
    engine = ScriptedEngine()
    async with client("batcher's key", engine) as connected:
        answer = await connected.post("/v1/completions", json={**BODY, **fields})
    assert answer.status_code == 200
    assert engine.handles[0].options["priority"] == 5


async def test_the_tenant_is_the_keys_whatever_the_user_field_says() -> None:
    engine = ScriptedEngine()
    for key in ("alice's key", "batcher's key"):
        async with client(key, engine) as connected:
            await connected.post("/v1/completions", json={**BODY, "user": "root"})
    alice, batcher = [handle.options for handle in engine.handles]
    assert (alice["tenant"], alice.get("cache_salt")) == ("alice", None)
    assert (batcher["tenant"], batcher.get("cache_salt")) == ("night", "root")


async def test_a_key_sees_its_own_tenants_requests_only_unless_it_may_administer() -> None:
    engine = ScriptedEngine(explanations=[entry("cmpl-a/0", "alice"), entry("cmpl-b/0", "night")])
    seen = {}
    for key in ("alice's key", "root's key"):
        async with client(key, engine) as connected:
            listed = (await connected.get("/v1/queue")).json()["data"]
            seen[key] = [one["id"] for one in listed]
            assert (await connected.get("/v1/queue/cmpl-a")).status_code == 200
            other = await connected.get("/v1/queue/cmpl-b/0")
            assert other.status_code == (200 if key == "root's key" else 404)
    assert seen == {"alice's key": ["cmpl-a/0"], "root's key": ["cmpl-a/0", "cmpl-b/0"]}


@pytest.mark.parametrize(
    ("key", "status"), [("scraper", 200), ("root's key", 200), ("alice's key", 401), ("wrong", 401), ("", 401)]
)
async def test_metrics_can_have_a_key_of_their_own(key: str, status: int) -> None:
    async with client(key, metrics_key=SecretStr("scraper")) as connected:
        answer = await connected.get("/metrics")
    assert answer.status_code == status
    if status == 401:
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.json()["error"]["type"] == "authentication_error"


async def test_the_metrics_key_opens_nothing_else_and_does_not_close_the_rest() -> None:
    async with client("scraper", metrics_key=SecretStr("scraper")) as connected:
        assert (await connected.get("/v1/models")).status_code == 401
    app = create_app(as_engine(ScriptedEngine()), api=ApiConfig(metrics_key=SecretStr("scraper")))
    async with client_of(app) as connected:
        assert (await connected.get("/v1/models")).status_code == 200
        assert (await connected.get("/metrics")).status_code == 401


async def test_without_a_metrics_key_any_key_opens_metrics() -> None:
    async with client("alice's key") as connected:
        assert (await connected.get("/metrics")).status_code == 200
    async with client("") as connected:
        assert (await connected.get("/metrics")).status_code == 401


async def test_pages_of_the_named_origins_may_ask_and_others_may_not() -> None:
    async with client("", cors_origins=["https://chat.example"]) as connected:
        asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
        fine = await connected.options("/v1/completions", headers={"Origin": "https://chat.example", **asked})
        assert fine.status_code == 200
        assert fine.headers["access-control-allow-origin"] == "https://chat.example"
        assert fine.headers["access-control-allow-headers"] == "authorization"
        other = await connected.options("/v1/completions", headers={"Origin": "https://evil.example", **asked})
        assert "access-control-allow-origin" not in other.headers
        refused = await connected.post("/v1/completions", json=BODY, headers={"Origin": "https://chat.example"})
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == "https://chat.example"


async def test_without_origins_no_page_may_ask() -> None:
    async with client("alice's key") as connected:
        answer = await connected.get("/v1/models", headers={"Origin": "https://chat.example"})
    assert "access-control-allow-origin" not in answer.headers


async def test_the_log_names_the_key_and_tells_neither_it_nor_any_text(caplog: pytest.LogCaptureFixture) -> None:
    engine = ScriptedEngine([Play(["a secret answer"]), Play(["a secret"], error=RuntimeError("broken"))])  # type: ignore[arg-type]
    with caplog.at_level(logging.DEBUG):
        async with client("alice's key", engine) as connected:
            fields: list[dict[str, Any]] = [{}, {"stream": True}, {"priority": 1}, {"secret field": 1}, {"n": "secret"}]
            for more in fields:
                await connected.post("/v1/completions", json={**BODY, "user": "secret user", **more})
            await connected.post("/v1/completions", content=b'{"prompt": "secret", ')
        async with client("a secret key", engine) as connected:
            await connected.post("/v1/completions", json=BODY)
    ours = [record for record in caplog.records if record.name.startswith("llamalane")]
    lines = [record.getMessage() for record in ours if record.name == "llamalane.api.access"]
    assert len(lines) == 7
    assert sum(" key=alice " in line for line in lines) == 6
    assert not [line for line in map(logging.Formatter().format, ours) if "secret" in line or "alice's" in line]

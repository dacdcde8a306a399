from __future__ import annotations

import logging
import re

import pytest
from fastapi import FastAPI
from pydantic import SecretStr

from llamalane.api import ApiConfig, create_app
from tests.api.asgi import client_of
from tests.api.fake_engine import Play, ScriptedEngine, as_engine

pytestmark = pytest.mark.anyio

BODY = {"prompt": "a secret prompt"}


@pytest.mark.parametrize("path", ["/health", "/nowhere", "/v1/models"])
async def test_every_answer_has_the_id_of_its_request(path: str) -> None:
    async with client_of(create_app(as_engine(ScriptedEngine()))) as client:
        given = await client.get(path, headers={"X-Request-Id": "abc-1.2:3"})
        assert given.headers["x-request-id"] == "abc-1.2:3"
        made = [(await client.get(path)).headers["x-request-id"] for _ in range(2)]
        assert made[0] != made[1]


@pytest.mark.parametrize("given", ["", "two words", "a" * 129, 'quo"te', "tab\there"])
async def test_an_id_that_is_not_sane_is_replaced(given: str) -> None:
    async with client_of(create_app(as_engine(ScriptedEngine()))) as client:
        answer = await client.get("/health", headers={"X-Request-Id": given})
    assert re.fullmatch("[0-9a-f]{32}", answer.headers["x-request-id"])


async def test_one_log_line_tells_of_a_request_and_nothing_of_its_text(caplog: pytest.LogCaptureFixture) -> None:
    engine = ScriptedEngine([Play(["a secret answer"], cached_tokens=1)])
    async with client_of(create_app(as_engine(engine))) as client:
        with caplog.at_level(logging.INFO, "llamalane.api.access"):
            await client.get("/health")
            await client.post("/v1/completions", json={**BODY, "priority": 2}, headers={"X-Request-Id": "mine"})
    lines = [record.getMessage() for record in caplog.records if record.name == "llamalane.api.access"]
    assert len(lines) == 1
    assert re.fullmatch(
        r"id=mine POST /v1/completions status=200 level=2 wait=0\.2500 first_token=0\.5000 prompt_tokens=3 "
        r"cached_tokens=1 completion_tokens=1 duration=\d+\.\d{4}",
        lines[0],
    )
    assert "secret" not in caplog.text


async def test_a_path_cannot_forge_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    async with client_of(create_app(as_engine(ScriptedEngine()))) as client:
        with caplog.at_level(logging.INFO, "llamalane.api.access"):
            await client.get("/x%0Aid=forged")
    assert "GET /x%0Aid%3Dforged status=404" in caplog.text


async def test_a_key_is_asked_for_everywhere_but_at_the_health_endpoints() -> None:
    app = create_app(as_engine(ScriptedEngine()), api=ApiConfig(api_key=SecretStr("sesame")))
    async with client_of(app) as client:
        for path in ("/v1/models", "/metrics", "/nowhere", "/docs/nowhere"):
            answer = await client.get(path)
            assert answer.status_code == 401
            assert answer.json()["error"]["type"] == "authentication_error"
            assert answer.json()["error"]["code"] == "invalid_api_key"
            assert answer.headers["www-authenticate"] == "Bearer"
            assert answer.headers["x-request-id"]
        for path in ("/health", "/v1/health"):
            assert (await client.get(path)).status_code == 200


async def test_health_is_open_in_a_mounted_app_too() -> None:
    host = FastAPI()
    host.mount("/llm", create_app(as_engine(ScriptedEngine()), api=ApiConfig(api_key=SecretStr("sesame"))))
    async with client_of(host) as client:
        assert (await client.get("/llm/health")).status_code == 200
        assert (await client.get("/llm/metrics")).status_code == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Authorization": "Bearer sesame"}, 200),
        ({"Authorization": "bearer  sesame"}, 200),
        ({"x-api-key": "sesame"}, 200),
        ({"Authorization": "Bearer wrong", "x-api-key": "sesame"}, 200),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": "Bearer "}, 401),
        ({"Authorization": "Basic sesame"}, 401),
        ({"Authorization": "sesame"}, 401),
        ({"x-api-key": "sesam"}, 401),
        ({"x-api-key": "sesame1"}, 401),
    ],
)
async def test_keys(headers: dict[str, str], status: int) -> None:
    app = create_app(as_engine(ScriptedEngine()), api=ApiConfig(api_key=SecretStr("sesame")))
    async with client_of(app, headers) as client:
        assert (await client.post("/v1/completions", json=BODY)).status_code == status

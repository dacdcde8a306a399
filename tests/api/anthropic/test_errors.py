"""Errors have Anthropic's shape on its paths, whoever refuses, on both event loops."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import anyio
import pytest
from fastapi import FastAPI
from pydantic import SecretStr

from llamalane.api import ApiConfig, create_app
from llamalane.errors import (
    ContextError,
    DeadlineExceededError,
    EngineClosedError,
    InvalidRequestError,
    LaneDownError,
    LlamalaneError,
    PromptTooLongError,
    QueueFullError,
    RequestFailedError,
    RequestShedError,
    SupersededError,
    TenantLimitError,
)
from tests.api.anthropic.asking import BODY, COUNT_PATH, MESSAGES_PATH
from tests.api.asgi import client_of, exchange
from tests.api.fake_engine import Play, ScriptedEngine, as_engine

pytestmark = pytest.mark.anyio

AT_SUBMISSION = [
    (QueueFullError(2.1, reason="tokens", limit=9), 429, "rate_limit_error", "queue_full"),
    (TenantLimitError(2, tenant="ann", reason="concurrent", limit=9), 429, "rate_limit_error", "tenant_limit"),
    (PromptTooLongError(900, 128), 400, "invalid_request_error", "context_length_exceeded"),
    (InvalidRequestError("no", param="stop"), 400, "invalid_request_error", None),
    (EngineClosedError("no"), 503, "overloaded_error", "engine_unavailable"),
]
LATER = [
    (RequestShedError(2.1), 429, "rate_limit_error", "shed"),
    (SupersededError("old", "new"), 409, "conflict_error", "superseded"),
    (DeadlineExceededError(2), 504, "timeout_error", "deadline_exceeded"),
    (RequestFailedError("no"), 500, "api_error", "request_failed"),
    (LaneDownError("no"), 503, "overloaded_error", "lane_down"),
    (ContextError("no"), 500, "api_error", None),
]
PARAMS = {InvalidRequestError: "stop_sequences", PromptTooLongError: "messages"}
"""What the client called what is at fault."""


def told(body: Mapping[str, Any], request_id: str) -> dict[str, Any]:
    """Return the error that an answer's body tells, in the shape that it has to have."""
    assert body.keys() == {"type", "error", "request_id"}
    assert (body["type"], body["request_id"]) == ("error", request_id)
    error: dict[str, Any] = body["error"]
    assert error.keys() == {"type", "message", "param", "code"}
    return error


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("play", "status", "kind", "code"),
    [
        *((Play(refusal=error), *rest) for error, *rest in AT_SUBMISSION),
        *((Play((), error=error), *rest) for error, *rest in LATER),
    ],
)
async def test_an_error_before_the_first_event_has_its_status(
    play: Play, status: int, kind: str, code: str | None, streamed: bool
) -> None:
    error = play.refusal or play.error
    async with client_of(create_app(as_engine(ScriptedEngine([play])))) as client:
        answer = await client.post(MESSAGES_PATH, json={**BODY, "stream": streamed}, headers={"X-Request-Id": "mine"})
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["request-id"] == answer.headers["x-request-id"] == "mine"
    described = told(answer.json(), "mine")
    assert (described["message"], described["type"], described["code"]) == (str(error), kind, code)
    assert described["param"] == PARAMS.get(type(error))
    if status == 429:
        assert int(answer.headers["retry-after"]) in (2, 3)


@pytest.mark.parametrize(("error", "status", "kind", "code"), LATER)
async def test_an_error_in_a_stream_is_its_last_event(
    error: LlamalaneError, status: int, kind: str, code: str | None
) -> None:
    engine = ScriptedEngine([Play(["one"], error=error)])
    async with client_of(create_app(as_engine(engine))) as client:
        answer = await client.post(MESSAGES_PATH, json={**BODY, "stream": True})
    assert answer.status_code == 200
    name, data = answer.text.removesuffix("\n\n").split("\n\n")[-1].split("\n")
    assert name == "event: error"
    assert json.loads(data.removeprefix("data: ")) == {
        "type": "error",
        "error": {"type": kind, "message": str(error), "param": None, "code": code},
    }
    assert "message_stop" not in answer.text


@pytest.mark.parametrize("path", [MESSAGES_PATH, COUNT_PATH])
async def test_what_never_reaches_the_endpoint_is_refused_in_the_same_shape(path: str) -> None:
    api = ApiConfig(api_key=SecretStr("sesame"), max_body_bytes=2000)
    app = create_app(as_engine(ScriptedEngine()), api=api)
    key = {"x-api-key": "sesame"}
    async with client_of(app) as client:
        for method, where, headers, content, status, kind in (
            ("POST", path, {}, b"{}", 401, "authentication_error"),
            ("POST", path, {"x-api-key": "wrong"}, b"{}", 401, "authentication_error"),
            ("GET", path, key, b"", 405, "invalid_request_error"),
            ("POST", f"{path}/batches", key, b"{}", 404, "not_found_error"),
            ("POST", path, key, b"x" * 2001, 413, "request_too_large"),
            ("POST", path, key, b"{", 400, "invalid_request_error"),
            ("POST", path, key, json.dumps({"messages": BODY["messages"], "model": "x"}).encode(), None, None),
            ("POST", path, {**key, "x-large": "y" * 70_000}, b"{}", 431, "invalid_request_error"),
        ):
            answer = await client.request(method, where, headers=headers, content=content)
            error = told(answer.json(), answer.headers["request-id"])
            if status is not None:
                assert (answer.status_code, error["type"]) == (status, kind)


async def test_a_model_that_is_not_served_is_not_found() -> None:
    async with client_of(create_app(as_engine(ScriptedEngine()))) as client:
        for path, body in ((MESSAGES_PATH, BODY), (COUNT_PATH, {"messages": BODY["messages"]})):
            answer = await client.post(path, json={**body, "model": "claude-9"})
            error = told(answer.json(), answer.headers["request-id"])
            assert (answer.status_code, error["type"], error["code"]) == (404, "not_found_error", "model_not_found")


async def test_a_failure_of_our_own_is_told_without_its_words() -> None:
    engine = ScriptedEngine()
    engine.plays = None  # type: ignore[assignment]
    engine.chat_template = None  # type: ignore[assignment]
    async with client_of(create_app(as_engine(engine))) as client:
        answer = await client.post(MESSAGES_PATH, json=BODY)
    error = told(answer.json(), answer.headers["request-id"])
    assert (answer.status_code, error["type"], error["code"]) == (500, "api_error", "internal_error")
    assert "NoneType" not in answer.text


async def test_a_mounted_app_knows_its_paths() -> None:
    host = FastAPI()
    host.mount("/llm", create_app(as_engine(ScriptedEngine())))
    async with client_of(host) as client:
        answer = await client.post(f"/llm{MESSAGES_PATH}", json={})
        assert answer.json()["type"] == "error"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/messagesx", "/v1"])
async def test_other_paths_keep_openai_s_shape(path: str) -> None:
    async with client_of(create_app(as_engine(ScriptedEngine()))) as client:
        answer = await client.post(path, json={})
    assert answer.json().keys() == {"error"}


async def test_comments_keep_a_stream_alive_until_its_first_event() -> None:
    release = anyio.Event()
    app = create_app(as_engine(ScriptedEngine([Play(["x"], release=release)])), api=ApiConfig(ping_after=0.01))
    async with exchange(app, MESSAGES_PATH, {**BODY, "stream": True}) as request:
        assert (await request.next())["status"] == 200
        assert await request.body() == b": waiting\n\n"
        release.set()
        events = b""
        while (message := await request.next())["more_body"]:
            events += message["body"]
    assert b"event: message_start" in events


async def test_each_step_is_sent_at_once() -> None:
    engine = ScriptedEngine([Play(["a", "é\n", "\u2028"])])
    async with exchange(create_app(as_engine(engine)), MESSAGES_PATH, {**BODY, "stream": True}) as request:
        await request.next()
        sent = []
        while True:
            message = await request.next()
            sent.append(message["body"])
            if not message["more_body"]:
                break
    assert [body.count(b"event: ") for body in sent] == [3, 1, 1, 3]
    assert sent[1] == (
        b"event: content_block_delta\n"
        b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"\\u00e9\\n"}}\n\n'
    )


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_client_that_leaves_frees_what_it_has(streamed: bool) -> None:
    engine = ScriptedEngine([Play(["a", "b"], release=anyio.Event(), before_release=1 if streamed else 0)])
    async with exchange(create_app(as_engine(engine)), MESSAGES_PATH, {**BODY, "stream": streamed}) as request:
        await engine.submitted.wait()
        if streamed:
            await request.next()
            await request.body()
        request.leave()
    assert [handle.cancelled for handle in engine.handles] == [1]

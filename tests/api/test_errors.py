from __future__ import annotations

import json
import logging

import anyio
import pytest

from llamalane.api import ApiConfig, create_app
from llamalane.api.errors import answer_for
from llamalane.errors import (
    ChatTemplateError,
    ContextError,
    DeadlineExceededError,
    EngineClosedError,
    GrammarError,
    InvalidRequestError,
    LaneDownError,
    LlamalaneError,
    PromptTooLongError,
    QueueFullError,
    RequestFailedError,
    RequestShedError,
    SupersededError,
    TenantLimitError,
    UnavailableError,
)
from tests.api.asgi import client_of, exchange
from tests.api.fake_engine import Play, ScriptedEngine, as_engine

pytestmark = pytest.mark.anyio

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"

AT_SUBMISSION = [
    (QueueFullError(2.1, reason="tokens", limit=9), 429, "rate_limit_error", "queue_full"),
    (TenantLimitError(2, tenant="ann", reason="concurrent", limit=9), 429, "rate_limit_error", "tenant_limit"),
    (PromptTooLongError(900, 128), 400, "invalid_request_error", "context_length_exceeded"),
    (InvalidRequestError("no", param="prompt"), 400, "invalid_request_error", None),
    (ChatTemplateError("no"), 400, "invalid_request_error", "chat_template_error"),
    (EngineClosedError("no"), 503, "service_unavailable_error", "engine_unavailable"),
    (LaneDownError("no"), 503, "service_unavailable_error", "lane_down"),
]
LATER = [
    (RequestShedError(2.1), 429, "rate_limit_error", "shed"),
    (SupersededError("old", "new"), 409, "conflict_error", "superseded"),
    (DeadlineExceededError(2), 504, "timeout_error", "deadline_exceeded"),
    (GrammarError("no"), 400, "invalid_request_error", "grammar_too_large"),
    (RequestFailedError("no"), 500, "server_error", "request_failed"),
    (LaneDownError("no"), 503, "service_unavailable_error", "lane_down"),
    (EngineClosedError("no"), 503, "service_unavailable_error", "engine_unavailable"),
    (ContextError("no"), 500, "server_error", None),
]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("error", "status", "kind", "code"), AT_SUBMISSION)
async def test_an_error_of_submission_comes_before_any_header(
    error: LlamalaneError, status: int, kind: str, code: str | None, streamed: bool
) -> None:
    async with client_of(create_app(as_engine(ScriptedEngine([Play(refusal=error)])))) as client:
        answer = await client.post(COMPLETIONS, json={"prompt": "x", "stream": streamed})
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"
    param = getattr(error, "param", None)
    assert answer.json() == {"error": {"message": str(error), "type": kind, "param": param, "code": code}}


@pytest.mark.parametrize(("error", "status", "kind", "code"), LATER)
@pytest.mark.parametrize("streamed", [False, True])
async def test_an_error_before_the_first_text_is_an_answer(
    error: LlamalaneError, status: int, kind: str, code: str | None, streamed: bool
) -> None:
    engine = ScriptedEngine([Play((), error=error), Play(release=anyio.Event())])
    async with client_of(create_app(as_engine(engine))) as client:
        answer = await client.post(COMPLETIONS, json={"prompt": "x", "stream": streamed, "n": 2})
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"
    assert [handle.cancelled for handle in engine.handles] == [0, 1]
    param = getattr(error, "param", None)
    assert answer.json()["error"] == {"message": str(error), "type": kind, "param": param, "code": code}


@pytest.mark.parametrize(("error", "status", "kind", "code"), LATER)
async def test_an_error_in_a_stream_is_its_last_event(
    error: LlamalaneError, status: int, kind: str, code: str | None
) -> None:
    engine = ScriptedEngine([Play(["one"], error=error), Play(["two"], release=anyio.Event())])
    async with client_of(create_app(as_engine(engine))) as client:
        answer = await client.post(COMPLETIONS, json={"prompt": "x", "stream": True, "n": 2})
    assert answer.status_code == 200
    events = answer.text.strip().split("\n\n")
    assert json.loads(events[-1].removeprefix("data: ")) == {
        "error": {"message": str(error), "type": kind, "param": getattr(error, "param", None), "code": code}
    }
    assert "[DONE]" not in answer.text
    assert [handle.cancelled for handle in engine.handles] == [0, 1]


async def test_an_error_after_a_comment_is_an_event() -> None:
    release = anyio.Event()
    engine = ScriptedEngine([Play((), error=RequestShedError(2), release=release)])
    app = create_app(as_engine(engine), api=ApiConfig(ping_after=0.01))
    async with exchange(app, COMPLETIONS, {"prompt": "x", "stream": True}) as request:
        assert (await request.next())["status"] == 200
        assert await request.body() == b": waiting\n\n"
        release.set()
        while (message := await request.next())["more_body"]:
            assert message["body"] == b": waiting\n\n"
    assert b'"code":"shed"' in message["body"]
    assert b"[DONE]" not in message["body"]


async def test_a_log_line_tells_the_error_of_a_stream_that_had_begun(caplog: pytest.LogCaptureFixture) -> None:
    engine = ScriptedEngine([Play(["one"], error=RequestShedError(2)), Play((), error=RequestShedError(2))])
    async with client_of(create_app(as_engine(engine))) as client:
        with caplog.at_level(logging.INFO, "llamalane.api.access"):
            for _ in range(2):
                await client.post(COMPLETIONS, json={"prompt": "x", "stream": True})
    begun, refused = (record.getMessage() for record in caplog.records if record.name == "llamalane.api.access")
    assert "status=200" in begun
    assert "error=RequestShedError" in begun
    assert "status=429" in refused


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("seconds", "header"), [(0.0, "1"), (0.3, "1"), (1.0, "1"), (1.01, "2"), (29.5, "30")])
async def test_retry_after_is_in_whole_seconds_rounded_up(seconds: float, header: str, streamed: bool) -> None:
    refusals = [
        Play(refusal=QueueFullError(seconds, reason="requests", limit=9)),
        Play(refusal=TenantLimitError(seconds, tenant="ann", reason="concurrent", limit=9)),
        Play((), error=RequestShedError(seconds)),
    ]
    async with client_of(create_app(as_engine(ScriptedEngine(refusals)))) as client:
        for _ in refusals[:]:
            answer = await client.post(COMPLETIONS, json={"prompt": "x", "stream": streamed})
            assert answer.headers["retry-after"] == header


async def test_a_new_class_of_errors_is_told_as_the_one_above_it() -> None:
    class BusyError(UnavailableError):
        retry_after = 3.5

    answer = answer_for(BusyError("busy"))
    assert answer.status == 503
    assert answer.headers == {"Retry-After": "4"}


async def test_clients_are_told_not_to_send_again_what_was_superseded() -> None:
    async with client_of(create_app(as_engine(ScriptedEngine([Play((), error=SupersededError("a", "b"))])))) as client:
        answer = await client.post(COMPLETIONS, json={"prompt": "x", "stream": True})
    assert answer.headers["x-should-retry"] == "false"


async def test_the_param_is_called_as_the_client_called_it() -> None:
    messages = [{"role": "user", "content": "hi"}]
    too_long = Play(refusal=PromptTooLongError(900, 128))
    too_many = Play(refusal=InvalidRequestError("no", param="max_tokens"))
    async with client_of(create_app(as_engine(ScriptedEngine([too_long, too_many])))) as client:
        answer = await client.post(CHAT, json={"messages": messages})
        assert answer.json()["error"]["param"] == "messages"
        answer = await client.post(CHAT, json={"messages": messages, "max_completion_tokens": 500})
        assert answer.json()["error"]["param"] == "max_completion_tokens"


async def test_what_the_framework_refuses_has_the_same_shape() -> None:
    async with client_of(create_app(as_engine(ScriptedEngine()))) as client:
        nowhere = await client.get("/v2/nothing")
        assert nowhere.status_code == 404
        assert nowhere.json()["error"] == {
            "message": "no such endpoint: GET /v2/nothing",
            "type": "invalid_request_error",
            "param": None,
            "code": "unknown_url",
        }
        wrong_method = await client.get(COMPLETIONS)
        assert wrong_method.status_code == 405
        assert wrong_method.headers["allow"] == "POST"
        assert wrong_method.json()["error"]["code"] == "method_not_allowed"


async def test_bad_bodies_are_refused_and_any_content_type_is_taken() -> None:
    async with client_of(create_app(as_engine(ScriptedEngine()))) as client:
        for body, param in (
            (b"{", None),
            (b'{"prompt": "\xff\xfe"}', None),
            (b'{"prompt": "x", "max_tokens": "5"}', "max_tokens"),
            (b'{"prompt": "x", "priority": "sometime"}', "priority"),
            (b'{"prompt": "x", "service_tier": "gold"}', "service_tier"),
        ):
            answer = await client.post(COMPLETIONS, content=body)
            assert answer.status_code == 400
            assert answer.json()["error"]["type"] == "invalid_request_error"
            assert answer.json()["error"]["param"] == param
        unknown = await client.post(COMPLETIONS, json={"prompt": "x", "model": "gpt-9"})
        assert unknown.status_code == 404
        assert unknown.json()["error"]["code"] == "model_not_found"
        taken = await client.post(COMPLETIONS, content=b'{"prompt": "x"}', headers={"content-type": "text/plain"})
        assert taken.status_code == 200


async def test_a_failure_of_our_own_is_logged_and_told_without_its_words(caplog: pytest.LogCaptureFixture) -> None:
    engine = ScriptedEngine()
    engine.plays = None  # type: ignore[assignment]
    engine.model_info = None  # type: ignore[assignment]
    async with client_of(create_app(as_engine(engine))) as client:
        with caplog.at_level(logging.ERROR, "llamalane.api"):
            answer = await client.get("/v1/models", headers={"X-Request-Id": "mine"})
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "internal_error"
    assert "NoneType" not in answer.text
    assert answer.headers["x-request-id"] == "mine"
    assert "request mine failed" in caplog.text

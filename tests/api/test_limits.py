"""What a request may send, and for how long: clear refusals, whatever the server around the app allows."""

from __future__ import annotations

import json
import math

import anyio
import pytest
from starlette.types import Message

from llamalane.api import ApiConfig, create_app
from llamalane.api.limits import MAX_HEAD_BYTES, MAX_HEADERS, MIB, BodyReader
from tests.api.asgi import client_of, exchange
from tests.api.fake_engine import Play, ScriptedEngine, as_engine

pytestmark = pytest.mark.anyio

BODY = {"prompt": "x"}


async def test_too_many_headers_are_refused() -> None:
    async with client_of(create_app(as_engine(ScriptedEngine()))) as client:
        few = [(f"x-{number}", "y") for number in range(MAX_HEADERS - 20)]
        assert (await client.post("/v1/completions", json=BODY, headers=few)).status_code == 200
        answer = await client.post("/v1/completions", json=BODY, headers=[*few, *few])
    assert answer.status_code == 431
    assert answer.json()["error"]["code"] == "headers_too_large"
    assert f"at most {MAX_HEADERS}" in answer.json()["error"]["message"]
    assert answer.headers["connection"] == "close"
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize(
    ("path", "header"),
    [("/health", MAX_HEAD_BYTES), (f"/health?{'y' * 40_000}", 40_000), (f"/{'y' * 40_000}", 40_000)],
    ids=["header", "query", "path"],
)
async def test_a_head_that_is_too_large_is_refused(path: str, header: int) -> None:
    async with client_of(create_app(as_engine(ScriptedEngine()))) as client:
        answer = await client.get(path, headers={"x-large": "y" * header})
    assert answer.status_code == 431
    assert f"at most {MAX_HEAD_BYTES}" in answer.json()["error"]["message"]


async def test_a_body_that_does_not_come_is_refused_in_time() -> None:
    app = create_app(as_engine(ScriptedEngine()), api=ApiConfig(body_timeout=0.05))
    arriving = anyio.Event()

    async def receive() -> Message:
        if not arriving.is_set():
            arriving.set()
            return {"type": "http.request", "body": b"{", "more_body": True}
        await anyio.sleep_forever()
        raise AssertionError

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "query_string": b"", "headers": headers}
    await app(scope, receive, send)
    start, body = sent
    assert start["status"] == 408
    assert (b"connection", b"close") in start["headers"]
    assert json.loads(body["body"])["error"]["code"] == "request_timeout"
    assert "1 bytes within 0.05" in json.loads(body["body"])["error"]["message"]


async def test_a_body_has_more_time_the_more_of_it_has_come_and_what_follows_has_no_bound() -> None:
    times: list[float] = []
    messages: list[Message] = [
        {"type": "http.request", "body": b"x" * MIB, "more_body": True},
        {"type": "http.request", "body": b"y"},
        {"type": "http.disconnect"},
    ]

    async def receive() -> Message:
        times.append(anyio.current_effective_deadline() - begin)
        return messages.pop(0)

    begin = anyio.current_time()
    read = BodyReader(receive, 2 * MIB, 60)
    for _ in range(3):
        await read()
    assert times == [pytest.approx(60, abs=30), pytest.approx(120, abs=30), math.inf]
    assert times[1] - times[0] == pytest.approx(60)


async def test_a_long_answer_outlives_the_time_for_the_body() -> None:
    release = anyio.Event()
    app = create_app(
        as_engine(ScriptedEngine([Play(release=release)])), api=ApiConfig(body_timeout=0.01, ping_after=0.02)
    )
    async with exchange(app, "/v1/completions", {**BODY, "stream": True}) as request:
        assert (await request.next())["status"] == 200
        for _ in range(2):
            assert await request.body() == b": waiting\n\n"
        release.set()
        while (message := await request.next())["more_body"]:
            pass
    assert message["body"].endswith(b"[DONE]\n\n")


@pytest.mark.parametrize(("length", "status"), [(1024, 200), (1025, 413)])
async def test_a_body_over_the_limit_is_refused_whether_or_not_its_length_is_told(length: int, status: int) -> None:
    app = create_app(as_engine(ScriptedEngine()), api=ApiConfig(max_body_bytes=1024))
    body = b'{"prompt": "x"}'.ljust(length)
    async with client_of(app) as client:
        told = await client.post("/v1/completions", content=body)
    assert told.status_code == status
    pieces = [body[start : start + 100] for start in range(0, length, 100)]
    async with exchange(app, "/v1/completions", pieces) as request:
        assert (await request.next())["status"] == status
        answer = await request.body()
    if status == 413:
        assert b"request_too_large" in answer
        assert told.content == answer


async def test_a_body_is_refused_unread_when_its_length_is_told() -> None:
    app = create_app(as_engine(ScriptedEngine()), api=ApiConfig(max_body_bytes=1024))
    async with client_of(app) as client:
        answer = await client.post("/v1/completions", content=b"{", headers={"Content-Length": "99999999"})
    assert answer.status_code == 413
    assert "1024 bytes" in answer.json()["error"]["message"]

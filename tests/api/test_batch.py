from __future__ import annotations

import anyio
import pytest

from llamalane.api import serve_item
from llamalane.errors import QueueFullError
from tests.api.fake_engine import Play, ScriptedEngine, as_engine

pytestmark = pytest.mark.anyio

MESSAGES = [{"role": "user", "content": "hi"}]


async def test_an_item_is_answered_as_the_endpoint_answers() -> None:
    engine = ScriptedEngine()
    body = {"messages": MESSAGES, "priority": "batch", "n": 2}
    status, answer = await serve_item(as_engine(engine), "POST", "/v1/chat/completions", body)
    assert status == 200
    assert answer["object"] == "chat.completion"
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["Hello, world"] * 2
    assert answer["priority"] == 5
    status, answer = await serve_item(as_engine(engine), "POST", "/v1/completions", {"prompt": "x"})
    assert (status, answer["object"]) == (200, "text_completion")


async def test_an_error_is_an_answer() -> None:
    full = Play(refusal=QueueFullError(3, reason="requests", limit=1))
    engine = as_engine(ScriptedEngine([full]))
    for method, url, body, status in (
        ("POST", "/v1/completions", {"prompt": "x"}, 429),
        ("POST", "/v1/completions", {"prompt": "x", "stream": True}, 400),
        ("POST", "/v1/completions", {"prompt": ""}, 400),
        ("POST", "/v1/completions", {"prompt": "x", "priority": 9}, 400),
        ("POST", "/v1/completions", {"prompt": "x", "model": "gpt-9"}, 404),
        ("POST", "/v1/speech", {}, 404),
        ("GET", "/v1/completions", {}, 405),
    ):
        answer = await serve_item(engine, method, url, body)
        assert answer[0] == status
        assert set(answer[1]["error"]) == {"message", "type", "param", "code"}


async def test_a_cancelled_item_cancels_its_request() -> None:
    engine = ScriptedEngine([Play(release=anyio.Event())])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve_item, as_engine(engine), "POST", "/v1/completions", {"prompt": "x"})
        await engine.submitted.wait()
        tasks.cancel_scope.cancel()
    assert [handle.cancelled for handle in engine.handles] == [1]

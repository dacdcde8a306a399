from __future__ import annotations

import logging

import anyio
import pytest

from llamalane.api import ApiConfig, create_app
from tests.api.asgi import exchange
from tests.api.fake_engine import Play, ScriptedEngine, as_engine

pytestmark = pytest.mark.anyio

COMPLETIONS = "/v1/completions"


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("choices", [1, 3])
async def test_a_client_that_leaves_while_waiting_cancels_every_choice_once(streamed: bool, choices: int) -> None:
    engine = ScriptedEngine([Play(release=anyio.Event()) for _ in range(choices)])
    body = {"prompt": "x", "n": choices, "stream": streamed}
    async with exchange(create_app(as_engine(engine)), COMPLETIONS, body) as request:
        await engine.submitted.wait()
        request.leave()
    assert [handle.cancelled for handle in engine.handles] == [1] * choices


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_client_that_leaves_while_its_prompts_are_submitted_frees_what_it_has(streamed: bool) -> None:
    engine = ScriptedEngine([Play(), Play(tokenized=anyio.Event()), Play()])
    body = {"prompt": ["x", "y", "z"], "stream": streamed}
    async with exchange(create_app(as_engine(engine)), COMPLETIONS, body) as request:
        await engine.submitted.wait()
        await anyio.wait_all_tasks_blocked()
        request.leave()
    assert [handle.cancelled for handle in engine.handles] == [1]
    assert engine.submissions == 2


async def test_a_client_that_leaves_during_a_stream_cancels_what_has_not_ended(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = ScriptedEngine([Play(["a", "b"], release=anyio.Event(), before_release=1), Play(["c"])])
    body = {"prompt": "x", "n": 2, "stream": True}
    with caplog.at_level(logging.INFO, "llamalane.api.access"):
        async with exchange(create_app(as_engine(engine)), COMPLETIONS, body) as request:
            await request.next()
            for _ in range(3):  # the first choice's text, and all of the second choice
                await request.body()
            request.leave()
    assert [handle.cancelled for handle in engine.handles] == [1, 0]
    assert "status=499 level=3" in caplog.text


async def test_a_client_that_leaves_without_having_read_frees_the_stream_that_waits_for_it() -> None:
    engine = ScriptedEngine([Play(["text"] * 1000)])
    async with exchange(create_app(as_engine(engine)), COMPLETIONS, {"prompt": "x", "stream": True}) as request:
        await anyio.wait_all_tasks_blocked()
        request.leave()
    assert [handle.cancelled for handle in engine.handles] == [1]


async def test_a_client_that_was_gone_before_the_answer_began_is_noticed() -> None:
    engine = ScriptedEngine([Play(release=anyio.Event())])
    async with exchange(create_app(as_engine(engine)), COMPLETIONS, {"prompt": "x", "stream": True}) as request:
        request.leave()
    assert [handle.cancelled for handle in engine.handles] == [1]


async def test_a_client_that_leaves_after_a_comment_cancels_its_request(caplog: pytest.LogCaptureFixture) -> None:
    engine = ScriptedEngine([Play(release=anyio.Event())])
    app = create_app(as_engine(engine), api=ApiConfig(ping_after=0.01))
    with caplog.at_level(logging.INFO, "llamalane.api.access"):
        async with exchange(app, COMPLETIONS, {"prompt": "x", "stream": True}) as request:
            await request.next()
            await request.body()
            request.leave()
    assert [handle.cancelled for handle in engine.handles] == [1]
    assert "status=499" in caplog.text


async def test_a_server_that_is_cancelled_cancels_its_requests() -> None:
    engine = ScriptedEngine([Play(release=anyio.Event())])
    with anyio.CancelScope() as scope:
        async with exchange(create_app(as_engine(engine)), COMPLETIONS, {"prompt": "x"}):
            await engine.submitted.wait()
            scope.cancel()
    assert [handle.cancelled for handle in engine.handles] == [1]


async def test_a_request_that_ended_is_not_cancelled() -> None:
    engine = ScriptedEngine()
    for streamed in (False, True):
        async with exchange(create_app(as_engine(engine)), COMPLETIONS, {"prompt": "x", "stream": streamed}):
            pass
    assert [handle.cancelled for handle in engine.handles] == [0, 0]

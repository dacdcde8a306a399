"""Who waits, who runs, and why: what `/v1/queue` tells, and to whom."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import SecretStr

from llamalane.api import ApiConfig, create_app
from llamalane.ids import Level, RequestId
from llamalane.scheduler import EngineState, RequestState
from llamalane.scheduler.explain import Explanation
from tests.api.asgi import client_of
from tests.api.fake_engine import ScriptedEngine, as_engine

pytestmark = pytest.mark.anyio

WAITING = Explanation(
    request=RequestId("chatcmpl-b/0"),
    state=RequestState.WAITING,
    level=Level(5),
    position=2,
    effective_priority=3.25,
    reason="two requests go before it",
    estimated_start=4.5,
    events=(("accepted", 100.0), ("admitted", 101.5), ("requeued", 102.25)),
    lane=None,
    prompt_tokens=12,
    generated_tokens=3,
)
RUNNING = Explanation(
    request=RequestId("cmpl-a/1"),
    state=RequestState.RUNNING,
    level=Level(1),
    position=None,
    effective_priority=1.0,
    reason="it runs",
    estimated_start=None,
    events=(),
    lane="main",
    prompt_tokens=7,
    generated_tokens=5,
)
TOLD_WAITING = {
    "id": "chatcmpl-b/0",
    "object": "queue.entry",
    "state": "waiting",
    "priority": 5,
    "effective_priority": 3.25,
    "position": 2,
    "reason": "two requests go before it",
    "estimated_start": 4.5,
    "lane": None,
    "prompt_tokens": 12,
    "generated_tokens": 3,
    "events": [
        {"name": "accepted", "after": 0.0},
        {"name": "admitted", "after": 1.5},
        {"name": "requeued", "after": 2.25},
    ],
}
TOLD_RUNNING = {
    "id": "cmpl-a/1",
    "object": "queue.entry",
    "state": "running",
    "priority": 1,
    "effective_priority": 1.0,
    "position": None,
    "reason": "it runs",
    "estimated_start": None,
    "lane": "main",
    "prompt_tokens": 7,
    "generated_tokens": 5,
    "events": [],
}


async def test_the_queue_is_listed_in_the_engines_order() -> None:
    async with client_of(create_app(as_engine(ScriptedEngine(explanations=[WAITING, RUNNING])))) as client:
        listed = await client.get("/v1/queue")
    assert listed.json() == {"object": "list", "data": [TOLD_WAITING, TOLD_RUNNING]}
    async with client_of(create_app(as_engine(ScriptedEngine()))) as client:
        assert (await client.get("/v1/queue")).json() == {"object": "list", "data": []}


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("chatcmpl-b/0", TOLD_WAITING),
        ("chatcmpl-b%2F0", TOLD_WAITING),
        ("chatcmpl-b", TOLD_WAITING),
        ("cmpl-a/1", TOLD_RUNNING),
    ],
)
async def test_a_request_is_explained_under_its_id(path: str, told: dict[str, Any]) -> None:
    async with client_of(create_app(as_engine(ScriptedEngine(explanations=[WAITING, RUNNING])))) as client:
        assert (await client.get(f"/v1/queue/{path}")).json() == told


@pytest.mark.parametrize("path", ["cmpl-a", "cmpl-a/0", "chatcmpl", "nobody"])
async def test_an_unknown_id_is_not_found(path: str) -> None:
    async with client_of(create_app(as_engine(ScriptedEngine(explanations=[WAITING, RUNNING])))) as client:
        answer = await client.get(f"/v1/queue/{path}")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "request_not_found"


async def test_the_page_is_told_of_a_request_that_has_just_ended_without_an_error() -> None:
    async with client_of(create_app(as_engine(ScriptedEngine(explanations=[WAITING, RUNNING])))) as client:
        assert (await client.get("/dashboard/explanations/cmpl-a/1")).json() == TOLD_RUNNING
        ended = await client.get("/dashboard/explanations/cmpl-a/0")
    assert (ended.status_code, ended.json()) == (200, None)


async def test_the_queue_is_shown_while_draining_too() -> None:
    draining = ScriptedEngine(state=EngineState.DRAINING, explanations=[RUNNING])
    async with client_of(create_app(as_engine(draining))) as client:
        assert len((await client.get("/v1/queue")).json()["data"]) == 1


@pytest.mark.parametrize("path", ["/v1/queue", "/v1/queue/cmpl-a/1", "/dashboard/explanations/cmpl-a/1"])
async def test_the_queue_is_shown_to_who_has_the_key(path: str) -> None:
    engine = as_engine(ScriptedEngine(explanations=[WAITING, RUNNING]))
    async with client_of(create_app(engine, api=ApiConfig(api_key=SecretStr("sesame")))) as client:
        assert (await client.get(path)).status_code == 401
        assert (await client.get(path, headers={"x-api-key": "sesame"})).status_code == 200

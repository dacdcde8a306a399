"""What a client of a real server sees when there is too much to do."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import httpx
import openai
import pytest
from fastapi import FastAPI

from llamalane.api import create_app
from llamalane.errors import DeadlineExceededError, LlamalaneError, RequestShedError, SupersededError
from tests.api.fake_engine import Play, ScriptedEngine, as_engine
from tests.api.serving import SERVERS

Serve = Callable[[FastAPI], AbstractContextManager[str]]

BODY = {"prompt": "x", "stream": True}


@pytest.fixture(params=SERVERS)
def serve(request: pytest.FixtureRequest) -> Serve:
    return SERVERS[request.param]


@pytest.mark.parametrize(
    ("error", "status", "retry_after"),
    [
        (RequestShedError(2.5), 429, "3"),
        (DeadlineExceededError(1), 504, None),
        (SupersededError("old", "new"), 409, None),
    ],
)
def test_a_stream_that_fails_before_its_first_text_is_an_http_error(
    serve: Serve, error: LlamalaneError, status: int, retry_after: str | None
) -> None:
    engine = ScriptedEngine([Play((), error=error), Play(["after all"])])
    with serve(create_app(as_engine(engine))) as url, httpx.Client(base_url=url) as client:
        answer = client.post("/v1/completions", json=BODY)
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers.get("retry-after") == retry_after
        assert answer.json()["error"]["message"] == str(error)
        assert "after all" in client.post("/v1/completions", json=BODY).text  # on the same connection


def test_a_stream_that_fails_later_ends_with_an_event(serve: Serve) -> None:
    engine = ScriptedEngine([Play(["one"], error=RequestShedError(2.5)), Play(["after all"])])
    with serve(create_app(as_engine(engine))) as url, httpx.Client(base_url=url) as client:
        answer = client.post("/v1/completions", json=BODY)
        assert answer.status_code == 200
        assert answer.text.rstrip().splitlines()[-1].startswith('data: {"error":')
        assert "after all" in client.post("/v1/completions", json=BODY).text


def test_openai_clients_come_back_after_being_shed_but_not_after_being_superseded(serve: Serve) -> None:
    engine = ScriptedEngine(
        [Play((), error=RequestShedError(0.1)), Play(["after all"]), Play((), error=SupersededError("old", "new"))]
    )
    with (
        serve(create_app(as_engine(engine))) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=1) as client,
    ):
        [first, *_] = client.completions.create(model="scripted", prompt="x", stream=True)
        assert first.choices[0].text == "after all"
        with pytest.raises(openai.ConflictError) as caught:
            client.completions.create(model="scripted", prompt="x", stream=True)
    assert caught.value.code == "superseded"
    assert engine.submissions == 3


def test_health_can_be_asked_without_its_body(serve: Serve) -> None:
    with serve(create_app(as_engine(ScriptedEngine()))) as url, httpx.Client(base_url=url) as client:
        for _ in range(2):  # on the same connection
            answer = client.head("/health")
            assert (answer.status_code, answer.content) == (200, b"")


def test_a_body_that_is_too_large_to_be_parsed_is_refused(serve: Serve) -> None:
    data = b'{"prompt": [' + b"1," * 7_000_000 + b"1]}"
    with serve(create_app(as_engine(ScriptedEngine()))) as url, httpx.Client(base_url=url) as client:
        answer = client.post("/v1/completions", content=data)
        assert answer.status_code == 400
        assert "too many" in answer.json()["error"]["message"]

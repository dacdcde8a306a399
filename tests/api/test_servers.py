"""The app under real servers: clients that leave, and hypercorn on trio."""

from __future__ import annotations

import contextlib
import functools
import json
import queue
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.to_thread
import httpx
import hypercorn
import hypercorn.trio
import pytest
import uvicorn
from fastapi import FastAPI
from hypercorn.utils import LifespanFailureError

from llamalane.api import ApiConfig, create_app
from llamalane.errors import ModelLoadError
from llamalane.scheduler import (
    Engine,
    EngineConfig,
    Event,
    EventKind,
    LaneConfig,
    ModelConfig,
    SchedulerConfig,
    StreamsConfig,
)
from tests.api.scraping import Scrape
from tests.api.serving import SERVERS, listening

ENDLESS = {"prompt": "x", "ignore_eos": True}


def config_of(model: Path, places: int) -> EngineConfig:
    return EngineConfig(
        models=[ModelConfig(path=model, name="tiny")],
        streams=StreamsConfig(lanes=[LaneConfig(places=places)]),
        scheduler=SchedulerConfig(drain_timeout=0),
    )


class Observed:
    """A server with one place, and the events of its engine."""

    def __init__(self, url: str, events: queue.SimpleQueue[Event]) -> None:
        self.url = url
        self._events = events

    def wait_for(self, kind: EventKind) -> str:
        """Wait for the next event of this kind; returns whose it is."""
        while True:
            event = self._events.get(timeout=30)
            if event.kind is kind:
                return event.request

    def metric(self, name: str, **labels: str) -> float:
        return Scrape(httpx.get(f"{self.url}/metrics").text).value(name, **labels)

    def begin(self, **body: Any) -> socket.socket:
        """Send a request and do not read its answer."""
        host, port = self.url.removeprefix("http://").split(":")
        connection = socket.create_connection((host, int(port)))
        data = json.dumps(body).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(data)}\r\n\r\n"
        connection.sendall(head.encode() + data)
        return connection


@contextlib.contextmanager
def observing(model: Path, server: str, api: ApiConfig) -> Iterator[Observed]:
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    engine = Engine(config_of(model, places=1), observer=events.put)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with engine:
            yield

    host = FastAPI(lifespan=lifespan)
    host.mount("/", create_app(engine, api=api))
    with SERVERS[server](host) as url:
        yield Observed(url, events)


@pytest.fixture(params=SERVERS)
def observed(tiny_model: Path, request: pytest.FixtureRequest) -> Iterator[Observed]:
    with observing(tiny_model, request.param, ApiConfig()) as server:
        yield server


@pytest.mark.parametrize("streamed", [False, True])
def test_a_client_that_leaves_gives_its_place_back(observed: Observed, streamed: bool) -> None:
    leaving = observed.begin(**ENDLESS, stream=streamed)
    started = observed.wait_for(EventKind.STARTED)
    leaving.close()
    assert observed.wait_for(EventKind.ENDED) == started
    # The place is free: the next request gets it, and ends.
    answer = httpx.post(f"{observed.url}/v1/completions", json={**ENDLESS, "max_tokens": 2})
    assert answer.json()["usage"]["completion_tokens"] == 2
    assert observed.metric("llamalane_requests_ended_total", outcome="cancelled") == 1


@pytest.mark.parametrize("streamed", [False, True])
def test_a_client_that_leaves_while_queued_is_dropped_from_the_queue(observed: Observed, streamed: bool) -> None:
    with observed.begin(**ENDLESS):
        first = observed.wait_for(EventKind.STARTED)
        waiting = observed.begin(**ENDLESS, stream=streamed)
        second = observed.wait_for(EventKind.ACCEPTED)
        waiting.close()
        ended = observed.wait_for(EventKind.ENDED)
        assert ended == second != first
        assert observed.metric("llamalane_num_requests_waiting", level="3") == 0
        assert observed.metric("llamalane_num_requests_running", level="3") == 1
    assert observed.wait_for(EventKind.ENDED) == first


def test_the_queue_tells_who_waits_and_who_runs(observed: Observed) -> None:
    with observed.begin(**ENDLESS):
        observed.wait_for(EventKind.STARTED)
        with observed.begin(**ENDLESS, priority=5), httpx.Client(base_url=observed.url) as client:
            observed.wait_for(EventKind.ACCEPTED)
            waiting, running = client.get("/v1/queue").json()["data"]
            assert (waiting["state"], waiting["position"]) == ("waiting", 0)
            assert (running["state"], running["lane"]) == ("running", "main")
            assert waiting["estimated_start"] >= 0
            assert waiting["events"][0] == {"name": "accepted", "after": 0.0}
            for entry in (waiting, running):
                assert client.get(f"/v1/queue/{entry['id']}").json()["id"] == entry["id"]
                assert client.get(f"/v1/queue/{entry['id'].removesuffix('/0')}").json()["id"] == entry["id"]
            assert client.get("/v1/queue/cmpl-nobody/0").status_code == 404


def test_a_newer_request_with_the_same_key_ends_the_older_one_that_waits(observed: Observed) -> None:
    with observed.begin(**ENDLESS):
        observed.wait_for(EventKind.STARTED)
        with observed.begin(**ENDLESS, stream=True, supersede="editor 1") as older:
            observed.wait_for(EventKind.ACCEPTED)
            with observed.begin(**ENDLESS, stream=True, supersede="editor 1"):
                assert older.recv(1000).startswith(b"HTTP/1.1 409")


@pytest.mark.parametrize("streamed", [False, True])
def test_a_deadline_that_passes_in_the_queue_is_an_http_error(observed: Observed, streamed: bool) -> None:
    with observed.begin(**ENDLESS):
        observed.wait_for(EventKind.STARTED)
        answer = httpx.post(f"{observed.url}/v1/completions", json={**ENDLESS, "stream": streamed, "deadline": 0.05})
    assert answer.status_code == 504
    assert answer.json()["error"]["code"] == "deadline_exceeded"


@pytest.mark.parametrize("server", SERVERS)
def test_a_client_that_leaves_after_a_comment_is_dropped_from_the_queue(tiny_model: Path, server: str) -> None:
    with (
        observing(tiny_model, server, ApiConfig(ping_after=0.05)) as observed,
        observed.begin(**ENDLESS),
    ):
        first = observed.wait_for(EventKind.STARTED)
        waiting = observed.begin(**ENDLESS, stream=True)
        second = observed.wait_for(EventKind.ACCEPTED)
        received = b""
        while b": queued, position 1 of 1\n\n" not in received:
            received += waiting.recv(1000)
        assert received.startswith(b"HTTP/1.1 200")
        waiting.close()
        assert observed.wait_for(EventKind.ENDED) == second != first


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_hypercorn_on_trio(tiny_model: Path) -> None:
    config = hypercorn.Config()
    config.bind = ["127.0.0.1:0"]
    stop = anyio.Event()
    app = create_app(config_of(tiny_model, places=2))
    async with anyio.create_task_group() as tasks:
        serve = functools.partial(hypercorn.trio.serve, cast(Any, app), config, shutdown_trigger=stop.wait)
        [url] = await tasks.start(serve)
        async with httpx.AsyncClient(base_url=url, timeout=30) as client:
            while (await client.get("/health")).status_code == 503:
                await anyio.lowlevel.checkpoint()
            body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "seed": 1}
            whole = await client.post("/v1/chat/completions", json=body)
            text = ""
            async with client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as answer:
                async for line in answer.aiter_lines():
                    if line.startswith("data: {"):
                        [choice] = json.loads(line[6:])["choices"]
                        text += choice["delta"].get("content", "")
            assert text == whole.json()["choices"][0]["message"]["content"]
            assert line == ""
        stop.set()


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_a_model_that_cannot_be_loaded_ends_hypercorn(tmp_path: Path) -> None:
    config = hypercorn.Config()
    config.bind = ["127.0.0.1:0"]
    config.errorlog = None
    app = create_app(config_of(tmp_path / "missing.gguf", places=1))
    with pytest.raises(ExceptionGroup) as caught:
        await hypercorn.trio.serve(cast(Any, app), config)
    assert caught.group_contains(LifespanFailureError, match=r"missing\.gguf")


def test_a_model_that_cannot_be_loaded_ends_uvicorn_through_the_hook(tmp_path: Path) -> None:
    failures: list[Exception] = []

    def end(error: Exception) -> None:
        failures.append(error)
        server.should_exit = True

    app = create_app(config_of(tmp_path / "missing.gguf", places=1), on_failure=end)
    with listening() as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="on"))
        server.run(sockets=[listener])
    [failure] = failures
    assert isinstance(failure, ModelLoadError)

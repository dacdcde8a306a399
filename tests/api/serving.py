"""Real servers on real sockets."""

from __future__ import annotations

import contextlib
import functools
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import anyio
import hypercorn
import hypercorn.trio
import openai
import uvicorn
from anyio.from_thread import start_blocking_portal
from fastapi import FastAPI

from llamalane.api import create_app
from llamalane.api.config import ServerConfig
from llamalane.scheduler import LaneConfig, ModelConfig, StreamsConfig


@contextlib.contextmanager
def listening(port: int = 0) -> Iterator[socket.socket]:
    """A socket, on a free port unless one is named, that takes connections at once, though nobody answers yet."""
    with socket.create_server(("127.0.0.1", port), backlog=64) as listener:
        yield listener


def url_of(listener: socket.socket) -> str:
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


@contextlib.contextmanager
def served(app: FastAPI, *, port: int = 0, patience: int = 5) -> Iterator[str]:
    """Serve `app` by uvicorn in a thread; gives its address. At the end connections have `patience` seconds."""
    with listening(port) as listener:
        # The same implementation of HTTP as `llamalane serve` has.
        config = uvicorn.Config(app, http="h11", log_config=None, lifespan="on", timeout_graceful_shutdown=patience)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="uvicorn")
        thread.start()
        try:
            yield url_of(listener)
        finally:
            server.should_exit = True
            thread.join()


@contextlib.contextmanager
def serving(model: Path) -> Iterator[openai.OpenAI]:
    """OpenAI's client of a server that has `model`, called model, on a lane of four places, and has loaded it."""
    config = ServerConfig(
        models=[ModelConfig(path=model, name="model")], streams=StreamsConfig(lanes=[LaneConfig(places=4)])
    )
    with served(create_app(config)) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        # While the model loads the answer is 503, which the client tries again.
        client.with_options(max_retries=20).models.list()
        yield client


@contextlib.contextmanager
def served_on_trio(app: FastAPI) -> Iterator[str]:
    """Serve `app` by hypercorn on trio in a thread; gives its address."""
    config = hypercorn.Config()
    config.bind = ["127.0.0.1:0"]
    with start_blocking_portal("trio") as portal:
        stop = portal.call(anyio.Event)
        serve = functools.partial(hypercorn.trio.serve, cast(Any, app), config, shutdown_trigger=stop.wait)
        ended, [url] = portal.start_task(serve)
        try:
            yield url
        finally:
            portal.call(stop.set)
            ended.result()


SERVERS: Mapping[str, Callable[[FastAPI], contextlib.AbstractContextManager[str]]] = {
    "uvicorn": served,
    "hypercorn": served_on_trio,
}

"""Real servers on real sockets."""

from __future__ import annotations

import contextlib
import functools
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import anyio
import hypercorn
import hypercorn.trio
import uvicorn
from anyio.from_thread import start_blocking_portal
from fastapi import FastAPI


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

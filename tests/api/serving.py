"""A real server on a real socket."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import uvicorn
from fastapi import FastAPI


@contextlib.contextmanager
def listening() -> Iterator[socket.socket]:
    """A socket on a free port that takes connections at once, though nobody answers yet."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield listener


def url_of(listener: socket.socket) -> str:
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


@contextlib.contextmanager
def served(app: FastAPI) -> Iterator[str]:
    """Serve `app` by uvicorn in a thread; gives its address."""
    with listening() as listener:
        config = uvicorn.Config(app, log_config=None, lifespan="on", timeout_graceful_shutdown=5)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="uvicorn")
        thread.start()
        try:
            yield url_of(listener)
        finally:
            server.should_exit = True
            thread.join()

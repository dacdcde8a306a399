"""Serves a model over HTTP until a signal comes."""

from __future__ import annotations

import errno
import importlib.util
import math
import os
import socket
from contextlib import closing
from types import FrameType
from typing import TYPE_CHECKING

import anyio
import uvicorn

from llamalane.api import ServerConfig, create_app
from llamalane.errors import LlamalaneError
from llamalane.scheduler import Engine, EngineState

if TYPE_CHECKING:
    from rich.console import Console

_CLOSE_SECONDS = 5
"""How long clients have to read the ends of their streams once the engine has drained."""


def serve(config: ServerConfig, console: Console) -> None:
    """Load the model and serve it. While it loads, requests are answered with 503.

    The first signal ends the server when running requests have finished, or after `drain_timeout`; a second one ends
    the process at once, as the first one does while the model loads.
    """
    with closing(listen(config.api.host, config.api.port)) as listener:
        anyio.run(
            _serve,
            config,
            listener,
            console,
            backend_options={"use_uvloop": importlib.util.find_spec("uvloop") is not None},
        )


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; raises `LlamalaneError` when the address cannot be had."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        # Two processes may bind the same address; only one of them may listen.
        listener.listen()
    except (OSError, UnicodeError) as error:
        listener.close()
        raise LlamalaneError(_why_not(host, port, error)) from error
    return listener


def _why_not(host: str, port: int, error: Exception) -> str:
    code = error.errno if isinstance(error, OSError) else None
    if code == errno.EADDRINUSE:
        return f"port {port} on {host} is in use by another process: end that one, or give another --port"
    if code == errno.EACCES:
        return f"port {port} on {host} is not allowed for this user: give a --port above 1023"
    return f"cannot listen on {host}, port {port}: {error.strerror if isinstance(error, OSError) else error}"


class _Server(uvicorn.Server):
    """Drains the engine while open connections are waited for, and ends at once at a second signal."""

    def __init__(self, config: uvicorn.Config, engine: Engine, console: Console) -> None:
        super().__init__(config)
        self._engine = engine
        self._console = console
        self.ended = anyio.Event()

    async def run_on(self, listener: socket.socket) -> None:
        """Serve until a signal comes or `should_exit` is set."""
        try:
            await self.serve([listener])
        finally:
            self.ended.set()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take a signal. What uvicorn does here would end the process with the signal after a clean shutdown."""
        if self.should_exit or self._engine.state is not EngineState.READY:
            self._console.show_cursor()
            os._exit(128 + sig)
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the listening socket, finish what is running, then close the connections."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._drain)
            await super().shutdown(sockets)

    async def _drain(self) -> None:
        if self._engine.state is EngineState.READY:
            statistics = self._engine.stats()
            requests = sum(statistics.running.values()) + sum(statistics.waiting.values())
            if requests:
                seconds = self._engine.config.scheduler.drain_timeout
                self._console.print(f"finishing {requests} requests, for {seconds:g} s; a second signal ends at once")
            await self._engine.drain()


async def _serve(config: ServerConfig, listener: socket.socket, console: Console) -> None:
    engine = Engine(config)
    options = uvicorn.Config(
        create_app(engine, api=config.api),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=math.ceil(config.scheduler.drain_timeout) + _CLOSE_SECONDS,
    )
    server = _Server(options, engine, console)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.run_on, listener)
        failure = await _run_engine(engine, server, _address(listener), console)
    if failure is not None:
        raise failure


async def _run_engine(engine: Engine, server: _Server, address: str, console: Console) -> Exception | None:
    """Run the engine for as long as the server runs; if the engine fails, end the server and return why."""
    console.print(f"loading {engine.config.models[0].path}; until it is ready, {address} answers with 503")
    status = console.status("loading")
    status.start()
    try:
        async with engine:
            status.stop()
            console.print(_ready_line(engine, address), style="bold")
            await server.ended.wait()
    except Exception as error:
        server.should_exit = True
        return error
    finally:
        status.stop()
    return None


def _ready_line(engine: Engine, address: str) -> str:
    names = ", ".join(engine.model_names)
    lanes = engine.stats().lanes
    places = " + ".join(f"{lane.places} places on {lane.name} ({lane.kind})" for lane in lanes)
    return f"ready: {names} at {address}/v1, {places}, up to {engine.limit} tokens each"


def _address(listener: socket.socket) -> str:
    host, port, *_ = listener.getsockname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

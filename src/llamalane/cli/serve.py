"""Serves a model over HTTP until a signal comes."""

from __future__ import annotations

import errno
import importlib.util
import logging
import math
import os
import signal
import socket
import ssl
from collections.abc import Callable
from contextlib import closing
from types import FrameType
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import uvicorn
from anyio.abc import TaskStatus
from fastapi import FastAPI

from llamalane.api import ApiConfig, ServerConfig, create_app, lifespan_of, reload_config
from llamalane.api.limits import MAX_HEAD_BYTES
from llamalane.errors import LlamalaneError
from llamalane.scheduler import Engine, EngineState

if TYPE_CHECKING:
    from rich.console import Console

logger = logging.getLogger(__name__)

_CLOSE_SECONDS = 5
"""How long clients have to read the ends of their streams once the engine has drained."""


_MAX_HEADER_BYTES = 2 * MAX_HEAD_BYTES
"""The most bytes of a request's line and headers that are read. What the app refuses is told what is allowed; beyond
this, uvicorn refuses by itself."""

ReadConfig = Callable[[], ServerConfig]


def serve(config: ServerConfig, console: Console, *, read_again: ReadConfig | None = None) -> None:
    """Load the model and serve it. While it loads, requests are answered with 503.

    The first signal ends the server when running requests have finished, or after `drain_timeout`; a second one ends
    the process at once, as the first one does while the model loads. On SIGHUP, what `read_again` returns is taken
    over as far as that can be done without a restart; without it, SIGHUP does what it does to any process.
    """
    _check_certificate(config.api)
    with closing(listen(config.api.host, config.api.port)) as listener:
        anyio.run(
            _serve,
            config,
            listener,
            console,
            read_again,
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


def _check_certificate(api: ApiConfig) -> None:
    """Raise `LlamalaneError` when the certificate or its key cannot be used."""
    if api.ssl_certfile is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(api.ssl_certfile, api.ssl_keyfile, password="")
    except OSError as error:  # of which ssl.SSLError is one
        files = " with ".join(str(path) for path in (api.ssl_certfile, api.ssl_keyfile) if path is not None)
        reason = error.strerror or error
        raise LlamalaneError(f"the certificate {files} cannot be used: {reason}") from error


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
        if self.should_exit or self._engine.state not in (EngineState.READY, EngineState.DRAINING):
            self._console.show_cursor()
            os._exit(128 + sig)
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the listening socket, finish what is running, then close the connections."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._drain)
            await super().shutdown(sockets)

    async def _drain(self) -> None:
        if self._engine.state in (EngineState.READY, EngineState.DRAINING):
            statistics = self._engine.stats()
            requests = sum(statistics.running.values()) + sum(statistics.waiting.values())
            if requests:
                seconds = self._engine.config.scheduler.drain_timeout
                self._console.print(f"finishing {requests} requests, for {seconds:g} s; a second signal ends at once")
            await self._engine.drain()


async def _serve(
    config: ServerConfig, listener: socket.socket, console: Console, read_again: ReadConfig | None
) -> None:
    engine = Engine(config)
    app = create_app(engine, api=config.api)
    options = uvicorn.Config(
        app,
        http="h11",  # bounds a request's headers, as uvicorn's other implementation does not
        h11_max_incomplete_event_size=_MAX_HEADER_BYTES,
        ssl_certfile=config.api.ssl_certfile,
        ssl_keyfile=config.api.ssl_keyfile,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=math.ceil(config.scheduler.drain_timeout) + _CLOSE_SECONDS,
    )
    server = _Server(options, engine, console)
    address = _address(listener, secure=config.api.ssl_certfile is not None)
    async with lifespan_of(app)(app), anyio.create_task_group() as listening:
        if read_again is not None:
            await listening.start(_reload_on_hangup, app, read_again)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.run_on, listener)
            failure = await _run_engine(engine, server, address, console)
        listening.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _reload_on_hangup(
    app: FastAPI, read_again: ReadConfig, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    """Take over the configuration anew at each SIGHUP; what cannot be used leaves all as it is."""
    with anyio.open_signal_receiver(signal.SIGHUP) as signals:
        task_status.started()
        async for _ in signals:
            try:
                changes = reload_config(app, await anyio.to_thread.run_sync(read_again))
            except LlamalaneError as error:
                logger.error("the configuration stays as it was: %s", error)
                continue
            logger.info("read the configuration again; changed: %s", ", ".join(changes.applied) or "nothing")
            if changes.restart:
                logger.warning("these changes need a restart: %s", ", ".join(changes.restart))


async def _run_engine(engine: Engine, server: _Server, address: str, console: Console) -> Exception | None:
    """Run the engine for as long as the server runs; if the engine fails, end the server and return why."""
    files = ", ".join(dict.fromkeys(str(model.path) for model in engine.config.models))
    console.print(f"loading {files}; until it is ready, {address} answers with 503")
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
    names = ", ".join(name for model in engine.served_models for name in model.names)
    lanes = engine.stats().lanes
    places = " + ".join(f"{lane.places} places on {lane.name} ({lane.kind})" for lane in lanes)
    return f"ready: {names} at {address}/v1, {places}, up to {engine.limit} tokens each"


def _address(listener: socket.socket, *, secure: bool) -> str:
    host, port, *_ = listener.getsockname()
    scheme = "https" if secure else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

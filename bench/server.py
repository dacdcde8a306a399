"""A server in a process of its own, from its start to its end."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import httpx

from llamalane.bench.exchange import Target
from llamalane.errors import LlamalaneError

HOST = "127.0.0.1"
_PAUSE = 0.1
_TRIES = 3000
_STOP_SECONDS = 20.0
_LOG_TAIL = 3000


@dataclass(frozen=True, slots=True)
class Server:
    """A healthy server: its process id, if it was started here, and what comes before `/v1` in its URLs."""

    pid: int | None
    url: str

    def target(self) -> Target:
        """Return its completions endpoint, with the model that it names first."""
        answer = httpx.get(f"{self.url}/v1/models", timeout=30, trust_env=False).raise_for_status()
        return Target(url=self.url, model=answer.json()["data"][0]["id"])


@contextmanager
def run_server(
    arguments: Sequence[str],
    port: int,
    environment: Mapping[str, str] | None = None,
    *,
    program: Path = Path(sys.executable),
    health: str = "/health",
) -> Iterator[Server]:
    """Run `program`, Python, with `arguments`, which make it serve on `port`, while the context is open.

    `environment` is set for it beside this process's own. It is healthy when it answers the path `health` with 200.
    Raises `LlamalaneError`, with the end of the server's log, when it ends before it is healthy, or is not healthy
    after five minutes.
    """
    url = f"http://{HOST}:{port}"
    command = [str(program), *arguments]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
        )
        try:
            problem = _wait_until_healthy(process, url, health)
            if problem is not None:
                raise LlamalaneError(f"the server {problem}: {' '.join(command)}\n{_tail(log)}")
            yield Server(process.pid, url)
        finally:
            _stop(process)


def free_port() -> int:
    """Return a port of 127.0.0.1 that nothing listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _wait_until_healthy(process: subprocess.Popen[bytes], url: str, health: str) -> str | None:
    """Return None when the server is healthy, or what went wrong."""
    with httpx.Client(base_url=url, timeout=5, trust_env=False) as client:
        for _ in range(_TRIES):
            if process.poll() is not None:
                return f"ended with code {process.returncode} before it was healthy"
            try:
                if client.get(health).status_code == httpx.codes.OK:
                    return None
            except httpx.TransportError:
                pass  # it does not listen yet
            time.sleep(_PAUSE)
    return f"was not healthy after {_TRIES * _PAUSE:g} s"


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _tail(log: IO[bytes]) -> str:
    log.seek(0)
    return log.read()[-_LOG_TAIL:].decode(errors="replace")

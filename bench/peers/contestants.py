"""Those that take turns: servers that are started here, and such as run somewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import httpx

from llamalane.bench.exchange import Target
from llamalane.bench.peers.builds import build_of
from llamalane.bench.peers.kinds import Peer, Setup
from llamalane.bench.peers.starting import serve
from llamalane.bench.server import Server

_VERSION_PATHS = ("/version", "/api/version")
"""Where servers tell their version, as `{"version": …}`: vLLM and Ollama."""


class Contestant(Protocol):
    """One that is measured."""

    @property
    def name(self) -> str:
        """What reports call it."""

    @property
    def is_local(self) -> bool:
        """Whether it is started here, so that it is fresh in each measurement and its processes are known."""

    def serve(self) -> AbstractContextManager[Server]:
        """Return a context in which it runs."""

    def target(self, server: Server) -> Target:
        """Return the endpoint of the running server."""

    def build(self) -> str | None:
        """Return what it was built with, as far as it says."""


@dataclass(frozen=True, slots=True)
class LocalServer:
    """A server that is started for each measurement; `program` is its file, if it is none of an installed package."""

    peer: Peer
    setup: Setup
    program: Path | None = None

    @property
    def name(self) -> str:
        """The peer's."""
        return self.peer.value

    @property
    def is_local(self) -> bool:
        """It is."""
        return True

    def serve(self) -> AbstractContextManager[Server]:
        """Start it."""
        return serve(self.peer, self.setup, program=self.program)

    def target(self, server: Server) -> Target:
        """Return its endpoint; llama-cpp-python's server knows no `ignore_eos`, but `min_tokens`."""
        return replace(server.target(), min_tokens=self.peer is Peer.ONE_LOCK)

    def build(self) -> str | None:
        """Return what its llama.cpp was built with; raises `LlamalaneError` when it is not installed."""
        return build_of(self.peer, self.program)


@dataclass(frozen=True, slots=True)
class RemoteServer:
    """A server that runs already; `url` is what comes before `/v1`."""

    name: str
    url: str

    @property
    def is_local(self) -> bool:
        """It is not."""
        return False

    @contextmanager
    def serve(self) -> Iterator[Server]:
        """Leave it as it is."""
        yield Server(None, self.url)

    def target(self, server: Server) -> Target:
        """Return its endpoint."""
        return server.target()

    def build(self) -> str | None:
        """Return the version that it tells; None when it does not, or is of another kind."""
        for path in _VERSION_PATHS:
            with suppress(httpx.HTTPError, ValueError, KeyError, TypeError):
                answer = httpx.get(f"{self.url}{path}", timeout=5, trust_env=False).raise_for_status()
                return f"version {answer.json()['version']}"
        return None

"""The server's configuration: the engine's, and what the HTTP API needs."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, SecretStr

from llamalane.scheduler.config import EngineConfig, Integer, Number, Section


class ApiConfig(Section):
    """The HTTP API."""

    host: str = Field(default="127.0.0.1", min_length=1)
    """The address to listen on; 0.0.0.0 stands for every IPv4 address of the machine."""
    port: Integer = Field(default=8000, ge=0, le=65_535)
    """The port to listen on; 0 takes a free one."""
    api_key: SecretStr | None = Field(default=None, min_length=1)
    """The key that clients must send, best taken from the environment: "${env:LLAMALANE_API_KEY}". With null,
    whoever reaches the port is served."""
    ping_after: Number = Field(default=15.0, gt=0)
    """After so many seconds without output, a comment keeps a stream's connection open. A request that fails while
    it waits for its first output is answered with an HTTP error only until then."""
    max_body_bytes: Integer = Field(default=16 * 1024 * 1024, ge=1024)
    """The largest body of a request in bytes; a larger one is refused."""
    tenant_from_user: bool = Field(default=False)
    """Whether the field `user` of a request says which tenant it belongs to. Clients can say there what they like, so
    it serves those that can be trusted, such as an application that asks for its own users."""


class ServerConfig(EngineConfig):
    """All that a server needs to know; read and checked as `EngineConfig` is."""

    foreign_keys: ClassVar[frozenset[str]] = frozenset()

    api: ApiConfig = Field(default_factory=ApiConfig)
    """The HTTP API."""

"""One request and its streamed answer.

While the answer comes, its bytes are only kept, each block with its time. Taking them apart is left for
later, because the clients share the cores with the server that they measure.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import anyio

from llamalane.bench.workload import Question, Source
from llamalane.errors import ConfigError

_LAST_CHUNK = b"\r\n0\r\n\r\n"
"""Ends a chunked body; no event can hold it, because JSON writes line ends otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """An endpoint of an OpenAI-compatible server.

    Raises `ConfigError` when the URL is not an http URL.

    Attributes:
        url: what comes before `/v1`, such as http://127.0.0.1:8000.
        model: the name that requests give as `model`.
        chat: ask `/v1/chat/completions` instead of `/v1/completions`.
        priority: the body's `priority`; None leaves it out.
        headers: more headers for every request.
        min_tokens: send `min_tokens` too, for a server that does not know `ignore_eos`.
        timeout: seconds until a request without an end counts as failed.
    """

    url: str
    model: str
    chat: bool = False
    priority: int | str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    min_tokens: bool = False
    timeout: float = 600.0

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme != "http" or not parts.hostname:
            raise ConfigError(f"a server's URL looks like http://127.0.0.1:8000; got {self.url!r}")

    @property
    def address(self) -> tuple[str, int]:
        """The server's host and TCP port."""
        parts = urlsplit(self.url)
        return parts.hostname or "", parts.port or 80

    @property
    def path(self) -> str:
        """The endpoint's path."""
        kind = "chat/completions" if self.chat else "completions"
        return f"{urlsplit(self.url).path.rstrip('/')}/v1/{kind}"

    def encode(self, question: Question, source: Source) -> bytes:
        """Return the request as it goes over the wire. A question's own level goes into the header `X-Priority`."""
        body: dict[str, object] = {
            "model": self.model,
            "max_tokens": question.output_tokens,
            "ignore_eos": True,
            "seed": question.seed,
            "stream": True,
            "stream_options": {"include_usage": True},
            **source.sampling,
        }
        if self.chat:
            body["messages"] = [{"role": "user", "content": question.prompt}]
        else:
            body["prompt"] = question.prompt
        if self.priority is not None:
            body["priority"] = self.priority
        if self.min_tokens:
            body["min_tokens"] = question.output_tokens
        headers = dict(self.headers)
        if question.level is not None:
            headers["X-Priority"] = str(question.level)
        content = json.dumps(body).encode()
        lines = [
            f"POST {self.path} HTTP/1.1",
            f"Host: {urlsplit(self.url).netloc}",
            "Content-Type: application/json",
            f"Content-Length: {len(content)}",
            "Connection: close",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + content


@dataclass(slots=True)
class Recording:
    """One request under way or ended: what came, and when, in seconds of the monotonic clock.

    `ended` is None while it runs, and stays None when its client was stopped. `fault` says what broke the
    connection. `asked` is when the same was asked first, if it was refused before; `kind` is the question's.
    """

    client: int
    asked_tokens: int
    started: float
    blocks: list[tuple[float, bytes]] = field(default_factory=list)
    ended: float | None = None
    fault: str | None = None
    asked: float | None = None
    kind: str = ""

    @property
    def turned_down(self) -> bool:
        """Whether the answer began with another status than 200; told without taking it apart."""
        return bool(self.blocks) and not self.blocks[0][1].startswith(b"HTTP/1.1 200")


async def exchange(target: Target, request: bytes, recording: Recording) -> None:
    """Send `request` over a connection of its own and keep the answer, or what went wrong, in `recording`."""
    try:
        with anyio.fail_after(target.timeout):
            await _converse(target, request, recording)
    except TimeoutError:
        recording.fault = f"no end within {target.timeout:g} s"
    except (OSError, anyio.BrokenResourceError) as error:
        recording.fault = f"the connection failed: {error or type(error).__name__}"
    recording.ended = time.monotonic()


async def _converse(target: Target, request: bytes, recording: Recording) -> None:
    async with await anyio.connect_tcp(*target.address) as stream:
        await stream.send(request)
        tail = b""
        try:
            while not tail.endswith(_LAST_CHUNK):
                block = await stream.receive()
                recording.blocks.append((time.monotonic(), block))
                tail = (tail + block)[-len(_LAST_CHUNK) :]
        except anyio.EndOfStream:
            return

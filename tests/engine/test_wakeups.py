"""How often the event loop is woken for what a lane computes: once for a step, not for each of its tokens."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextvars import Context
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVarTuple

import anyio
from starlette.types import Message

from llamalane.api import create_app
from llamalane.scheduler import Engine
from tests.engine.running import config_for, seeded

Ts = TypeVarTuple("Ts")
Read = Callable[["Engine", "Counter", int], Coroutine[Any, Any, None]]

ROWS, TOKENS = 8, 64
PROMPT = "Go on"
SCHEDULER = 4
"""So many callbacks may a step need beside its rows'."""


class CountingLoop(asyncio.SelectorEventLoop):
    """An event loop that counts what it is given to do."""

    def __init__(self) -> None:
        super().__init__()
        self.wakeups = 0
        self.callbacks = 0

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *arguments: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        self.wakeups += 1
        return super().call_soon_threadsafe(callback, *arguments, context=context)

    def call_soon(
        self, callback: Callable[[*Ts], object], *arguments: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        self.callbacks += 1
        return super().call_soon(callback, *arguments, context=context)


@dataclass(frozen=True)
class Counts:
    """What was counted from the first token of every stream on."""

    steps: int
    wakeups: int
    callbacks: int
    messages: int = 0


class Counter:
    """Counts from the moment at which all streams have begun."""

    def __init__(self, engine: Engine) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, CountingLoop)
        self._loop = loop
        self._engine = engine
        self._begun = 0
        self._all_begun = anyio.Event()
        self._before = Counts(0, 0, 0)
        self.messages = 0

    async def wait(self) -> None:
        """Take part, with the first token, and wait for the others."""
        self._begun += 1
        if self._begun == ROWS:
            self._before = self._now()
            self._all_begun.set()
        await self._all_begun.wait()

    def counts(self) -> Counts:
        now, before = self._now(), self._before
        return Counts(
            now.steps - before.steps,
            now.wakeups - before.wakeups,
            now.callbacks - before.callbacks,
            now.messages - before.messages,
        )

    def _now(self) -> Counts:
        return Counts(self._engine.stats().lanes[0].steps, self._loop.wakeups, self._loop.callbacks, self.messages)


async def count(model: Path, read: Read) -> Counts:
    """Count while `ROWS` streams are read."""
    async with Engine(config_for(model, places=ROWS)) as engine:
        counter = Counter(engine)
        async with anyio.create_task_group() as readers:
            for row in range(ROWS):
                readers.start_soon(read, engine, counter, row)
        return counter.counts()


async def read_here(engine: Engine, counter: Counter, row: int) -> None:
    """Read a stream of the engine's."""
    handle = await engine.submit(PROMPT, sampling=seeded(row, TOKENS))
    texts: AsyncIterator[str] = aiter(handle)
    await anext(texts)
    await counter.wait()
    async for _ in texts:
        pass


async def read_over_asgi(engine: Engine, counter: Counter, row: int) -> None:
    """Read a stream of the app's, without a server."""
    body = {"prompt": PROMPT, "max_tokens": TOKENS, "seed": row, "ignore_eos": True, "stream": True}
    pending = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]
    begun = False

    async def receive() -> Message:
        if pending:
            return pending.pop()
        await anyio.sleep_forever()
        raise AssertionError

    async def send(message: Message) -> None:
        nonlocal begun
        counter.messages += 1
        if message["type"] == "http.response.body" and not begun:
            begun = True
            await counter.wait()

    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "query_string": b"", "headers": []}
    await create_app(engine)({**scope, "http_version": "1.1", "scheme": "http"}, receive, send)


def run(model: Path, read: Read) -> Counts:
    counts = anyio.run(count, model, read, backend_options={"loop_factory": CountingLoop})
    assert counts.steps > TOKENS / 2, "too little was counted"
    return counts


def test_the_loop_is_woken_once_for_a_step_and_once_for_a_reader_of_its_tokens(tiny_model: Path) -> None:
    counts = run(tiny_model, read_here)
    assert counts.wakeups <= counts.steps + 1
    assert counts.callbacks <= (ROWS + SCHEDULER) * counts.steps


def test_a_stream_over_http_is_written_once_for_a_token(tiny_model: Path) -> None:
    counts = run(tiny_model, read_over_asgi)
    assert counts.wakeups <= counts.steps + 1
    assert counts.messages <= ROWS * (TOKENS + 2)
    assert counts.callbacks <= (2 * ROWS + SCHEDULER) * counts.steps

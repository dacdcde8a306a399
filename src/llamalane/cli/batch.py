"""Runs a file of tasks: so many at once that the places are filled and a few wait."""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from llamalane.api.batch import serve_item
from llamalane.api.batches.input import BatchInput, BatchTask, InvalidLine
from llamalane.cli import EXIT_ITEMS_FAILED
from llamalane.cli.batch_file import BatchOutput
from llamalane.cli.batch_progress import BatchProgress
from llamalane.errors import ConfigError, LaneDownError, LlamalaneError
from llamalane.scheduler import Engine, EngineConfig

if TYPE_CHECKING:
    from rich.console import Console

logger = logging.getLogger(__name__)

Serve = Callable[[str, str, dict[str, Any]], Awaitable[tuple[int, dict[str, Any]]]]

_TOO_MANY_REQUESTS = 429
_UNAVAILABLE = 503


def run_batch(config: EngineConfig, source: Path, target: Path, *, priority: str | None, console: Console) -> int:
    """Run the tasks of `source` that have no result in `target` yet, and return the command's exit code."""
    try:
        if target.exists() and source.samefile(target):
            raise ConfigError("the tasks and their results must be two files", source=str(source))
        with source.open("rb") as file, BatchOutput(target) as output:
            entries = BatchInput(file, output.done)
            progress = BatchProgress(console, source.stat().st_size, output.done)
            try:
                with progress:
                    anyio.run(_run, config, entries, output, priority, progress)
            finally:
                if progress.finished:
                    console.print(progress.summary())
            return EXIT_ITEMS_FAILED if progress.failed else 0
    except OSError as error:
        raise ConfigError(f"cannot use {error.filename}: {error.strerror}") from error


async def _run(
    config: EngineConfig, entries: BatchInput, output: BatchOutput, priority: str | None, progress: BatchProgress
) -> None:
    engine = Engine(config)
    level = engine.levels.least_urgent if priority is None else engine.levels.parse(priority)
    progress.say(f"loading {config.models[0].path}")
    async with engine:
        places = engine.stats().places
        progress.say("running")
        serve = functools.partial(serve_item, engine)
        await BatchRun(serve, entries, output, level, progress).run(width=places + max(1, places // 2))


class BatchRun:
    """One pass over the tasks.

    `serve` takes a task's method, url and body, and returns the HTTP status and the body of the answer; `level` is the
    priority of tasks that name none.
    """

    def __init__(
        self, serve: Serve, entries: BatchInput, output: BatchOutput, level: int, progress: BatchProgress
    ) -> None:
        self._call = serve
        self._entries = entries
        self._output = output
        self._level = level
        self._progress = progress
        self._reading = anyio.Lock()
        self._submitted = 0
        self._ended = anyio.Event()
        self._failure: LlamalaneError | None = None

    async def run(self, width: int) -> None:
        """Run every task, at most `width` of them at once.

        Raises `LaneDownError` when nothing is left to run them, `LlamalaneError` when results cannot be written.
        """
        async with anyio.create_task_group() as group:
            for _ in range(width):
                group.start_soon(self._work, group.cancel_scope)
        if self._failure is not None:
            raise self._failure

    async def _work(self, scope: anyio.CancelScope) -> None:
        try:
            while (entry := await self._next()) is not None:
                await self._finish(entry)
        except LlamalaneError as error:
            self._failure = self._failure or error
            scope.cancel()

    async def _finish(self, entry: BatchTask | InvalidLine) -> None:
        if isinstance(entry, InvalidLine):
            self._output.append_error(entry)
            self._progress.advance(self._entries.position, failed=True)
            logger.info("%s", entry.message)
            return
        status, body = await self._serve(entry)
        if status == _UNAVAILABLE:
            # That is no answer to this task: it stays open, for a run with an engine that works.
            raise LaneDownError(body["error"]["message"])
        self._output.append_response(entry, status, body)
        self._progress.advance(self._entries.position, failed=status >= 400, usage=body.get("usage"))
        logger.info("line %d: custom_id %r has status %d", entry.line, entry.custom_id, status)

    async def _next(self) -> BatchTask | InvalidLine | None:
        async with self._reading:
            return await anyio.to_thread.run_sync(self._entries.next)

    async def _serve(self, task: BatchTask) -> tuple[int, dict[str, Any]]:
        """Serve a task; when the queue is full, again each time another task has made room."""
        body = task.body
        if body.get("priority") is None and body.get("service_tier") is None:
            body = {**body, "priority": self._level}
        while True:
            self._submitted += 1
            status, answer = await self._call(task.method, task.url, body)
            self._submitted -= 1
            if status != _TOO_MANY_REQUESTS or not self._submitted:
                self._ended.set()
                self._ended = anyio.Event()
                return status, answer
            await self._ended.wait()

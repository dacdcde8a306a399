"""How an engine comes to be, what it consists of while it runs, and how it ends."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

import anyio
import anyio.to_thread

from llamalane.clock import Clock, MonotonicClock
from llamalane.errors import EngineClosedError
from llamalane.ids import Level
from llamalane.scheduler.archive import Archive
from llamalane.scheduler.embedding import Embeddings
from llamalane.scheduler.events import Observer
from llamalane.scheduler.intake import Intake
from llamalane.scheduler.priority import PriorityLevels
from llamalane.scheduler.rules import rules_of
from llamalane.scheduler.scheduler import Scheduler
from llamalane.scheduler.served_models import ServedModels
from llamalane.scheduler.statistics import EngineState

if TYPE_CHECKING:
    from llamalane.scheduler.assembly import Machinery, OpenContext, OpenEmbeddingContext
    from llamalane.scheduler.config import EngineConfig


@dataclass(frozen=True, slots=True)
class EngineParts:
    """What exists while an engine runs."""

    machinery: Machinery
    scheduler: Scheduler
    intake: Intake
    embeddings: Embeddings
    models: ServedModels


class EngineLife:
    """An engine's states, and what it holds in them."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        clock: Clock | None = None,
        observer: Observer | None = None,
        open_context: OpenContext | None = None,
        open_embedding_context: OpenEmbeddingContext | None = None,
    ) -> None:
        settings = config.scheduler
        self.config = config
        self.levels = PriorityLevels(settings.levels, Level(settings.levels[settings.default_level]))
        self._clock = clock or MonotonicClock()
        self._observer = observer
        self._open_context = open_context
        self._open_embedding_context = open_embedding_context
        self._state = EngineState.NEW
        self._state_changed: set[anyio.Event] = set()
        self._running: EngineParts | None = None
        self._stack = contextlib.AsyncExitStack()

    @property
    def state(self) -> EngineState:
        """Whether the engine takes requests."""
        return self._state

    async def wait_for(self, *states: EngineState) -> EngineState:
        """Wait until the engine is in one of `states`, and return in which; a brief one may go unnoticed."""
        while self._state not in states:
            changed = anyio.Event()
            self._state_changed.add(changed)
            try:
                await changed.wait()
            finally:
                self._state_changed.discard(changed)
        return self._state

    @property
    def down(self) -> bool:
        """Whether every lane has given up, so that nothing can be served."""
        return self._running is not None and self._running.scheduler.down

    async def drain(self, patience: float | None = None) -> None:
        """Take no new requests, and wait until those that are there have ended.

        What has not ended after `patience` seconds (None: the configured drain timeout) ends with `EngineClosedError`.
        """
        if self._running is None or self._closed():
            return
        self._enter(EngineState.DRAINING)
        scheduler = self._running.scheduler
        with anyio.move_on_after(self.config.scheduler.drain_timeout if patience is None else patience):
            await _idle(scheduler)
        if not self._closed():  # it may have been, by whoever left its block meanwhile
            scheduler.end_all(EngineClosedError("the engine is shutting down"))
            await _idle(scheduler)

    async def __aenter__(self) -> Self:
        if self._state is not EngineState.NEW:
            raise EngineClosedError("an engine can be started once only")
        self._enter(EngineState.LOADING)
        try:
            async with contextlib.AsyncExitStack() as stack:
                await self._start(stack)
                self._stack = stack.pop_all()
        except BaseException:
            self._enter(EngineState.CLOSED)
            raise
        self._enter(EngineState.READY)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._stack.__aexit__(kind, error, trace)
        except BaseExceptionGroup as group:
            # The task group wraps whatever the block raised; who wrote the block expects that error itself.
            if error is None or group.exceptions != (error,):
                raise

    async def _start(self, stack: contextlib.AsyncExitStack) -> None:
        machinery = await anyio.to_thread.run_sync(
            _assemble, self.config, self._open_context, self._open_embedding_context
        )
        stack.push_async_callback(self._close, machinery)
        archive = None if machinery.disk is None else Archive(machinery.disk)
        scheduler = self._make_scheduler(machinery, archive)
        limit, aging, orders = machinery.pool.limit, scheduler.rules.aging, itertools.count(1)
        intake = Intake(machinery.model, limit, self.levels, aging, self._clock, shift=machinery.shift, orders=orders)
        embeddings = Embeddings(machinery.embedders, scheduler, self.levels, self._clock, orders)
        self._running = EngineParts(machinery, scheduler, intake, embeddings, ServedModels(self.config, machinery))
        await stack.enter_async_context(self._scheduling(scheduler, archive))
        machinery.pool.start(scheduler.receive_from_lane)

    def _make_scheduler(self, machinery: Machinery, archive: Archive | None) -> Scheduler:
        rules = rules_of(self.config, can_swap=machinery.can_swap, archive=archive)
        return Scheduler(machinery.pool, rules, clock=self._clock, observer=self._observer)

    @contextlib.asynccontextmanager
    async def _scheduling(self, scheduler: Scheduler, archive: Archive | None) -> AsyncIterator[None]:
        """Run the scheduler loop for as long as the block lasts, and drain at its end."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(scheduler.run)
            if archive is not None:
                tasks.start_soon(archive.run)
            try:
                yield
                await self.drain()
                if archive is not None:
                    await self._keep_prompts(scheduler, archive)
            finally:
                self._enter(EngineState.CLOSED)
                scheduler.end_all(EngineClosedError("the engine is closed"))
                tasks.cancel_scope.cancel()

    async def _keep_prompts(self, scheduler: Scheduler, archive: Archive) -> None:
        """Bring to the disk what the lanes keep, for at most as long as draining may take."""
        with anyio.move_on_after(self.config.scheduler.drain_timeout):
            scheduler.stow_all()
            await _idle(scheduler)
            await archive.finish()

    async def _close(self, machinery: Machinery) -> None:
        """Free everything; the scheduler loop has ended, the lanes have not."""
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(machinery.pool.close)
        if self._running is not None:
            self._running.scheduler.release_all()
            self._running = None
        machinery.pool.check()
        machinery.close()

    def _enter(self, state: EngineState) -> None:
        self._state = state
        for changed in self._state_changed:
            changed.set()

    def _closed(self) -> bool:
        return self._state is EngineState.CLOSED

    def _check_ready(self) -> None:
        if self._state is not EngineState.READY:
            raise EngineClosedError(f"the engine takes no requests: it is {self._state.value}")

    def _parts(self) -> EngineParts:
        if self._running is None:
            raise EngineClosedError(f"the engine has no model: it is {self._state.value}")
        return self._running


def _assemble(
    config: EngineConfig, open_context: OpenContext | None, open_embedding_context: OpenEmbeddingContext | None
) -> Machinery:
    """Load the libraries that compute, and the models; blocks."""
    from llamalane.scheduler.assembly import assemble  # noqa: PLC0415  (numpy and others, which only a start needs)

    return assemble(config, open_context, open_embedding_context)


async def _idle(scheduler: Scheduler) -> None:
    idle = anyio.Event()
    scheduler.when_idle(idle.set)
    await idle.wait()

"""The files and batches of one app: where they are kept, what runs them, and what clients may have of them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator

import anyio

from llamalane.api.batches.expiry import WallClock
from llamalane.api.batches.file_rows import StorageLimits
from llamalane.api.batches.runner import BatchRunner, RunnerSettings, TermsOf
from llamalane.api.batches.store import BatchStore
from llamalane.api.config import ApiConfig, BatchesConfig
from llamalane.clock import MonotonicClock
from llamalane.errors import BatchesOffError, EngineClosedError
from llamalane.scheduler import Engine


class Batches:
    """Files and batches, which are off where no folder is configured, and there while `running` is entered.

    `terms_of` tells on whose behalf the items of a batch are served; `now` tells the time.
    """

    def __init__(self, api: ApiConfig, terms_of: TermsOf, *, now: WallClock = time.time) -> None:
        self.config: BatchesConfig = api.batches
        self.now = now
        self._terms_of = terms_of
        self._settings = RunnerSettings(
            concurrent_items=api.batches.concurrent_items,
            max_items=api.batches.max_items,
            max_line=api.max_body_bytes,
            retention=api.batches.retention,
        )
        self._open: tuple[BatchStore, BatchRunner] | None = None

    @property
    def limits(self) -> StorageLimits:
        """What a tenant may store."""
        return StorageLimits(self.config.max_files, self.config.max_bytes)

    @property
    def store(self) -> BatchStore:
        """What is kept; raises `BatchesOffError`, or `EngineClosedError` while `running` is not entered."""
        return self._parts()[0]

    @property
    def runner(self) -> BatchRunner:
        """What runs batches; raises what `store` raises."""
        return self._parts()[1]

    @property
    def opened(self) -> tuple[BatchStore, BatchRunner] | None:
        """What there is to tell about, None while there is nothing."""
        return self._open

    @contextlib.asynccontextmanager
    async def running(self, engine: Engine) -> AsyncIterator[None]:
        """Keep files, and run batches on `engine`, ready or not, for as long as the block lasts.

        Raises `ConfigError` when the folder cannot be used.
        """
        if self.config.folder is None:
            yield
            return
        store = BatchStore(self.config.folder)
        runner = BatchRunner(store, self._settings, self._terms_of, now=self.now, clock=MonotonicClock())
        raised: Exception | None = None
        async with store.opened():
            self._open = store, runner
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(runner.run, engine)
                    try:
                        yield
                    except Exception as error:  # raised below, without a group around it
                        raised = error
                    tasks.cancel_scope.cancel()
            finally:
                self._open = None
        if raised is not None:
            raise raised

    def _parts(self) -> tuple[BatchStore, BatchRunner]:
        if self.config.folder is None:
            raise BatchesOffError
        if self._open is None:
            raise EngineClosedError("files and batches are there only while the lifespan of this app runs")
        return self._open

"""What an app serves: an engine, which it runs itself or which somebody else runs."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable

import anyio

from llamalane.api.config import ApiConfig, ServerConfig
from llamalane.api.metrics import Metrics
from llamalane.errors import EngineClosedError, LlamalaneError
from llamalane.scheduler import Engine, EngineConfig, EngineState, EngineStatistics

logger = logging.getLogger("llamalane.api")

LIFESPAN_MISSING = (
    "the engine was not started, because the lifespan of this app does not run; if it is mounted, give its "
    "lifespan to the app around it: FastAPI(lifespan=lifespan_of(mounted_app)), with lifespan_of from llamalane.api"
)

_NOT_READY = {
    EngineState.NEW: "the engine was not started: enter it (async with engine) before serving",
    EngineState.LOADING: "the model is being loaded",
    EngineState.DRAINING: "the server is shutting down and takes no new requests",
    EngineState.CLOSED: "the engine is closed",
}

OnFailure = Callable[[Exception], None]


class Service:
    """The engine of one app, and how far it is.

    With a configuration, `lifespan` runs an engine of its own. With an engine, that one is used; it is neither
    started nor closed here.
    """

    def __init__(self, source: Engine | EngineConfig, api: ApiConfig | None, on_failure: OnFailure | None) -> None:
        self._config = source if isinstance(source, EngineConfig) else None
        self.engine = None if isinstance(source, EngineConfig) else source
        config = source if isinstance(source, EngineConfig) else source.config
        self.api = api or (config.api if isinstance(config, ServerConfig) else ApiConfig())
        self.metrics = Metrics(self._statistics)
        self.created = int(time.time())
        self._on_failure = on_failure
        self._running = False
        self._failure: Exception | None = None

    def any_engine(self) -> Engine:
        """Return the engine, ready or not; raises `EngineClosedError` when it was never started."""
        if self._failure is not None:
            raise EngineClosedError(f"the engine failed: {_told(self._failure)}")
        if self.engine is None:
            raise EngineClosedError(LIFESPAN_MISSING)
        return self.engine

    def ready_engine(self) -> Engine:
        """Return the engine; raises `EngineClosedError`, with the reason, when it takes no requests."""
        engine = self.any_engine()
        state = engine.state
        if state is EngineState.NEW and self._config is not None:
            state = EngineState.LOADING  # the lifespan has only just begun
        if state is not EngineState.READY:
            raise EngineClosedError(_NOT_READY[state])
        return engine

    async def drain(self) -> None:
        """Take no new requests, and wait for those under way; end them after the configured time."""
        if self.engine is not None:
            await self.engine.drain()

    @contextlib.asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncIterator[None]:
        """Run the engine for as long as the block lasts; `app` is whichever app the block belongs to.

        The block begins at once: the engine loads beside it. If the engine fails, `on_failure` is told; without
        it, the block is cancelled and the error raised, which is how a server hears of it.
        """
        if self._config is None:
            yield
            return
        if self._running:
            raise RuntimeError("the lifespan of this app is running already")
        self._running = True
        self._failure = None
        engine = self.engine = Engine(self._config)
        stop = anyio.Event()
        raised: Exception | None = None
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._run, engine, stop, tasks.cancel_scope)
                try:
                    yield
                except Exception as error:  # raised below, without a group around it
                    raised = error
                stop.set()
                if engine.state is EngineState.LOADING:
                    tasks.cancel_scope.cancel()
        finally:
            self._running = False
        if raised is None and self._on_failure is None:
            raised = self._failure
        if raised is not None:
            raise raised

    async def _run(self, engine: Engine, stop: anyio.Event, scope: anyio.CancelScope) -> None:
        try:
            async with engine:
                logger.info("serving %s", ", ".join(engine.model_names))
                await stop.wait()
        except Exception as error:
            self._failure = error
            logger.error("the engine failed: %s", _told(error), exc_info=_unexpected(error))
            if self._on_failure is not None:
                self._on_failure(error)
            else:
                scope.cancel()

    def _statistics(self) -> EngineStatistics | None:
        return None if self.engine is None else self.engine.stats()


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, LlamalaneError) else "an unexpected error; the log says more"


def _unexpected(error: Exception) -> Exception | None:
    return None if isinstance(error, LlamalaneError) else error

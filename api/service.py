"""What an app serves: an engine, which it runs itself or which somebody else runs."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence

import anyio
from opentelemetry.trace import TracerProvider

from llamalane.api.batch import ItemTerms
from llamalane.api.batches.metrics import BatchCollector
from llamalane.api.batches.records import BatchOrder
from llamalane.api.batches.service import Batches
from llamalane.api.config import ApiConfig, ServerConfig
from llamalane.api.keys import ANYONE, Caller, KeyRing, digest_of, levels_of, load_keys
from llamalane.api.metrics import Metrics
from llamalane.api.middleware import METRICS_PATH
from llamalane.api.tracing import Tracing
from llamalane.errors import EngineClosedError, LlamalaneError
from llamalane.scheduler import Changes, Engine, EngineConfig, EngineState
from llamalane.scheduler.reload import compare, engine_changes, merge

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

RELOADABLE = frozenset({"above_level", "api_key", "keys", "keys_file", "metrics_key", "tenant_from_user"})
"""The settings under `api` that a running server can take over."""

OnFailure = Callable[[Exception], None]


class Service:
    """The engine of one app, and how far it is.

    With a configuration, `lifespan` runs an engine of its own. With an engine, that one is used; it is neither
    started nor closed here.
    """

    def __init__(
        self,
        source: Engine | EngineConfig,
        api: ApiConfig | None,
        on_failure: OnFailure | None,
        tracer_provider: TracerProvider | None = None,
    ) -> None:
        self._config = source if isinstance(source, EngineConfig) else None
        self.engine = None if isinstance(source, EngineConfig) else source
        config = source if isinstance(source, EngineConfig) else source.config
        self.api = api or (config.api if isinstance(config, ServerConfig) else ApiConfig())
        self.keys = load_keys(self.api, levels_of(config))
        self.batches = Batches(self.api, self._terms_of)
        self.metrics = Metrics(lambda: self.engine, BatchCollector(self.batches))
        self.tracing = Tracing(self.api.traces, tracer_provider)
        self.created = int(time.time())
        self._on_failure = on_failure
        self._running = False
        self._failure: Exception | None = None

    def admit(self, path: str, shown: Sequence[bytes]) -> Caller | None:
        """Return who asks for `path` with the keys that are shown; None if they do not open it."""
        caller = ANYONE if self.keys.open else self.keys.find(shown)
        key = self.api.metrics_key
        if path == METRICS_PATH and key is not None and not (caller is not None and caller.admin):
            return KeyRing([(digest_of(key.get_secret_value().encode()), ANYONE)]).find(shown)
        return caller

    def shows(self, tenant: str, caller: Caller) -> bool:
        """Return whether a caller may see the requests of a tenant: all, unless clients have keys of their own."""
        return self.tenant_shown_to(caller) in (None, tenant)

    def tenant_shown_to(self, caller: Caller) -> str | None:
        """Return whose files and batches a caller may see; None for everybody's."""
        return None if caller.admin or not self.keys.personal else caller.tenant

    def reload(self, config: ServerConfig) -> Changes:
        """Take over what of `config` can change while the server runs, and tell what differs.

        Raises `ConfigError`, and keeps all as it was, when something of it cannot be used.
        """
        running = self.engine.config if self.engine is not None else self._config
        assert running is not None
        keys = load_keys(config.api, levels_of(running))
        changes = engine_changes(running, config) if self.engine is None else self.engine.reload(config)
        if self._config is not None:  # an engine that is started later goes by it
            settings = merge(self._config.scheduler, config.scheduler)
            self._config = self._config.model_copy(update={"scheduler": settings})
        changes += compare(self.api, config.api, "api.", reloadable=RELOADABLE)
        if keys != self.keys and not {"api.api_key", "api.keys", "api.keys_file"}.intersection(changes.applied):
            changes += Changes(applied=("api.keys_file",))  # its contents, under the same name
        self.api = self.api.model_copy(update={name: getattr(config.api, name) for name in RELOADABLE})
        if keys.open and not self.keys.open:
            logger.warning("no API key is asked for any more: whoever reaches the server is served")
        self.keys = keys
        return changes

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
            assert self.engine is not None
            async with self.batches.running(self.engine):
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
            async with self.batches.running(engine), anyio.create_task_group() as tasks:
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
            await self.tracing.flush()
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

    def _terms_of(self, order: BatchOrder) -> ItemTerms:
        """Return on whose behalf the items of a batch are served."""
        return ItemTerms(
            caller=Caller(order.key, order.tenant, most_urgent=order.most_urgent, separate_users=order.separate_users),
            level=order.level,
            cap=self.api.above_level == "cap",
            tenant_from_user=self.api.tenant_from_user,
        )


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, LlamalaneError) else "an unexpected error; the log says more"


def _unexpected(error: Exception) -> Exception | None:
    return None if isinstance(error, LlamalaneError) else error

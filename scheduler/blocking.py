"""The engine for code without an event loop."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

import anyio

from llamalane.clock import Clock
from llamalane.errors import EngineClosedError
from llamalane.scheduler.blocking_handle import BlockingRequestHandle
from llamalane.scheduler.engine import Engine
from llamalane.scheduler.events import Observer
from llamalane.scheduler.handle import RequestHandle
from llamalane.scheduler.loop_thread import LoopThread

if TYPE_CHECKING:
    from llamalane.scheduler.assembly import OpenContext, OpenEmbeddingContext
    from llamalane.scheduler.config import EngineConfig

P = ParamSpec("P")
T = TypeVar("T")


class _Attribute(Generic[T]):
    """An attribute of the engine, read as it is at that moment."""

    def __init__(self, read: Callable[[Engine], T]) -> None:
        self._read = read

    def __set_name__(self, owner: type, name: str) -> None:
        if hasattr(Engine, name):
            self.__doc__ = getattr(Engine, name).__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: BlockingEngine, owner: type) -> T: ...
    def __get__(self, instance: BlockingEngine | None, owner: type) -> Self | T:
        return self if instance is None else self._read(instance._engine)


def _waiting(
    method: Callable[Concatenate[Engine, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[BlockingEngine, P], T]:
    """Return the method of `BlockingEngine` that waits for one of `Engine`."""

    @functools.wraps(method)
    def wait(engine: BlockingEngine, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return engine._thread.call(functools.partial(method, engine._engine, *args, **kwargs))

    return wait


def _submitting(
    method: Callable[Concatenate[Engine, P], Coroutine[Any, Any, RequestHandle]],
) -> Callable[Concatenate[BlockingEngine, P], BlockingRequestHandle]:
    """Return the same for a method that returns a handle: if nobody gets that, its request is cancelled."""

    @functools.wraps(method)
    def submit(engine: BlockingEngine, /, *args: P.args, **kwargs: P.kwargs) -> BlockingRequestHandle:
        submitted = functools.partial(method, engine._engine, *args, **kwargs)
        return BlockingRequestHandle(engine._thread.call(submitted, discard=RequestHandle.cancel), engine._thread)

    return submit


def _submitting_several(
    method: Callable[Concatenate[Engine, P], Coroutine[Any, Any, list[RequestHandle]]],
) -> Callable[Concatenate[BlockingEngine, P], list[BlockingRequestHandle]]:
    def discard(handles: list[RequestHandle]) -> None:
        for handle in handles:
            handle.cancel()

    @functools.wraps(method)
    def submit(engine: BlockingEngine, /, *args: P.args, **kwargs: P.kwargs) -> list[BlockingRequestHandle]:
        handles = engine._thread.call(functools.partial(method, engine._engine, *args, **kwargs), discard=discard)
        return [BlockingRequestHandle(handle, engine._thread) for handle in handles]

    return submit


def _on_the_loop(
    method: Callable[Concatenate[Engine, P], T],
) -> Callable[Concatenate[Engine, P], Coroutine[Any, Any, T]]:
    """Return the coroutine function that calls a method which does not wait, where it has to be called."""

    @functools.wraps(method)
    async def call(engine: Engine, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return method(engine, *args, **kwargs)

    return call


class BlockingEngine:
    """An `Engine` for code without an event loop: it runs on a thread of its own, and calls wait for it.

    A context manager: entering loads the model; leaving drains, for at most `scheduler.drain_timeout`, unless an error
    leaves the block, which ends all requests at once. `start` and `close` do the same. Its methods are those of
    `Engine`, from any thread; handles are `BlockingRequestHandle`s. Whoever is interrupted while waiting, as by Ctrl-C,
    cancels what the call was for.

    A process that was forked from this one cannot use it (`EngineForkedError`). A thread that runs an event loop may
    not call it (`BlockingCallError`) but with `allow_event_loop`; `observer` is told of every event on the engine's
    thread, and may not call it either.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        clock: Clock | None = None,
        observer: Observer | None = None,
        open_context: OpenContext | None = None,
        open_embedding_context: OpenEmbeddingContext | None = None,
        allow_event_loop: bool = False,
    ) -> None:
        self._engine = Engine(
            config,
            clock=clock,
            observer=observer,
            open_context=open_context,
            open_embedding_context=open_embedding_context,
        )
        self._life = _Life(self._engine)
        self._thread = LoopThread(
            self._life.run, self._life.abandon, name="llamalane-engine", allow_event_loop=allow_event_loop
        )
        self._closed = False

    config = _Attribute(lambda engine: engine.config)
    levels = _Attribute(lambda engine: engine.levels)
    state = _Attribute(lambda engine: engine.state)
    down = _Attribute(lambda engine: engine.down)
    model_name = _Attribute(lambda engine: engine.model_name)
    model_names = _Attribute(lambda engine: engine.model_names)
    model_info = _Attribute(lambda engine: engine.model_info)
    served_models = _Attribute(lambda engine: engine.served_models)
    chat_template = _Attribute(lambda engine: engine.chat_template)
    limit = _Attribute(lambda engine: engine.limit)
    most_choices = _Attribute(lambda engine: engine.most_choices)

    submit = _submitting(Engine.submit)
    submit_chat = _submitting(Engine.submit_chat)
    submit_tokens_nowait = _submitting(_on_the_loop(Engine.submit_tokens_nowait))
    submit_choices = _submitting_several(Engine.submit_choices)
    submit_chat_choices = _submitting_several(Engine.submit_chat_choices)
    generate = _waiting(Engine.generate)
    chat = _waiting(Engine.chat)
    embed = _waiting(Engine.embed)
    rerank = _waiting(Engine.rerank)
    tokenize = _waiting(Engine.tokenize)
    tokenize_chat = _waiting(Engine.tokenize_chat)
    detokenize = _waiting(Engine.detokenize)
    compile_grammar = _waiting(Engine.compile_grammar)
    drain = _waiting(Engine.drain)
    check_model = _waiting(_on_the_loop(Engine.check_model))
    find_model = _waiting(_on_the_loop(Engine.find_model))
    find_embedder = _waiting(_on_the_loop(Engine.find_embedder))
    spell = _waiting(_on_the_loop(Engine.spell))
    stats = _waiting(_on_the_loop(Engine.stats))
    explain = _waiting(_on_the_loop(Engine.explain))
    standing = _waiting(_on_the_loop(Engine.standing))
    queue = _waiting(_on_the_loop(Engine.queue))
    cancel = _waiting(_on_the_loop(Engine.cancel))
    set_priority = _waiting(_on_the_loop(Engine.set_priority))
    pause_lane = _waiting(_on_the_loop(Engine.pause_lane))
    resume_lane = _waiting(_on_the_loop(Engine.resume_lane))
    reload = _waiting(_on_the_loop(Engine.reload))

    def start(self) -> None:
        """Load the model and begin; raises what entering an `Engine` raises. An engine can be started once only."""
        self._thread.start()
        try:
            error = self._life.begun.exception()
        except BaseException:  # interrupted; loading goes on to its end, and no further
            self._closed = True
            self._thread.call_soon(self._life.abandon)
            raise
        if error is not None:
            self._closed = True
            self._thread.join()
            raise error

    def close(self) -> None:
        """Drain, for at most `scheduler.drain_timeout`, and free everything. May be repeated, from any thread.

        An interruption ends the draining.
        """
        self._end(self._life.stop)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(self._life.stop if error is None else self._life.abandon)

    def __del__(self) -> None:
        if not getattr(self, "_closed", True) and self._thread.started:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, source=self, stacklevel=1)
            self._thread.call_soon(self._life.abandon)  # waiting might be for the very thread that collects garbage

    def __repr__(self) -> str:
        return f"<BlockingEngine {self.model_name}: {self.state.value}>"

    def _end(self, how: Callable[[], None]) -> None:
        if not self._thread.started:  # never, or in the process that this one was forked from
            return
        self._thread.check_thread()
        self._closed = True
        try:
            self._thread.call_soon(how)
            self._thread.join()
        except BaseException:
            self._thread.end()
            raise


class _Life:
    """An engine from its start to its end, on the loop of its thread; the thread holds it, and nobody's engine."""

    def __init__(self, engine: Engine) -> None:
        self.begun = Future[None]()
        """Has a result when the engine takes requests, or the error for which it does not."""
        self._engine = engine
        self._stopping: anyio.Event  # made on the loop, before anything else happens there
        self._scope: anyio.CancelScope

    def stop(self) -> None:
        """Let the engine finish what it has."""
        self._stopping.set()

    def abandon(self) -> None:
        """Let it end as soon as it can."""
        self._scope.cancel()

    async def run(self) -> None:
        """Run the engine until it is stopped or abandoned."""
        self._stopping = anyio.Event()
        with anyio.CancelScope() as self._scope:
            try:
                async with self._engine:
                    self.begun.set_result(None)
                    await self._stopping.wait()
            except BaseException as error:
                if self.begun.done():
                    raise
                cancelled = isinstance(error, anyio.get_cancelled_exc_class())
                self.begun.set_exception(EngineClosedError("it was closed while it loaded") if cancelled else error)
                if not isinstance(error, Exception):
                    raise

"""An event loop on a thread of its own, for callers that have none."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextvars import Context, copy_context
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from llamalane.errors import BlockingCallError, EngineClosedError, EngineForkedError, LlamalaneError
from llamalane.scheduler.doorbell import call_soon_threadsafe, in_event_loop

T = TypeVar("T")


class _Loop(NamedTuple):
    """A running event loop: what reaches it from other threads, and where and in which context its calls run."""

    call_soon: Callable[[Callable[[], Any]], Any]
    tasks: TaskGroup
    context: Context

    def begin(self, call: _Call[T]) -> None:
        """Let the loop run a call soon, with the context variables of this thread; on any thread."""
        context = self.context.copy()
        for variable, value in copy_context().items():
            if variable not in context:  # such as the one that tells which kind of loop this is
                context.run(variable.set, value)
        self.call_soon(partial(context.run, self._start, call))

    def _start(self, call: _Call[T]) -> None:
        try:
            self.tasks.start_soon(call.run)
        except BaseException as error:  # else its caller would wait for ever
            call.fail(error)
            raise


class LoopThread:
    """Runs `main` on an event loop, on a thread of its own, and beside it what other threads call.

    The loop ends when `main` has returned and the calls have too. `abandon` makes `main` return soon; it is called on
    the loop. The interpreter does so at its end, if the loop still runs then: a thread that is stopped in the middle of
    a step can take the process down. With `allow_event_loop`, calls may come from a thread that runs a loop itself.

    anyio's portal is no replacement: what a call returns whose caller was interrupted is lost there, and every call
    waits for the loop to begin with it, which whoever is called by the garbage collector cannot.
    """

    def __init__(
        self,
        main: Callable[[], Coroutine[Any, Any, None]],
        abandon: Callable[[], None],
        *,
        name: str,
        allow_event_loop: bool = False,
    ) -> None:
        self._main = main
        self._abandon = abandon
        self._allow_event_loop = allow_event_loop
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._lock = threading.RLock()
        self._owner: int | None = None
        self._opened = Future[None]()
        self._ended = threading.Event()  # an interrupted Thread.join believes that the thread has ended
        self._loop: _Loop | None = None
        self._failure: Exception | None = None
        self._at_exit = partial(_end_at_exit, weakref.ref(self))

    @property
    def started(self) -> bool:
        """Whether the loop was started, in this process."""
        return self._owner == os.getpid()

    @property
    def running(self) -> bool:
        """Whether the loop was started, in this process, and has not ended."""
        return self.started and not self._ended.is_set()

    def start(self) -> None:
        """Start the loop; raises `EngineClosedError` the second time."""
        self._check_caller()
        with self._lock:
            if self._owner is not None:
                raise EngineClosedError("an engine can be started once only")
            self._owner = os.getpid()
        atexit.register(self._at_exit)
        self._thread.start()
        self._opened.result()

    def call(
        self,
        function: Callable[[], Coroutine[Any, Any, T]],
        *,
        timeout: float | None = None,
        discard: Callable[[T], object] | None = None,
    ) -> T:
        """Run `function` on the loop and return what it returns, or raise what it raises.

        Raises `TimeoutError` after so many seconds. Whoever stops waiting, for that or an interruption, cancels the
        call; `discard` is told, on the loop, of what it returned all the same. Without a running loop there is nothing
        to wait for, and the call is made at once.
        """
        self._check_caller()
        call = _Call(function, discard)
        ended = False
        try:
            if not self._begin(call):
                return _run_at_once(function)
            error = call.outcome.exception(timeout)
            ended = True
        finally:
            if not ended:
                self.call_soon(call.abandon)
        if error is None:
            return call.outcome.result()
        if isinstance(error, LlamalaneError):
            error.__traceback__ = None  # it is about what was asked for, and so begins where that was asked
        try:
            raise error
        finally:
            del error, call  # else they and this frame would hold one another

    def call_soon(self, function: Callable[[], object]) -> None:
        """Let the loop call `function` soon, if it runs; never waits. For the garbage collector and signals too."""
        loop = self._loop
        if loop is not None and self.started:
            with contextlib.suppress(RuntimeError):  # it has ended meanwhile
                loop.call_soon(function)

    def join(self) -> None:
        """Wait for the loop's end; raises, once, what `main` raised."""
        self.check_thread()
        self._ended.wait()
        self._thread.join()
        atexit.unregister(self._at_exit)
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def end(self) -> None:
        """Make the loop end soon, and wait for that."""
        self.call_soon(self._abandon)
        self.join()

    def check_thread(self) -> None:
        """Raise `BlockingCallError` on the loop's own thread, which may not wait for itself."""
        if threading.current_thread() is self._thread:
            raise BlockingCallError("a blocking call on the engine's own thread, as by its observer, would never end")

    def _begin(self, call: _Call[T]) -> bool:
        with self._lock:  # after which the loop takes care of it, even if it is about to end
            if self._loop is None:
                return False
            self._loop.begin(call)
            return True

    def _check_caller(self) -> None:
        if self._owner is not None and not self.started:
            raise EngineForkedError(self._owner)
        self.check_thread()
        if not self._allow_event_loop and in_event_loop():
            raise BlockingCallError(
                "a blocking call would stop this thread's event loop: use Engine there, or call from a worker thread, "
                "as by anyio.to_thread.run_sync; allow_event_loop=True allows it, as cells of a notebook need it"
            )

    def _run(self) -> None:
        try:
            anyio.run(self._serve)
        except BaseException as error:
            if self._opened.done():
                raise
            self._opened.set_exception(error)
        finally:
            self._ended.set()

    async def _serve(self) -> None:
        async with anyio.create_task_group() as tasks:
            self._loop = _Loop(call_soon_threadsafe(), tasks, copy_context())
            self._opened.set_result(None)
            try:
                await self._main()
            except Exception as error:
                self._failure = error
            finally:
                with self._lock:
                    self._loop = None
            await checkpoint()  # calls that were on their way begin


class _Call(Generic[T]):
    """A call that runs on the loop, while its caller waits on another thread."""

    def __init__(self, function: Callable[[], Coroutine[Any, Any, T]], discard: Callable[[T], object] | None) -> None:
        self.outcome = Future[T]()
        self._function = function
        self._discard = discard
        self._scope: anyio.CancelScope | None = None
        self._abandoned = False

    async def run(self) -> None:
        """Run it, on the loop."""
        try:
            with anyio.CancelScope() as self._scope:
                if not self._abandoned:
                    self._return(await self._function())
        except BaseException as error:
            self.fail(error)
            if not isinstance(error, Exception):
                raise

    def fail(self, error: BaseException) -> None:
        """Let the caller have an error."""
        self.outcome.set_exception(error)

    def abandon(self) -> None:
        """Take note, on the loop, that nobody waits any more."""
        self._abandoned = True
        if not self.outcome.done():
            if self._scope is not None:
                self._scope.cancel()
        elif self.outcome.exception() is None:
            self._return(self.outcome.result())

    def _return(self, result: T) -> None:
        if not self._abandoned:
            self.outcome.set_result(result)
        elif self._discard is not None:
            self._discard(result)


def _run_at_once(function: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run what has nothing to wait for."""
    coroutine = function()
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise RuntimeError("without an event loop there is nothing to wait for")


def _end_at_exit(thread: weakref.ref[LoopThread]) -> None:
    running = thread()
    if running is not None and running.running:
        running.end()

"""An event loop on a thread of its own: calls, interruptions and its end."""

from __future__ import annotations

import contextlib
import contextvars
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import anyio
import anyio.to_thread
import pytest

from llamalane.errors import BlockingCallError, EngineClosedError, InvalidRequestError
from llamalane.scheduler import loop_thread
from llamalane.scheduler.loop_thread import LoopThread


class Main:
    """Runs on the loop until it is told to return, or to fail."""

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self.abandoned = False

    def stop(self) -> None:
        self._stopping.set()

    def abandon(self) -> None:
        self.abandoned = True
        self.stop()

    async def run(self) -> None:
        self._stopping = anyio.Event()
        await self._stopping.wait()
        if self.failure is not None:
            raise self.failure


@contextlib.contextmanager
def looping(main: Main | None = None, *, allow_event_loop: bool = False) -> Iterator[LoopThread]:
    main = main or Main()
    thread = LoopThread(main.run, main.abandon, name="loop", allow_event_loop=allow_event_loop)
    thread.start()
    try:
        yield thread
    finally:
        thread.end()
    assert not thread.running


async def answer() -> int:
    await anyio.lowlevel.checkpoint()
    return 42


def test_a_call_returns_what_its_function_returns() -> None:
    with looping() as thread:
        assert thread.call(answer) == 42


def test_a_call_raises_what_its_function_raises() -> None:
    async def fail() -> None:
        raise KeyError("nobody")

    with looping() as thread:
        with pytest.raises(KeyError, match="nobody"):
            thread.call(fail)
        assert thread.call(answer) == 42


def test_an_error_of_llamalane_begins_where_the_call_was_made() -> None:
    async def fail() -> None:
        raise InvalidRequestError("no")

    with looping() as thread, pytest.raises(InvalidRequestError) as caught:
        thread.call(fail)
    functions = [entry.name for entry in caught.traceback]
    assert functions == ["test_an_error_of_llamalane_begins_where_the_call_was_made", "call"]


def test_calls_have_the_context_variables_of_their_callers() -> None:
    variable = contextvars.ContextVar[str]("variable")

    async def read() -> str:
        return variable.get("nothing")

    with looping() as thread:
        assert thread.call(read) == "nothing"
        variable.set("mine")
        assert thread.call(read) == "mine"
        found: list[str] = []
        other = threading.Thread(target=lambda: found.append(thread.call(read)))
        other.start()
        other.join()
        assert found == ["nothing"]


class Held:
    """A function that holds its call on the loop, until it is released or, unless it is shielded, cancelled."""

    def __init__(self, began: Callable[[], object] | None = None, *, shielded: bool = False) -> None:
        self.began = threading.Event()
        self.cancelled = False
        self._tell = began
        self._shielded = shielded

    async def __call__(self) -> int:
        self._released = anyio.Event()
        self.began.set()
        if self._tell is not None:
            self._tell()
        try:
            with anyio.CancelScope(shield=self._shielded):
                await self._released.wait()
        except anyio.get_cancelled_exc_class():
            self.cancelled = True
            raise
        return 42

    def release(self) -> None:
        self._released.set()


def interrupt_main_thread() -> None:
    """Do what Ctrl-C does."""
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGINT)


def test_a_call_is_cancelled_when_its_caller_is_interrupted() -> None:
    held = Held(interrupt_main_thread)
    with looping() as thread:
        with pytest.raises(KeyboardInterrupt):
            thread.call(held)
        assert thread.call(answer) == 42
    assert held.cancelled


def test_a_call_is_cancelled_when_its_caller_has_waited_long_enough() -> None:
    held = Held()
    with looping() as thread:
        with pytest.raises(TimeoutError):
            thread.call(held, timeout=0.001)
        assert thread.call(answer) == 42
    assert held.cancelled or not held.began.is_set()


def test_what_a_call_returns_that_nobody_waits_for_is_discarded() -> None:
    discarded: list[int] = []
    held = Held(interrupt_main_thread, shielded=True)
    with looping() as thread:
        with pytest.raises(KeyboardInterrupt):
            thread.call(held, discard=discarded.append)
        thread.call_soon(held.release)
    assert discarded == [42]


def test_what_a_call_returned_just_before_the_interruption_is_discarded(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(Future[int]):
        def exception(self, timeout: float | None = None) -> BaseException | None:
            error = super().exception(timeout)
            if threading.current_thread() is threading.main_thread():
                raise KeyboardInterrupt
            return error

    discarded: list[int] = []
    with looping() as thread:
        monkeypatch.setattr(loop_thread, "Future", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            thread.call(answer, discard=discarded.append)
    assert discarded == [42]


def test_calls_under_way_end_before_the_loop_does() -> None:
    held, main = Held(), Main()
    results: list[int] = []
    with looping(main) as thread:
        caller = threading.Thread(target=lambda: results.append(thread.call(held)))
        caller.start()
        held.began.wait()
        thread.call_soon(main.stop)
        thread.call_soon(held.release)
        thread.join()
        caller.join()
    assert results == [42]


def test_without_a_loop_a_call_is_made_at_once() -> None:
    async def at_once() -> int:
        return 42

    main = Main()
    thread = LoopThread(main.run, main.abandon, name="loop")
    assert thread.call(at_once) == 42
    thread.start()
    thread.end()
    assert thread.call(at_once) == 42


def test_a_loop_starts_once() -> None:
    with looping() as thread, pytest.raises(EngineClosedError, match="once"):
        thread.start()
    with pytest.raises(EngineClosedError, match="once"):
        thread.start()


def test_the_failure_of_main_is_raised_once_and_ends_no_call() -> None:
    held, main = Held(), Main()
    main.failure = ValueError("broken")
    results: list[int] = []
    with looping(main) as thread:
        caller = threading.Thread(target=lambda: results.append(thread.call(held)))
        caller.start()
        held.began.wait()
        thread.call_soon(main.stop)
        thread.call_soon(held.release)
        with pytest.raises(ValueError, match="broken"):
            thread.join()
        caller.join()
        thread.join()
    assert results == [42]


def test_the_loop_ends_though_calls_keep_coming() -> None:
    main = Main()
    with looping(main) as thread:
        ended = threading.Event()

        def keep_calling() -> None:
            with contextlib.suppress(RuntimeError):  # when there is no loop any more
                while True:
                    assert thread.call(answer) == 42
            ended.set()

        callers = [threading.Thread(target=keep_calling) for _ in range(4)]
        for caller in callers:
            caller.start()
        thread.call_soon(main.stop)
        thread.join()
        for caller in callers:
            caller.join()
        assert ended.is_set()


def test_a_call_from_the_loop_itself_is_refused() -> None:
    with looping() as thread:

        async def call_again(wait: Callable[[], object]) -> None:
            with pytest.raises(BlockingCallError, match="own thread"):
                wait()

        thread.call(lambda: call_again(lambda: thread.call(answer)))
        thread.call(lambda: call_again(thread.join))


@pytest.mark.anyio
async def test_a_call_that_would_stop_an_event_loop_is_refused() -> None:
    main = Main()
    thread = LoopThread(main.run, main.abandon, name="loop")
    with pytest.raises(BlockingCallError, match="Engine"):
        thread.start()
    await anyio.to_thread.run_sync(thread.start)
    with pytest.raises(BlockingCallError, match="Engine"):
        thread.call(answer)
    assert await anyio.to_thread.run_sync(thread.call, answer) == 42
    thread.end()


@pytest.mark.anyio
async def test_a_call_may_stop_an_event_loop_that_allows_it() -> None:
    with looping(allow_event_loop=True) as thread:
        assert thread.call(answer) == 42
        assert await anyio.to_thread.run_sync(thread.call, answer) == 42

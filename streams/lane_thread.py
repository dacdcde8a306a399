"""The thread of a lane: it creates, uses and frees the lane's context, and builds another when that has failed."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from llamalane.errors import ContextError, LlamalaneError
from llamalane.ids import StepNumber
from llamalane.streams.brake import Brake
from llamalane.streams.device import Device
from llamalane.streams.gate import Gate
from llamalane.streams.mailbox import Mailbox
from llamalane.streams.steps import LaneFailed, LaneMessage, LaneReady, Receiver, StepPlan
from llamalane.streams.stream import Stream
from llamalane.streams.thread_count import ThreadCount

logger = logging.getLogger(__name__)

MAX_FAILURES = 3
"""After so many failures in a row, with no step finished between them, a lane gives up."""


class LaneContext(Protocol):
    """What every lane asks of its context."""

    def interrupt(self, on: bool) -> None:  # noqa: D102
        ...

    def set_threads(self, threads: int) -> None:  # noqa: D102
        ...

    def close(self) -> None:  # noqa: D102
        ...


ContextT = TypeVar("ContextT", bound=LaneContext)


class LaneThread(ABC, Generic[ContextT]):
    """A lane without what it computes.

    `open_context` makes the lane's context, on the lane's thread; it is called again after the context has failed.
    The constructor returns when the first one is there, and raises what it raised: whoever inherits from it has to be
    ready before. `can_abandon` lets steps be broken off, where the context can take that.
    """

    def __init__(
        self, stream: Stream, open_context: Callable[[], ContextT], *, gate: Gate, can_abandon: bool = False
    ) -> None:
        self.stream = stream
        self.name = stream.options.name
        self._open_context = open_context
        self._gate = gate
        self._mailbox = Mailbox()
        self._thread_count = self._all_threads()
        self._epoch = 0
        self._step = 0
        self._failures = 0
        self._step_end: float | None = None
        self._opened = threading.Event()
        self._started = threading.Event()
        self._open_error: BaseException | None = None
        self._receiver: Receiver | None = None
        self._thread = threading.Thread(target=self._main, name=f"llamalane-{self.name}", daemon=True)
        self._thread.start()
        self._opened.wait()
        if self._open_error is not None:
            self._thread.join()
            raise self._open_error
        self._brake = Brake(works=can_abandon and self._can_abandon())

    def start(self, receiver: Receiver) -> None:
        """Begin to carry out plans, sending each message to `receiver`."""
        self._receiver = receiver
        self._started.set()

    def post(self, plan: StepPlan) -> None:
        """Lay `plan` into the mailbox, in place of one that was not taken yet."""
        self._mailbox.post(plan)

    def abandon(self, step: StepNumber) -> None:
        """Break off that step if it is under way and can be; its rows stay where they were before it."""
        self._brake.pull(step)

    def close(self) -> None:
        """End after the step under way, and free the context. Blocks until that is done."""
        self._mailbox.close()
        self._started.set()
        self._thread.join()

    @abstractmethod
    def _try_out(self, context: ContextT) -> None:
        """Find out what a new context can do, which warms it up too; it holds nothing afterwards."""

    @abstractmethod
    def _can_abandon(self) -> bool:
        """Return whether the context that was tried out can be broken off in a step."""

    @abstractmethod
    def _run(self, context: ContextT) -> None:
        """Carry out plans and steps until the mailbox is closed."""

    @abstractmethod
    def _drop_rows(self) -> None:
        """Drop every row."""

    def _finish(self) -> None:
        """Free what the lane has beside its context; on its thread, at its end."""

    def _timer(self) -> StepTimer:
        """Begin to time a step, on the lane's thread."""
        return StepTimer(self._thread_count)

    def _adapt(self, timer: StepTimer, context: ContextT) -> None:
        """Let the next step have as many threads as it should, by what `timer` saw of the last one."""
        count = self._thread_count
        count.observe(timer.wall, timer.ran, timer.end)
        if count.threads != timer.threads:
            logger.debug("lane %s computes with %d of its %d threads now", self.name, count.threads, count.most)
            context.set_threads(count.threads)

    def _all_threads(self) -> ThreadCount:
        own = self.stream.options
        adaptive = own.adaptive and own.device is Device.CPU
        return ThreadCount(own.threads, least=1 if adaptive else own.threads)

    def _say(self, message: LaneMessage) -> None:
        assert self._receiver is not None
        self._receiver(message)

    def _main(self) -> None:
        try:
            self.stream.enter()
            context = self._open()
        except BaseException as error:
            self._open_error = error
            return
        finally:
            self._opened.set()
        self._started.wait()
        alive: ContextT | None = context
        while alive is not None and not self._mailbox.closed:
            try:
                self._run(alive)
            except Exception as error:  # whatever it was, the requests must hear of it
                alive = self._recover(alive, error)
        if alive is not None:
            self._free(alive)
        self._finish()

    def _open(self) -> ContextT:
        with self._gate.exclusive():
            context = self._open_context()
        self._thread_count = self._all_threads()
        try:
            with self._gate.shared():
                self._try_out(context)
        except BaseException:
            self._free(context)
            raise
        return context

    def _recover(self, context: ContextT, error: Exception) -> ContextT | None:
        """Tell of the failure and build a new context; None when the lane gives up."""
        while True:
            self._failures += 1
            self._epoch += 1
            down = self._failures >= MAX_FAILURES
            logger.error(
                "lane %s failed (%d in a row)%s: %s",
                self.name,
                self._failures,
                "; it is out" if down else "; its context is built anew",
                error,
                exc_info=not isinstance(error, LlamalaneError),
            )
            self._drop_rows()
            self._step_end = None
            self._free(context)
            self._say(LaneFailed(self.name, self._epoch, _as_ours(error), down))
            if down:
                return None
            try:
                context = self._open()
            except Exception as next_error:
                error = next_error
                continue
            self._say(LaneReady(self.name))
            return context

    def _free(self, context: ContextT) -> None:
        self._drop_rows()
        with self._gate.exclusive():
            context.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} on {self.stream!r}>"


class StepTimer:
    """How long a step took, from the timer's creation to `stop`, and for how much of it the calling thread ran."""

    __slots__ = ("begin", "end", "ran", "threads")

    def __init__(self, count: ThreadCount) -> None:
        self.threads = count.threads
        self.begin = self.end = time.monotonic()
        self.ran = -time.thread_time()

    def stop(self) -> None:
        """End it, on the thread that it began on."""
        self.ran += time.thread_time()
        self.end = time.monotonic()

    @property
    def wall(self) -> float:
        """Its time, in seconds."""
        return self.end - self.begin


def _as_ours(error: Exception) -> LlamalaneError:
    return error if isinstance(error, LlamalaneError) else ContextError(f"{type(error).__name__}: {error}")

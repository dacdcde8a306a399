"""A client's view of its request, for code without an event loop."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Generator
from typing import TypeVar

from llamalane.ids import Level, RequestId
from llamalane.scheduler.handle import Progress, RequestHandle, TextPiece
from llamalane.scheduler.logprobs import PromptLogprobs
from llamalane.scheduler.loop_thread import LoopThread
from llamalane.scheduler.request import RequestState
from llamalane.scheduler.result import Result

T = TypeVar("T")


class BlockingRequestHandle:
    """A submitted request of a `BlockingEngine`: iterate over it for its text as it comes, ask it for its result.

    Both raise the error with which the request ended. Text that one iterator has taken does not come again; the
    result holds all of it. An iterator that is left before its end cancels the request: by `break`, an error, or an
    interruption, when it is closed or collected.
    """

    def __init__(self, handle: RequestHandle, thread: LoopThread) -> None:
        self._handle = handle
        self._thread = thread

    @property
    def id(self) -> RequestId:
        """The request's id."""
        return self._handle.id

    @property
    def level(self) -> Level:
        """The request's priority."""
        return self._handle.level

    @property
    def state(self) -> RequestState:
        """Where the request is."""
        return self._handle.state

    @property
    def seed(self) -> int:
        """What its random numbers come from."""
        return self._handle.seed

    @property
    def prompt_tokens(self) -> int:
        """The prompt's length in tokens."""
        return self._handle.prompt_tokens

    @property
    def progress(self) -> Progress:
        """How far the request has come, also after its end."""
        return self._handle.progress

    def cancel(self) -> None:
        """End the request: it leaves the queue soon, or its lane at the next step. Never waits; may be repeated."""
        self._thread.call_soon(self._handle.cancel)

    def result(self, timeout: float | None = None) -> Result:
        """Wait for the result; raises `TimeoutError` after `timeout` seconds, while the request goes on."""
        try:
            return self._thread.call(self._handle.result, timeout=timeout)
        except TimeoutError:
            raise TimeoutError(f"request {self.id} has not ended within {timeout} s, and goes on") from None

    def pieces(self) -> Generator[TextPiece, None, None]:
        """Iterate over the text as it comes, with the log probabilities of its tokens; instead of over the handle."""
        return self._each(self._handle.pieces())

    def prompt_logprobs(self) -> PromptLogprobs | None:
        """Wait for the log probabilities of the prompt's tokens; None if the request did not ask for them.

        Raises the error with which the request ended before they were there.
        """
        return self._thread.call(self._handle.prompt_logprobs)

    def __iter__(self) -> Generator[str, None, None]:
        return self._each(aiter(self._handle))

    def _each(self, pieces: AsyncIterator[T]) -> Generator[T, None, None]:
        try:
            while (piece := self._thread.call(functools.partial(_next, pieces))) is not None:
                yield piece
        except BaseException:  # GeneratorExit among them
            self.cancel()
            raise

    def __repr__(self) -> str:
        return f"<BlockingRequestHandle {self.id}: {self.state.value}>"


async def _next(pieces: AsyncIterator[T]) -> T | None:
    return await anext(pieces, None)

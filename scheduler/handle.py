"""A client's view of its request."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator
from typing import Any, Self

from llamalane.errors import LlamalaneError
from llamalane.ids import Level, RequestId
from llamalane.scheduler.request import Delivery, Outcome, Request, RequestState
from llamalane.scheduler.result import Result


class RequestHandle:
    """A submitted request: iterate over it for its text as it comes, await it for its result.

    Both raise the error with which the request ended. Text that one iterator has taken does not come again; the
    result holds all of it.
    """

    def __init__(self, request: Request, cancel: Callable[[Request], None]) -> None:
        self._request = request
        self._cancel = cancel

    @property
    def id(self) -> RequestId:
        """The request's id."""
        return self._request.id

    @property
    def level(self) -> Level:
        """The request's priority."""
        return self._request.level

    @property
    def state(self) -> RequestState:
        """Where the request is."""
        return self._request.state

    @property
    def seed(self) -> int:
        """What its random numbers come from."""
        assert self._request.sampling.seed is not None
        return self._request.sampling.seed

    @property
    def prompt_tokens(self) -> int:
        """The prompt's length in tokens."""
        return len(self._request.tokens)

    def cancel(self) -> None:
        """End the request: it leaves the queue at once, or its lane at the next step. May be repeated."""
        self._cancel(self._request)

    async def result(self) -> Result:
        """Wait for the result."""
        return _unwrap(await self._request.delivery.wait_closed())

    def __await__(self) -> Generator[Any, Any, Result]:
        return self.result().__await__()

    def __aiter__(self) -> AsyncIterator[str]:
        return _Texts(self._request.delivery)

    def __repr__(self) -> str:
        return f"<RequestHandle {self.id}: {self.state.value}>"


class _Texts:
    """A request's text as it comes. No async generator, which would have to be closed when its loop is broken off."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        while True:
            await self._delivery.wait()
            text = self._delivery.take_nowait()
            if text:
                return text
            if self._delivery.outcome is not None:
                _unwrap(self._delivery.outcome)
                raise StopAsyncIteration


def _unwrap(outcome: Outcome) -> Result:
    if isinstance(outcome, LlamalaneError):
        raise outcome
    assert isinstance(outcome, Result), "a handle is given out for requests that generate"
    return outcome

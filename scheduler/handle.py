"""A client's view of its request."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator
from dataclasses import dataclass
from typing import Any, Self

from llamalane.clock import Clock
from llamalane.errors import LlamalaneError
from llamalane.ids import Level, RequestId
from llamalane.scheduler.delivery import Delivery
from llamalane.scheduler.events import EventKind
from llamalane.scheduler.logprobs import OutputToken, PromptLogprobs
from llamalane.scheduler.request import Request, RequestState
from llamalane.scheduler.result import Result


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a request has come, or came before it ended; times are in seconds from its submission.

    Attributes:
        age: how long ago it was submitted.
        wait, first_token: when it got its first place, and its first token; None while it has not.
        lane: the lane that it is on, or was on last; empty for none yet.
        prompt_tokens, cached_tokens, completion_tokens: as `Usage` counts them.
        parks, restarts: how often it had to give way, and how often its lane failed under it.
        events: what happened to it, and when.
    """

    age: float
    wait: float | None
    first_token: float | None
    lane: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    parks: int
    restarts: int
    events: tuple[tuple[EventKind, float], ...]


@dataclass(frozen=True, slots=True)
class TextPiece:
    """A piece of an output, and the tokens that begin in it, if the request asked for log probabilities."""

    text: str
    tokens: tuple[OutputToken, ...]


class RequestHandle:
    """A submitted request: iterate over it for its text as it comes, await it for its result.

    Both raise the error with which the request ended. Text that one iterator has taken does not come again; the
    result holds all of it.
    """

    def __init__(self, request: Request, cancel: Callable[[Request], None], clock: Clock) -> None:
        self._request = request
        self._cancel = cancel
        self._clock = clock

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

    @property
    def progress(self) -> Progress:
        """How far the request has come, also after its end."""
        request = self._request
        since = request.arrival
        return Progress(
            age=self._clock.now() - since,
            wait=None if request.admitted_at is None else request.admitted_at - since,
            first_token=None if request.first_token_at is None else request.first_token_at - since,
            lane=request.lane,
            prompt_tokens=len(request.tokens),
            cached_tokens=request.cached,
            completion_tokens=len(request.generated),
            parks=request.parks,
            restarts=request.restarts,
            events=tuple((kind, time - since) for kind, time in request.events),
        )

    def cancel(self) -> None:
        """End the request: it leaves the queue at once, or its lane at the next step. May be repeated."""
        self._cancel(self._request)

    async def result(self) -> Result:
        """Wait for the result."""
        return _unwrap(await self._request.delivery.wait_closed())

    def pieces(self) -> AsyncIterator[TextPiece]:
        """Iterate over the text as it comes, with the log probabilities of its tokens; instead of over the handle."""
        return _Pieces(self._request.delivery)

    async def prompt_logprobs(self) -> PromptLogprobs | None:
        """Wait for the log probabilities of the prompt's tokens; None if the request did not ask for them.

        Raises the error with which the request ended before they were there.
        """
        delivery = self._request.delivery
        if self._request.prompt_logprobs is not None:
            await delivery.wait_prompt()
            if delivery.prompt is None and delivery.outcome is not None:
                _unwrap(delivery.outcome)
        return delivery.prompt

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


class _Pieces:
    """A request's text as it comes, with its tokens."""

    def __init__(self, delivery: Delivery) -> None:
        self._texts = _Texts(delivery)
        self._delivery = delivery

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TextPiece:
        text = await anext(self._texts)
        return TextPiece(text, self._delivery.take_tokens_nowait())


def _unwrap(outcome: Result | LlamalaneError) -> Result:
    if isinstance(outcome, LlamalaneError):
        raise outcome
    return outcome

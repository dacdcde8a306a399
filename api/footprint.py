"""What one HTTP request puts into the queue, all its choices together, and whether that can ever fit."""

from __future__ import annotations

from collections.abc import Sequence

from llamalane.api.sampling_fields import SampledBody
from llamalane.errors import InvalidRequestError, QueueFullError
from llamalane.scheduler import Engine, RequestHandle, RequestState


class Footprint:
    """Refuses for good what the queue could not hold even if it were empty: trying again would be of no use.

    `least_tokens` says for each prompt how many tokens it has at least; the rest shows when it has been submitted.
    Raises `InvalidRequestError`, here and in all methods.
    """

    def __init__(self, engine: Engine, body: SampledBody, least_tokens: Sequence[int]) -> None:
        self._engine = engine
        self._choices = body.choices
        self._count_param = body.client_name("n")
        self._least = least_tokens
        self._count = len(least_tokens) * body.choices
        self._tokens = sum(least_tokens) * body.choices
        queue = engine.config.scheduler.queue
        self._max_tokens = queue.max_tokens
        if self._count > queue.max_requests:
            raise self._refusal(f"{self._what()} can never be queued: at most {queue.max_requests} can")
        if body.supersede is not None and self._count > 1:
            raise InvalidRequestError(
                f"supersede is for a single prompt with a single choice; there are {self._what()}", param="supersede"
            )
        self._check_tokens()

    def found(self, prompt: int, tokens: int) -> None:
        """Take note of how many tokens prompt number `prompt` really has."""
        self._tokens += (tokens - self._least[prompt]) * self._choices
        self._check_tokens()

    def check_refusal(self, error: QueueFullError, handles: Sequence[RequestHandle]) -> None:
        """Look at why the queue refused one more beside `handles`: it may hold nothing but these."""
        waiting = sum(handle.prompt_tokens for handle in handles if handle.state is RequestState.WAITING)
        if error.reason == "tokens" and waiting == self._engine.stats().waiting_tokens:
            raise self._refusal(
                f"the prompts of {self._what()} can never be queued together: at most {self._max_tokens} tokens can"
            ) from error

    def _check_tokens(self) -> None:
        # A prompt that is alone may be longer than what the queue holds.
        if self._count > 1 and self._tokens > self._max_tokens:
            raise self._refusal(
                f"{self._what()} with at least {self._tokens} tokens can never be queued together: "
                f"at most {self._max_tokens} tokens can"
            )

    def _what(self) -> str:
        return f"{len(self._least)} prompts × {self._choices} choices"

    def _refusal(self, message: str) -> InvalidRequestError:
        return InvalidRequestError(message, param=self._count_param if self._choices > 1 else "prompt")

"""What a request hands over to whoever waits for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import anyio

from llamalane.errors import LlamalaneError
from llamalane.scheduler.logprobs import OutputToken, PromptLogprobs
from llamalane.scheduler.result import Result


class Delivery:
    """Brings a request's text and outcome to whoever waits for it. Bounded by the request's `max_tokens`."""

    def __init__(self) -> None:
        self.prompt: PromptLogprobs | None = None
        """What was told of the prompt, once all of it was."""
        self._texts: deque[str] = deque()
        self._tokens: deque[OutputToken] = deque()
        self._outcome: Result | LlamalaneError | None = None
        self._news = anyio.Event()

    @property
    def outcome(self) -> Result | LlamalaneError | None:
        """How the request ended, None while it has not."""
        return self._outcome

    def put(self, text: str, tokens: Sequence[OutputToken] = ()) -> None:
        """Hand over a piece of text, and the tokens that belong to it."""
        if text:
            self._texts.append(text)
            self._tokens += tokens
            self._news.set()

    def put_prompt(self, prompt: PromptLogprobs) -> None:
        """Hand over what is told of the prompt."""
        self.prompt = prompt
        self._news.set()

    def close(self, outcome: Result | LlamalaneError) -> None:
        """Hand over the outcome; the first one counts."""
        if self._outcome is None:
            self._outcome = outcome
            self._news.set()

    def take_nowait(self) -> str:
        """Take all text that is there, perhaps none."""
        text = "".join(self._texts)
        self._texts.clear()
        return text

    def take_tokens_nowait(self) -> tuple[OutputToken, ...]:
        """Take the tokens of all text that was taken since they were last."""
        tokens = tuple(self._tokens)
        self._tokens.clear()
        return tokens

    async def wait(self) -> None:
        """Wait until there is text or an outcome."""
        while not self._texts and self._outcome is None:
            await self._wait_for_news()

    async def wait_closed(self) -> Result | LlamalaneError:
        """Wait for the outcome."""
        while self._outcome is None:
            await self._wait_for_news()
        return self._outcome

    async def wait_prompt(self) -> None:
        """Wait until the prompt was told, or there is an outcome."""
        while self.prompt is None and self._outcome is None:
            await self._wait_for_news()

    async def _wait_for_news(self) -> None:
        # Several tasks may wait for the same news, so an event is replaced only after it was set.
        if self._news.is_set():
            self._news = anyio.Event()
        await self._news.wait()

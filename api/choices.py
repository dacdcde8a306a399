"""The choices of one HTTP request: submitted together, and cancelled on every way out."""

from __future__ import annotations

import contextlib
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic

from pydantic import BaseModel

from llamalane.api.bodies import BodyT
from llamalane.api.footprint import Footprint
from llamalane.api.logprobs import Echo
from llamalane.api.priority import tier_of
from llamalane.api.reply import ReplyFormat
from llamalane.api.schemas import GenerationBody
from llamalane.errors import QueueFullError
from llamalane.ids import Level, RequestId
from llamalane.scheduler import Engine, RequestHandle, Result, SubmitOptions, TextPiece

Submit = Callable[[Sequence[RequestId], SubmitOptions], Awaitable[list[RequestHandle]]]
"""Submits one prompt, as a choice for each id."""


@dataclass(frozen=True, slots=True)
class PromptInput:
    """One prompt of a request: what submits it, and how many tokens it has at least.

    `echo` is its text if its choices are to begin with it.
    `reply` says how its outputs are to be read, None for those that are nothing but text.
    """

    submit: Submit
    least_tokens: int = 1
    echo: str | None = None
    reply: ReplyFormat | None = None


class Endpoint(ABC, Generic[BodyT]):
    """What differs between the two endpoints: how prompts come in, and how choices go out.

    `operation` is what OpenTelemetry calls it; `answer` and `chunk` describe what it answers.
    """

    path: str
    body_type: type[BodyT]
    answer: type[BaseModel]
    chunk: type[BaseModel]
    operation: str
    id_prefix: str
    object_name: str
    chunk_object_name: str

    @abstractmethod
    def prompts(self, engine: Engine, body: BodyT) -> Sequence[PromptInput]:
        """Return the prompts of `body`."""

    @abstractmethod
    def choice(self, index: int, result: Result, echo: Echo | None = None) -> dict[str, Any]:
        """Return a finished choice, with `echo` before it."""

    def read_choice(self, index: int, result: Result, format: ReplyFormat) -> dict[str, Any]:
        """Return a finished choice that is to be read in `format`; where no prompt has one, it is never asked for."""
        raise NotImplementedError

    @abstractmethod
    def first_chunk(self, index: int, echo: Echo | None = None) -> dict[str, Any] | None:
        """Return the choice of the chunk before the first text, if there is one; an `echo` is there."""

    @abstractmethod
    def text_chunk(self, index: int) -> tuple[str, str]:
        """Return what stands before and after the text, in the JSON of a chunk's choice."""

    @abstractmethod
    def scored_chunk(self, index: int, piece: TextPiece, echo: Echo | None = None) -> dict[str, Any]:
        """Return the choice of a chunk that brings log probabilities with its text; `echo` came before."""

    @abstractmethod
    def last_chunk(self, index: int, finish: str) -> dict[str, Any]:
        """Return the choice of the chunk that tells why the text ended."""


@dataclass(frozen=True, slots=True)
class Order:
    """One HTTP request whose choices have all been submitted.

    `handles` has `per_prompt` choices for each prompt, one prompt after the other, of which `returned` are wanted. With
    `logprobs`, the tokens of the outputs are told with their log probabilities. `echoes` has the text of each prompt
    that is to stand before its outputs.
    `handles` has `per_prompt` choices for each prompt, one prompt after the other. `replies` says for each prompt how
    its outputs are to be read.
    """

    endpoint: Endpoint[Any]
    id: str
    created: int
    model: str
    level: Level
    tier: str | None
    include_usage: bool
    per_prompt: int
    returned: int
    logprobs: bool
    echoes: tuple[str | None, ...]
    replies: tuple[ReplyFormat | None, ...]
    handles: tuple[RequestHandle, ...]

    def envelope(self, *, chunk: bool) -> dict[str, Any]:
        """Return what every answer, or every chunk of a stream, begins with."""
        endpoint = self.endpoint
        fields = {
            "id": self.id,
            "object": endpoint.chunk_object_name if chunk else endpoint.object_name,
            "created": self.created,
            "model": self.model,
            "priority": self.level,
        }
        return fields if self.tier is None else {**fields, "service_tier": self.tier}

    async def collect(self, note: Callable[[Result], None]) -> dict[str, Any]:
        """Wait for every choice and return the answer's body; `note` is told of each result."""
        results = []
        for handle in self.handles:
            results.append(await handle.result())
            note(results[-1])
        choices = []
        for index, result in enumerate(self._wanted(results)):
            prompt = index // self.returned
            format = self.replies[prompt]
            if format is None:
                choices.append(self.endpoint.choice(index, result, await self.echo(prompt)))
            else:
                choices.append(self.endpoint.read_choice(index, result, format))
        return {
            **self.envelope(chunk=False),
            "choices": choices,
            "usage": self.usage(results),
            **self.summary(results),
        }

    async def echo(self, prompt: int) -> Echo | None:
        """Return what stands before the outputs of prompt number `prompt`, once it is there; None for nothing."""
        text = self.echoes[prompt]
        return None if text is None else Echo(text, await self.handles[prompt * self.per_prompt].prompt_logprobs())

    def _wanted(self, results: Sequence[Result]) -> list[Result]:
        """Return the results that are wanted: all in their order, or of each prompt those with the likeliest tokens."""
        if self.returned == self.per_prompt:
            return list(results)
        best: list[Result] = []
        for first in range(0, len(results), self.per_prompt):
            ranked = sorted(results[first : first + self.per_prompt], key=_mean_logprob, reverse=True)
            best += ranked[: self.returned]
        return best if self.logprobs else [replace(result, logprobs=None) for result in best]

    def reply(self, index: int) -> ReplyFormat | None:
        """Return how choice number `index` is to be read, None if it is nothing but text."""
        return self.replies[index // self.per_prompt]

    def usage(self, results: Sequence[Result]) -> dict[str, Any]:
        """Return the token counts as OpenAI counts them: a prompt once, however many choices it has."""
        prompts = [result.usage for result in results[:: self.per_prompt]]
        prompt_tokens = sum(usage.prompt_tokens for usage in prompts)
        completion_tokens = sum(result.usage.completion_tokens for result in results)
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "prompt_tokens_details": {"cached_tokens": sum(usage.cached_tokens for usage in prompts)},
        }

    def summary(self, results: Sequence[Result]) -> dict[str, Any]:
        """Return our own fields: the seed, and the times of the first admission, first token and last end."""
        timings = [result.timings for result in results]
        return {
            "seed": self.handles[0].seed,
            "timings": {
                "wait_ms": _milliseconds(min(times.wait for times in timings)),
                "first_token_ms": _milliseconds(min(times.first_token for times in timings)),
                "total_ms": _milliseconds(max(times.total for times in timings)),
                "parks": sum(times.parks for times in timings),
            },
        }


@contextlib.asynccontextmanager
async def submit_all(
    engine: Engine, endpoint: Endpoint[BodyT], body: BodyT, level: Level, *, tenant: str = "", cache_salt: str = ""
) -> AsyncIterator[Order]:
    """Submit all choices that `body` asks for, or none; leaving the block cancels those that have not ended.

    Raises what `Engine.submit` raises, with `param` as the client called it.
    """
    order_id = f"{endpoint.id_prefix}-{secrets.token_hex(12)}"
    with contextlib.ExitStack() as stack:
        with body.client_names():
            if body.model is not None:
                engine.check_model(body.model)
            options = SubmitOptions(sampling=body.sampling, priority=level, tenant=tenant, deadline=body.deadline)
            if cache_salt:
                options["cache_salt"] = cache_salt
            if body.supersede is not None:
                options["supersede"] = body.supersede
            prompts = endpoint.prompts(engine, body)
            handles = await _submit(engine, prompts, body, options, order_id, stack)
        yield Order(
            endpoint=endpoint,
            id=order_id,
            created=int(time.time()),
            model=engine.model_name,
            level=level,
            tier=None if body.service_tier is None else tier_of(engine.levels, level),
            include_usage=body.include_usage,
            per_prompt=body.choices,
            returned=body.returned,
            logprobs=body.alternatives is not None,
            echoes=tuple(prompt.echo for prompt in prompts),
            replies=tuple(prompt.reply for prompt in prompts),
            handles=tuple(handles),
        )


async def _submit(
    engine: Engine,
    prompts: Sequence[PromptInput],
    body: GenerationBody,
    options: SubmitOptions,
    order_id: str,
    stack: contextlib.ExitStack,
) -> list[RequestHandle]:
    """Submit every choice of every prompt; leaving `stack` cancels them."""
    footprint = Footprint(engine, body, [prompt.least_tokens for prompt in prompts])
    handles: list[RequestHandle] = []
    for number, prompt in enumerate(prompts):
        for first, count in _groups(body, engine.most_choices):
            options["choice"] = first
            options["sampling"] = body.sampling if first == 0 else replace(body.sampling, prompt_logprobs=None)
            ids = [RequestId(f"{order_id}/{len(handles) + choice}") for choice in range(count)]
            try:
                choices = await prompt.submit(ids, options)
            except QueueFullError as error:
                footprint.check_refusal(error, handles)
                raise
            for handle in choices:
                stack.callback(handle.cancel)
            handles += choices
            if first == 0:
                footprint.found(number, choices[0].prompt_tokens)
    return handles


def _groups(body: GenerationBody, most: int) -> Iterator[tuple[int, int]]:
    """Yield which choices of a prompt start together: the first one's number, and how many.

    Where the prompt is to be measured, that is done for the first choice alone, which starts by itself.
    """
    first = 0
    while first < body.choices:
        count = 1 if first == 0 and body.sampling.prompt_logprobs is not None else min(most, body.choices - first)
        yield first, count
        first += count


def _mean_logprob(result: Result) -> float:
    assert result.cumulative_logprob is not None
    return result.cumulative_logprob / len(result.tokens)


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)

"""The choices of one HTTP request: submitted together, and cancelled on every way out."""

from __future__ import annotations

import contextlib
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, Protocol

from pydantic import BaseModel

from llamalane.api.bodies import BodyT
from llamalane.api.footprint import Footprint
from llamalane.api.logprobs import Echo
from llamalane.api.priority import tier_of
from llamalane.api.reply import ReplyFormat
from llamalane.api.sampling_fields import SampledBody
from llamalane.api.sse import EventWriter
from llamalane.errors import QueueFullError
from llamalane.ids import Level, RequestId
from llamalane.scheduler import Engine, FinishReason, RequestHandle, Result, SubmitOptions, Token
from llamalane.scheduler.spelling import starts_in

Note = Callable[[Result], None]
"""Is told of each result."""
Submit = Callable[[Sequence[RequestId], SubmitOptions], Awaitable[list[RequestHandle]]]
"""Submits one prompt, as a choice for each id."""


@dataclass(frozen=True, slots=True)
class PromptInput:
    """One prompt of a request: what submits it, and how many tokens it has at least.

    `echo` is its text if its choices are to begin with it. `reply` says how its outputs are to be read, None for those
    that are nothing but text.
    """

    submit: Submit
    least_tokens: int = 1
    echo: str | None = None
    reply: ReplyFormat | None = None


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """The tokens of a request: of its prompts, how many of these were computed before, and of its outputs."""

    prompt: int
    cached: int
    completion: int


class EventStream(Protocol):
    """Tells the choices of an order as server-sent events."""

    async def run(self, ping_after: float) -> bytes:
        """Write all events, and a comment after `ping_after` seconds without any; returns the last ones, unwritten.

        Raises the first error of a choice, or `ClientDisconnect` when the client is gone.
        """

    def failure(self, error: Exception) -> bytes:
        """Return the events with which a stream ends that has begun, and which `error` broke off."""


class Endpoint(ABC, Generic[BodyT]):
    """What differs between the endpoints that generate: how prompts come in, and how outputs are told.

    `operation` is what OpenTelemetry calls it; `answer` and `chunk` describe what it answers.
    """

    path: ClassVar[str]
    body_type: type[BodyT]
    answer: ClassVar[type[BaseModel]]
    chunk: ClassVar[type[BaseModel]]
    operation: ClassVar[str]
    id_prefix: ClassVar[str]

    @abstractmethod
    def prompts(self, engine: Engine, body: BodyT) -> Sequence[PromptInput]:
        """Return the prompts of `body`."""

    @abstractmethod
    async def collect(self, order: Order[BodyT], note: Note) -> dict[str, Any]:
        """Wait for every choice and return the answer's body; `note` is told of each result."""

    @abstractmethod
    def stream(self, order: Order[BodyT], writer: EventWriter, note: Note) -> EventStream:
        """Return what tells the choices as they come; `note` is told of each result."""


@dataclass(frozen=True, slots=True)
class Order(Generic[BodyT]):
    """One HTTP request whose choices have all been submitted.

    `handles` has `body.choices` choices for each prompt, one prompt after the other; `body.returned` of them are
    wanted. `echoes` has the text of each prompt that is to stand before its outputs, and `replies` says how these are
    to be read. `spell` tells what tokens of the model stand for.
    """

    id: str
    body: BodyT
    created: int
    model: str
    tier: str | None
    echoes: tuple[str | None, ...]
    replies: tuple[ReplyFormat | None, ...]
    handles: tuple[RequestHandle, ...]
    spell: Callable[[Sequence[int]], list[Token]]

    @property
    def level(self) -> Level:
        """The priority of its choices at present, which may be another one than they were submitted at."""
        return min(handle.level for handle in self.handles)

    @property
    def logprobs(self) -> bool:
        """Whether the tokens of the outputs are told with their log probabilities."""
        return self.body.alternatives is not None

    async def result(self, handle: RequestHandle) -> Result:
        """Wait for the result of one of the handles, as far as it is to be told."""
        result = await handle.result()
        return _without_output(result) if self.body.prompt_only else result

    async def echo(self, prompt: int) -> Echo | None:
        """Return what stands before the outputs of prompt number `prompt`, once it is there; None for nothing."""
        text, first = self.echoes[prompt], prompt * self.body.choices
        return None if text is None else Echo(text, await self.handles[first].prompt_logprobs())

    def reply(self, index: int) -> ReplyFormat | None:
        """Return how choice number `index` is to be read, None if it is nothing but text."""
        return self.replies[index // self.body.choices]

    def counts(self, results: Sequence[Result]) -> TokenCounts:
        """Return the token counts, a prompt's once, however many choices it has."""
        prompts = [result.usage for result in results[:: self.body.choices]]
        return TokenCounts(
            prompt=sum(usage.prompt_tokens for usage in prompts),
            cached=sum(usage.cached_tokens for usage in prompts),
            completion=sum(result.usage.completion_tokens for result in results),
        )

    def thought_tokens(self, index: int, result: Result) -> int:
        """Return how many tokens of choice number `index` are thoughts, with the tags around them."""
        format = self.reply(index)
        end = 0 if format is None else format.thoughts_in(result.text)
        if end == 0:
            return 0
        return sum(start < end for start in starts_in(result.text, self.spell(result.tokens)))

    def summary(self, results: Sequence[Result]) -> dict[str, Any]:
        """Return our own fields: the priority by now, the seed, and when was what, from first admission to last end."""
        timings = [result.timings for result in results]
        return {
            "priority": self.level,
            "seed": self.handles[0].seed,
            "timings": {
                "wait_ms": _milliseconds(min(times.wait for times in timings)),
                "first_token_ms": _milliseconds(min(times.first_token for times in timings)),
                "total_ms": _milliseconds(max(times.total for times in timings)),
                "parks": sum(times.parks for times in timings),
                "handovers": sum(times.handovers for times in timings),
            },
        }


@contextlib.asynccontextmanager
async def submit_all(
    engine: Engine, endpoint: Endpoint[BodyT], body: BodyT, level: Level, *, tenant: str = "", cache_salt: str = ""
) -> AsyncIterator[Order[BodyT]]:
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
            id=order_id,
            body=body,
            created=int(time.time()),
            model=engine.model_name,
            tier=None if body.service_tier is None else tier_of(engine.levels, level),
            echoes=tuple(prompt.echo for prompt in prompts),
            replies=tuple(prompt.reply for prompt in prompts),
            handles=tuple(handles),
            spell=engine.spell,
        )


async def _submit(
    engine: Engine,
    prompts: Sequence[PromptInput],
    body: SampledBody,
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


def _groups(body: SampledBody, most: int) -> Iterator[tuple[int, int]]:
    """Yield which choices of a prompt start together: the first one's number, and how many.

    Where the prompt is to be measured, that is done for the first choice alone, which starts by itself.
    """
    first = 0
    while first < body.choices:
        count = 1 if first == 0 and body.sampling.prompt_logprobs is not None else min(most, body.choices - first)
        yield first, count
        first += count


def _without_output(result: Result) -> Result:
    """Return a result as if its output had ended before it began."""
    return replace(
        result,
        text="",
        tokens=(),
        finish_reason=FinishReason.LENGTH,
        usage=replace(result.usage, completion_tokens=0),
        logprobs=None if result.logprobs is None else (),
        ending=None,
    )


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)

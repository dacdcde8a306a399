"""Turns what a client asks for into a request, or says why it can never be served."""

from __future__ import annotations

import functools
import itertools
import math
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict

import anyio
import anyio.to_thread

from llamalane.clock import Clock
from llamalane.errors import InvalidRequestError, PromptTooLongError
from llamalane.ids import RequestId
from llamalane.scheduler.gang import Gang
from llamalane.scheduler.logprobs import OutputLogprobs, PromptMeasurement
from llamalane.scheduler.output import OutputText, StopWhen
from llamalane.scheduler.priority import Aging, PriorityLevels
from llamalane.scheduler.request import Request
from llamalane.scheduler.spelling import Token, spell
from llamalane.streams import ContextShift, Grammar, SamplingParameters, llama

TOKENIZERS = 2
"""So many long texts are tokenized at once: odd ones take long, and nothing can stop llama.cpp meanwhile."""
LONG_TEXT = 4096
"""A text of more bytes is tokenized on a worker thread, so that the event loop does not stall."""

MAX_CHOICE = 2**32 - 1


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A prompt that a chat template has written: nothing is put around its text."""

    text: str


Prompt = str | Sequence[int] | ChatPrompt
"""What an output continues: a text, tokens, or what a chat template made of a conversation."""


class SubmitOptions(TypedDict, total=False):
    """What every way of submitting a request takes.

    Attributes:
        sampling: how tokens are chosen.
        priority: a level from 1 (most urgent) to 5, or its name; None for the default level.
        tenant: whose request it is; only requests of the same tenant share cached prefixes.
        cache_salt: parts a tenant's requests: only those with the same salt share cached prefixes.
        deadline: seconds from now after which the request is dropped, wherever it is.
        choice: tells apart several outputs for one prompt and seed, 0 … 2³² − 1.
        supersede: a key, as of an autocompleter: the request ends the older one of its tenant, and with its salt, that
            has the same key.
        shown: names of control tokens that are part of the output's text, such as those around a call of a tool; those
            that the model does not have are passed over.
        stop_when: makes, for each choice, what is asked after each piece of its text whether it ends there.
        request_id: a name for logs and answers; unique among the requests that wait or hold a place.
    """

    sampling: SamplingParameters
    priority: int | str | None
    tenant: str
    cache_salt: str
    deadline: float | None
    choice: int
    supersede: str | None
    shown: tuple[str, ...]
    stop_when: Callable[[], StopWhen] | None
    request_id: RequestId | None


class Intake:
    """Checks and prepares requests for `model`, whose sequences hold `limit` tokens.

    `shift` lets requests get more than fit; those that do not say how many they want get what fits. `orders` counts
    submissions, perhaps together with others'.
    """

    def __init__(
        self,
        model: llama.Model,
        limit: int,
        levels: PriorityLevels,
        aging: Aging,
        clock: Clock,
        *,
        shift: ContextShift | None = None,
        orders: Iterator[int] | None = None,
    ) -> None:
        self._model = model
        self._vocabulary = model.vocabulary
        self._limit = limit
        self._levels = levels
        self._aging = aging
        self._clock = clock
        self._shift = shift
        self._grammars = model.grammars
        self._tokenizers = anyio.CapacityLimiter(TOKENIZERS)
        self._compiler = anyio.CapacityLimiter(1)  # one that takes long holds up others like it, and nobody else
        self._orders = itertools.count(1) if orders is None else orders

    @functools.cached_property
    def template(self) -> llama.ChatTemplate:
        """The model's own chat template; raises `ChatTemplateError` if it has none."""
        return llama.ChatTemplate.of(self._model)

    async def tokenize(self, prompt: Prompt) -> list[int]:
        """Return the tokens of a prompt; a text that cannot fit is refused before it is tokenized."""
        match prompt:
            case str():
                return await self._tokenize(prompt, add_special=True)
            case ChatPrompt():
                return await self._tokenize(prompt.text, add_special=False)
        return list(prompt)

    async def tokenize_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Return the tokens of a conversation, as the model's own template writes it."""
        _check_messages(messages)
        return await self.tokenize(ChatPrompt(self.template.render(messages)))

    def spell(self, tokens: Sequence[int]) -> list[Token]:
        """Return what tokens stand for; raises `InvalidRequestError` for those that the model does not have."""
        self._check_tokens(tokens)
        return [spell(self._vocabulary, token) for token in tokens]

    async def compile(self, grammar: Grammar) -> None:
        """Compile a grammar on a worker thread, for a request that is prepared next.

        Raises `InvalidRequestError` for one that cannot be used.
        """
        if self._grammars.find(grammar) is None:
            await anyio.to_thread.run_sync(self._grammars.compile, grammar, limiter=self._compiler)

    async def compile_for(self, options: SubmitOptions) -> None:
        """Compile the grammar that `options` ask for, if they do."""
        sampling = options.get("sampling")
        if isinstance(sampling, SamplingParameters) and sampling.grammar is not None:
            await self.compile(sampling.grammar)

    def prepare_choices(
        self, tokens: Sequence[int], ids: Sequence[RequestId | None], options: SubmitOptions
    ) -> list[Request]:
        """Return a request for each of `ids`, all for the same prompt; raises what `prepare` raises."""
        if options.get("supersede") is not None and len(ids) > 1:
            raise InvalidRequestError(
                "supersede is for a single choice: several would end each other", param="supersede"
            )
        sampling = options.get("sampling") or SamplingParameters()
        if sampling.prompt_logprobs is not None and len(ids) > 1:
            raise InvalidRequestError(
                "prompt_logprobs is for a single choice: the prompt is the same for all", param="prompt_logprobs"
            )
        if sampling.seed is None:
            sampling = replace(sampling, seed=secrets.randbits(32))
        first = options.get("choice", 0)
        requests = [
            self.prepare(tokens, {**options, "sampling": sampling, "choice": first + number, "request_id": name})
            for number, name in enumerate(ids)
        ]
        if len(requests) > 1:
            gang = Gang[Request]()
            for request in requests:
                request.gang = gang
        return requests

    def prepare(self, tokens: Sequence[int], options: SubmitOptions) -> Request:
        """Return the request for a prompt of `tokens`; raises `RequestError` for what can never be served."""
        unknown = options.keys() - SubmitOptions.__annotations__.keys()
        if unknown:
            raise TypeError(f"unknown options: {', '.join(sorted(unknown))}; sampling parameters go into `sampling`")
        sampling = options.get("sampling") or SamplingParameters()
        if sampling.seed is None:
            sampling = replace(sampling, seed=secrets.randbits(32))
        check_types(options)
        level = self._levels.parse(options.get("priority"))
        deadline = options.get("deadline")
        self._check_prompt(tokens)
        self._check_sampling(sampling)
        check_deadline(deadline)
        choice = options.get("choice", 0)
        if not isinstance(choice, int) or not 0 <= choice <= MAX_CHOICE:
            raise InvalidRequestError(f"choice must be from 0 to {MAX_CHOICE}; got {choice!r}", param="choice")
        now = self._clock.now()
        room = self._limit - len(tokens)
        wanted = room if sampling.max_tokens is None else sampling.max_tokens
        shift = self._shift if wanted > room else None
        detokenizer = self._detokenizer(options)
        stop_when = options.get("stop_when")
        speller = functools.partial(spell, self._vocabulary)
        return Request(
            id=options.get("request_id") or RequestId(f"req-{secrets.token_hex(12)}"),
            tokens=tokens,
            sampling=sampling,
            max_tokens=wanted if shift is not None else min(wanted, room),
            level=level,
            tenant=options.get("tenant", ""),
            cache_salt=options.get("cache_salt", ""),
            choice=choice,
            arrival=now,
            key=self._aging.key(level, now),
            order=next(self._orders),
            output=OutputText(detokenizer, sampling.stop, None if stop_when is None else stop_when()),
            deadline=None if deadline is None else now + deadline,
            deadline_after=deadline or 0.0,
            shift=shift,
            grammar=self._compiled(sampling),
            logprobs=None if sampling.logprobs is None else OutputLogprobs(speller, detokenizer.gap_before),
            prompt_logprobs=None if sampling.prompt_logprobs is None else PromptMeasurement(tokens, speller),
            supersede=options.get("supersede"),
        )

    def _detokenizer(self, options: SubmitOptions) -> llama.Detokenizer:
        tokens = {name: self._vocabulary.marked(name) for name in options.get("shown", ())}
        shown = {token: name.encode() for name, token in tokens.items() if token is not None}
        return llama.Detokenizer(self._vocabulary.pieces, shown)

    def _compiled(self, sampling: SamplingParameters) -> llama.CompiledGrammar | None:
        if sampling.grammar is None:
            return None
        compiled = self._grammars.find(sampling.grammar)
        if compiled is None:
            raise InvalidRequestError(
                "the grammar has to be compiled first, which takes too long to wait for here: call compile_grammar()",
                param="grammar",
            )
        return compiled

    async def _tokenize(self, text: str, *, add_special: bool) -> list[int]:
        if not text:
            raise _empty_prompt()
        size = len(llama.encode(text))
        fewest = math.ceil(size / self._vocabulary.longest_piece)
        if fewest >= self._limit:
            raise PromptTooLongError(fewest, self._limit, at_least=True)

        def tokenize() -> list[int]:
            return self._vocabulary.tokenize(text, add_special=add_special, parse_special=True)

        tokens = tokenize() if size <= LONG_TEXT else await anyio.to_thread.run_sync(tokenize, limiter=self._tokenizers)
        return self._vocabulary.with_one_bos(tokens)

    def _check_prompt(self, tokens: Sequence[int]) -> None:
        if not tokens:
            raise _empty_prompt()
        if len(tokens) >= self._limit:
            raise PromptTooLongError(len(tokens), self._limit)
        self._check_tokens(tokens)

    def _check_tokens(self, tokens: Sequence[int]) -> None:
        size = self._vocabulary.size
        if not all(type(token) is int and 0 <= token < size for token in tokens):
            raise InvalidRequestError(f"prompt tokens must be integers from 0 to {size - 1}", param="prompt")

    def _check_sampling(self, sampling: SamplingParameters) -> None:
        if self._shift is None and sampling.max_tokens is not None and sampling.max_tokens > self._limit:
            raise InvalidRequestError(
                f"max_tokens must be at most {self._limit}, which is all that a sequence holds; "
                f"got {sampling.max_tokens}",
                param="max_tokens",
            )
        size = self._vocabulary.size
        if not all(0 <= token < size for token in sampling.logit_bias):
            raise InvalidRequestError(f"logit_bias tokens must be from 0 to {size - 1}", param="logit_bias")


_TYPES: Mapping[str, tuple[type, ...]] = {
    "sampling": (SamplingParameters, type(None)),
    "tenant": (str,),
    "cache_salt": (str,),
    "deadline": (int, float, type(None)),
    "choice": (int,),
    "supersede": (str, type(None)),
    "shown": (tuple,),
    "request_id": (str, type(None)),
}


def check_deadline(deadline: float | None) -> None:
    """Raise `InvalidRequestError` unless a deadline is a time to come, or none."""
    if deadline is not None and not 0 < deadline < math.inf:
        raise InvalidRequestError(f"deadline must be more than 0 seconds; got {deadline!r}", param="deadline")


def check_types(options: Mapping[str, object]) -> None:
    """Raise `InvalidRequestError` unless each option is of its type: a mistake would show far from here, or never."""
    for name, types in _TYPES.items():
        value = options.get(name)
        if name in options and (not isinstance(value, types) or isinstance(value, bool)):
            wanted = " or ".join("None" if kind is type(None) else kind.__name__ for kind in types)
            raise InvalidRequestError(f"{name} must be {wanted}; got {value!r}", param=name)


def _check_messages(messages: Sequence[Mapping[str, Any]]) -> None:
    """Raise unless `messages` is what chat templates expect; some take anything, and write nonsense."""
    if isinstance(messages, str | bytes) or not messages:
        raise InvalidRequestError("messages must be a list of at least one message", param="messages")
    for message in messages:
        if not isinstance(message, Mapping) or not {"role", "content"} <= message.keys():
            raise InvalidRequestError("every message needs a role and a content", param="messages")


def _empty_prompt() -> InvalidRequestError:
    return InvalidRequestError("the prompt is empty: it needs at least one token", param="prompt")

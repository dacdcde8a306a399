"""The engine: everything that an application needs, behind one object."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import anyio
import anyio.to_thread

from llamalane.errors import (
    InvalidRequestError,
    QueueFullError,
    TenantLimitError,
    UnknownModelError,
    WrongTaskError,
)
from llamalane.ids import RequestId
from llamalane.scheduler.changes import Changes
from llamalane.scheduler.embedding import Embeddings, EmbedOptions, Relevance
from llamalane.scheduler.embedding_intake import Input, listed
from llamalane.scheduler.engine_life import EngineLife
from llamalane.scheduler.explain import Explanation
from llamalane.scheduler.handle import RequestHandle
from llamalane.scheduler.intake import ChatPrompt, Prompt, SubmitOptions
from llamalane.scheduler.live_view import LiveView
from llamalane.scheduler.queue import Slot
from llamalane.scheduler.request import Request
from llamalane.scheduler.result import EmbeddingResult, Result
from llamalane.scheduler.served_models import ModelInfo, ServedModel
from llamalane.scheduler.spelling import Token
from llamalane.scheduler.standing import Standing
from llamalane.scheduler.statistics import EngineStatistics, take_statistics
from llamalane.streams import Grammar

if TYPE_CHECKING:
    from llamalane.scheduler.config import EngineConfig
    from llamalane.streams.llama import ChatTemplate


class Engine(EngineLife):
    """Runs requests on the lanes that `config` describes.

    An async context manager: entering loads the model; leaving drains, for at most `scheduler.drain_timeout`. Works on
    asyncio and on trio; all methods belong to the event loop on which it was entered. `observer` is told of every
    event. `open_context` makes the lanes' llama contexts, `open_embedding_context` those of lanes that embed.
    """

    @property
    def model_name(self) -> str:
        """The name of the model that generates; of the first one if none does."""
        return self.model_names[0]

    @property
    def model_names(self) -> tuple[str, ...]:
        """The name and the aliases of the model that generates; of the first one if none does."""
        return (self.config.generating_model or self.config.models[0]).names

    def check_model(self, name: str) -> None:
        """Raise `UnknownModelError` unless there is a model of that name, `WrongTaskError` if it does not generate."""
        every = [known for model in self.config.models for known in model.names]
        if name not in every:
            raise UnknownModelError(name, every)
        generating = self.config.generating_model
        if generating is None or name not in generating.names:
            raise WrongTaskError("generate", () if generating is None else generating.names, name=name)

    @property
    def limit(self) -> int:
        """The most tokens that one sequence can hold, prompt and output together."""
        return self._parts().machinery.pool.limit

    @property
    def model_info(self) -> ModelInfo:
        """The loaded model, or the first of several; raises `EngineClosedError` while there is none."""
        return self.served_models[0].info

    @property
    def served_models(self) -> tuple[ServedModel, ...]:
        """Every loaded model, the one that generates first; raises `EngineClosedError` while there is none."""
        return self._parts().models.all

    def find_model(self, name: str | None) -> ServedModel:
        """Return the model of that name, or the first one if it is None; raises `UnknownModelError`."""
        return self._parts().models.find(name)

    @property
    def chat_template(self) -> ChatTemplate:
        """The model's chat template.

        Raises `ChatTemplateError` if it has none, `WrongTaskError` if no model generates text, and `EngineClosedError`
        while none is loaded.
        """
        self._check_generates()
        return self._parts().intake.template

    async def submit(self, prompt: Prompt, **options: Unpack[SubmitOptions]) -> RequestHandle:
        """Queue a request for a prompt, and return its handle.

        Never waits for capacity: raises `QueueFullError` at once when the queue is full, `PromptTooLongError` or
        `InvalidRequestError` for what can never be served, `EngineClosedError` or `LaneDownError` when nothing can be.
        """
        with self._reserve(options) as slots:
            tokens = await self._parts().intake.tokenize(prompt)
            await self._parts().intake.compile_for(options)
            return self._queue(tokens, slots, options)[0]

    async def submit_chat(
        self, messages: Sequence[Mapping[str, Any]], **options: Unpack[SubmitOptions]
    ) -> RequestHandle:
        """Queue a request for the answer to `messages`, each with a `role` and a `content`.

        Raises what `submit` raises, and `ChatTemplateError` when the model's template refuses the messages.
        """
        with self._reserve(options) as slots:
            tokens = await self._parts().intake.tokenize_chat(messages)
            await self._parts().intake.compile_for(options)
            return self._queue(tokens, slots, options)[0]

    def submit_tokens_nowait(self, tokens: Sequence[int], **options: Unpack[SubmitOptions]) -> RequestHandle:
        """Queue a request for a prompt of tokens; its grammar has to be compiled. Raises what `submit` raises."""
        with self._reserve(options) as slots:
            return self._queue(list(tokens), slots, options)[0]

    async def submit_choices(
        self, prompt: Prompt, ids: Sequence[RequestId], **options: Unpack[SubmitOptions]
    ) -> list[RequestHandle]:
        """Queue several requests for one prompt, one for each of `ids`: all or none, as choices 0, 1, …

        They start together, on one lane, and the prompt is computed once; those that never fit a lane's KV cells
        together start one by one. Raises what `submit` raises, and `InvalidRequestError` for more than a lane has
        places for.
        """
        with self._reserve(options, len(ids)) as slots:
            tokens = await self._parts().intake.tokenize(prompt)
            await self._parts().intake.compile_for(options)
            return self._queue(tokens, slots, options, ids)

    async def submit_chat_choices(
        self, messages: Sequence[Mapping[str, Any]], ids: Sequence[RequestId], **options: Unpack[SubmitOptions]
    ) -> list[RequestHandle]:
        """Queue several requests for the answer to `messages`; as `submit_choices` otherwise."""
        with self._reserve(options, len(ids)) as slots:
            tokens = await self._parts().intake.tokenize_chat(messages)
            await self._parts().intake.compile_for(options)
            return self._queue(tokens, slots, options, ids)

    async def compile_grammar(self, grammar: Grammar) -> None:
        """Compile a grammar before the first request that has it; it is kept as one of those that were used last.

        Raises `InvalidRequestError` for one that cannot be used.
        """
        self._check_ready()
        await self._parts().intake.compile(grammar)

    def spell(self, tokens: Sequence[int]) -> list[Token]:
        """Return what tokens stand for; raises `InvalidRequestError` for those that the model does not have."""
        return self._parts().intake.spell(tokens)

    @property
    def most_choices(self) -> int:
        """How many choices of one prompt can start together."""
        return self._parts().scheduler.most_choices

    async def generate(self, prompt: Prompt, **options: Unpack[SubmitOptions]) -> Result:
        """Submit a prompt and wait for the result; if the wait is cancelled, so is the request."""
        return await _finish(await self.submit(prompt, **options))

    async def chat(self, messages: Sequence[Mapping[str, Any]], **options: Unpack[SubmitOptions]) -> Result:
        """Submit messages and wait for the result; if the wait is cancelled, so is the request."""
        return await _finish(await self.submit_chat(messages, **options))

    def find_embedder(self, task: str, name: str | None) -> ServedModel:
        """Return the model of that name for a task, `embed` or `rerank`; the only one if no name is given.

        Raises `UnknownModelError`, or `WrongTaskError` for a model that is for another task.
        """
        return self.find_model(self._embeddings().find(task, name, self._generating_names()).name)

    async def embed(
        self,
        inputs: str | Sequence[int] | Sequence[Input],
        *,
        dimensions: int | None = None,
        normalize: bool = True,
        add_special_tokens: bool = True,
        **options: Unpack[EmbedOptions],
    ) -> list[EmbeddingResult]:
        """Return a vector for each of `inputs`, in their order: texts, or lists of tokens, or a single one of these.

        Its length is 1, unless not to `normalize`. `dimensions` cuts it to its first numbers, which are then
        normalized; it is for models that were trained for that. `add_special_tokens` puts around a text what the model
        wants there. If the wait is cancelled, so is all that has not ended.

        Never waits for capacity: raises `QueueFullError` at once when the queue is full, `InputTooLongError` or
        `InvalidRequestError` for what can never be served, `UnknownModelError` or `WrongTaskError` for a model that
        does not embed, `EngineClosedError` or `LaneDownError` when nothing can be.
        """
        embeddings = self._embeddings()
        embedder = embeddings.find("embed", options.get("model"), self._generating_names())
        with self._reserve(options, embeds=True) as [slot]:
            return await embeddings.embed(
                embedder,
                listed(inputs),
                slot,
                options,
                dimensions=dimensions,
                normalize=normalize,
                add_special_tokens=add_special_tokens,
            )

    async def rerank(
        self, query: str, documents: Sequence[str], *, use_activation: bool = True, **options: Unpack[EmbedOptions]
    ) -> list[Relevance]:
        """Return how well each of `documents` answers `query`, in their order.

        `use_activation` maps a model's single score to 0 … 1, as such models are trained for. Raises what `embed`
        raises.
        """
        embeddings = self._embeddings()
        embedder = embeddings.find("rerank", options.get("model"), self._generating_names())
        with self._reserve(options, embeds=True) as [slot]:
            return await embeddings.rerank(embedder, query, documents, slot, options, use_activation=use_activation)

    async def tokenize(
        self, text: str | ChatPrompt, *, model: str | None = None, add_special_tokens: bool = True
    ) -> list[int]:
        """Return the tokens of a text or of a written chat, as the model gets it; raises `UnknownModelError`."""
        self._check_ready()
        return await self._parts().models.tokenize(text, model, add_special_tokens=add_special_tokens)

    async def tokenize_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Return the tokens of a conversation, as the model gets it; raises what `submit_chat` raises."""
        self._check_generates()
        self._check_ready()
        return await self._parts().intake.tokenize_chat(messages)

    async def detokenize(self, tokens: Sequence[int], *, model: str | None = None) -> str:
        """Return the text of some tokens, control tokens by their names; raises `UnknownModelError`."""
        self._check_ready()
        return await self._parts().models.detokenize(tokens, model)

    def stats(self) -> EngineStatistics:
        """Return the numbers of this moment."""
        return take_statistics(self._state, self._running.scheduler if self._running else None)

    def explain(self, request: RequestId) -> Explanation:
        """Tell where a request is, and why it is not further; raises `KeyError` for one that neither waits nor runs."""
        return self._parts().scheduler.explain(request)

    def queue(self) -> list[Explanation]:
        """Tell it of all requests: those that wait, in the order of their turns, then those that run."""
        return self._parts().scheduler.explain_all()

    def standing(self, request: RequestId) -> Standing:
        """Tell where a request stands, in short, for whoever asks often; raises what `explain` raises."""
        return self._parts().scheduler.standing(request)

    @property
    def view(self) -> LiveView:
        """What there is to be seen while it runs; raises `EngineClosedError` while it does not."""
        return self._parts().scheduler.view

    def cancel(self, request: RequestId) -> None:
        """End a request: it leaves the queue at once, or its lane at the next step.

        Whoever waits for it gets `RequestCancelledError`. Raises `KeyError` for one that neither waits nor runs.
        """
        scheduler = self._parts().scheduler
        scheduler.cancel(scheduler.find(request))

    def set_priority(self, request: RequestId, priority: int | str) -> None:
        """Give a request that waits or runs another priority: a level from 1 (most urgent) to 5, or its name.

        It counts from now on as if it had been submitted at it, at the time at which it was: while it waits, its
        waiting so far goes on to count. Choices that have yet to start together with it get the same. Raises
        `InvalidPriorityError`, and `KeyError` for a request that neither waits nor runs.
        """
        level = self.levels.parse(priority)
        scheduler = self._parts().scheduler
        scheduler.set_level(scheduler.find(request), level)

    def pause_lane(self, name: str) -> None:
        """Let a lane finish what runs on it and take nothing new, until it is resumed; may be repeated.

        A request that was parked goes on on another lane, or waits. Raises `PoolError` for a name that no lane has.
        """
        parts = self._parts()
        parts.scheduler.pause_lane(parts.machinery.pool.lane(name))

    def resume_lane(self, name: str) -> None:
        """Let a paused lane take requests again. Raises `PoolError` for a name that no lane has."""
        parts = self._parts()
        parts.scheduler.resume_lane(parts.machinery.pool.lane(name))

    def reload(self, config: EngineConfig) -> Changes:
        """Take over what of `config` can change while the engine runs, and tell what differs.

        That is, under `scheduler`: `tenants`, `other_tenants`, `queue`, `target_itl` and `level_targets`. Whatever
        waits or runs goes on. Raises `ConfigError`, and keeps all as it was, when the rest does not go together
        with the settings that stay.
        """
        from llamalane.scheduler.reload import engine_changes, merge  # noqa: PLC0415  (pydantic, which a config needs)

        changes = engine_changes(self.config, config)
        settings = merge(self.config.scheduler, config.scheduler)
        self.config = self.config.model_copy(update={"scheduler": settings})
        if self._running is not None:
            self._running.scheduler.reload(settings)
        return changes

    @contextlib.contextmanager
    def _reserve(
        self, options: SubmitOptions | EmbedOptions, count: int = 1, *, embeds: bool = False
    ) -> Iterator[list[Slot[Request]]]:
        """Reserve slots in the queue, all or none, and count whoever is turned away."""
        if not embeds:
            self._check_generates()
        self._check_ready()
        scheduler = self._parts().scheduler
        level = self.levels.parse(options.get("priority"))
        try:
            with contextlib.ExitStack() as stack:
                yield [stack.enter_context(scheduler.queue.reserve_nowait(level, count)) for _ in range(count)]
        except (QueueFullError, TenantLimitError) as error:
            scheduler.counters.rejected[error.reason] += 1
            raise

    def _queue(
        self,
        tokens: list[int],
        slots: Sequence[Slot[Request]],
        options: SubmitOptions,
        ids: Sequence[RequestId] | None = None,
    ) -> list[RequestHandle]:
        """Queue a request in each slot, or none."""
        self._check_ready()  # the engine may have begun to drain while the text was tokenized
        parts = self._parts()
        if not 1 <= len(slots) <= self.most_choices:
            message = (
                f"from 1 to {self.most_choices} choices of one prompt can start together, "
                f"which is all places of a lane that are not reserved; got {len(slots)}"
            )
            raise InvalidRequestError(message, param="n")
        requests = parts.intake.prepare_choices(tokens, ids or [options.get("request_id")], options)
        if not parts.scheduler.can_start_together(requests):
            for request in requests:
                request.gang = None
        parts.scheduler.submit_all(requests, slots)
        return [RequestHandle(request, parts.scheduler.cancel, self._clock) for request in requests]

    def _embeddings(self) -> Embeddings:
        self._check_ready()
        return self._parts().embeddings

    def _generating_names(self) -> Sequence[str]:
        generating = self.config.generating_model
        return () if generating is None else generating.names

    def _check_generates(self) -> None:
        """Raise `WrongTaskError` if no model generates text."""
        if self.config.generating_model is None:
            raise WrongTaskError("generate", ())


async def _finish(handle: RequestHandle) -> Result:
    try:
        return await handle.result()
    except anyio.get_cancelled_exc_class():
        handle.cancel()
        raise

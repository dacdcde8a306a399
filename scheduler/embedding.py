"""Vectors of texts, and scores of documents: what `Engine.embed` and `Engine.rerank` do."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypedDict

from llamalane.clock import Clock
from llamalane.errors import InvalidRequestError, UnknownModelError, WrongTaskError
from llamalane.ids import Level, RequestId
from llamalane.scheduler.delivery import Ending
from llamalane.scheduler.embedding_intake import EmbeddingIntake, Input
from llamalane.scheduler.embedding_job import EmbeddingJob, MakeRequest
from llamalane.scheduler.embedding_request import EmbeddingRequest, make_embedding_request
from llamalane.scheduler.intake import check_deadline, check_types
from llamalane.scheduler.priority import PriorityLevels
from llamalane.scheduler.queue import Slot
from llamalane.scheduler.request import Request
from llamalane.scheduler.result import EmbeddingResult
from llamalane.scheduler.scheduler import Scheduler
from llamalane.streams import llama

if TYPE_CHECKING:
    from llamalane.scheduler.embedding_assembly import Embedder


class EmbedOptions(TypedDict, total=False):
    """What every way of embedding takes.

    Attributes:
        model: the name of the model; None for the only one that can do it.
        truncate: cuts off what goes beyond so many tokens, of a document when it is scored; −1 for as many as the
            model takes; None cuts nothing off.
        priority, tenant, deadline, request_id: as `SubmitOptions` has them. A call counts as one request of its
            tenant; each of its texts is one in the queue, called `request_id` with `/0`, `/1` and so on.
    """

    model: str | None
    truncate: int | None
    priority: int | str | None
    tenant: str
    deadline: float | None
    request_id: RequestId | None


@dataclass(frozen=True, slots=True)
class Relevance:
    """How well a document answers a query.

    Attributes:
        index: which of the documents it is.
        score: the greater, the better; from 0 to 1 where the model's own scores were mapped to that.
        result: what the lane computed for it.
    """

    index: int
    score: float
    result: EmbeddingResult


class Embeddings:
    """Embeds and reranks by the models of `embedders`, on the lanes that `scheduler` has for them."""

    def __init__(
        self,
        embedders: Iterable[Embedder],
        scheduler: Scheduler,
        levels: PriorityLevels,
        clock: Clock,
        orders: Iterator[int],
    ) -> None:
        self.embedders = tuple(embedders)
        self._intakes = {one.name: EmbeddingIntake(one.model, one.plan) for one in self.embedders}
        self._scheduler = scheduler
        self._levels = levels
        self._clock = clock
        self._orders = orders

    def find(self, task: str, name: str | None, others: Sequence[str] = ()) -> Embedder:
        """Return the model of that name for a task; the only one for it if no name is given.

        `others` are names of models that are for none of these tasks. Raises `UnknownModelError`, or `WrongTaskError`
        for a model that is for another task, or for no name where none or several are for it.
        """
        fitting = [one for one in self.embedders if one.plan.task == task]
        names = [name for one in fitting for name in one.names]
        if name is None and len(fitting) == 1:
            return fitting[0]
        for one in fitting:
            if name in one.names:
                return one
        every = [*others, *(known for one in self.embedders for known in one.names)]
        if name is not None and name not in every:
            raise UnknownModelError(name, every)
        raise WrongTaskError(task, names, name=name)

    async def embed(
        self,
        embedder: Embedder,
        inputs: Sequence[Input],
        slot: Slot[Request],
        options: EmbedOptions,
        *,
        dimensions: int | None,
        normalize: bool,
        add_special_tokens: bool,
    ) -> list[EmbeddingResult]:
        """Return the vector of each input, in their order; raises what `Engine.embed` raises."""
        _check(options)
        width = embedder.plan.width
        if dimensions is not None and (type(dimensions) is not int or not 1 <= dimensions <= width):
            message = f"dimensions must be from 1 to {width}, which the model has; got {dimensions!r}"
            raise InvalidRequestError(message, param="dimensions")
        texts = await self._intakes[embedder.name].tokenize_texts(
            inputs, truncate=options.get("truncate"), add_special_tokens=add_special_tokens
        )
        results = await self._run(embedder, texts, slot, options)
        finish = llama.normalized if normalize else _as_it_is
        return [replace(one, vector=finish(one.vector[:dimensions])) for one in results]

    async def rerank(
        self,
        embedder: Embedder,
        query: str,
        documents: Sequence[str],
        slot: Slot[Request],
        options: EmbedOptions,
        *,
        use_activation: bool,
    ) -> list[Relevance]:
        """Return how well each document answers the query, in their order; raises what `Engine.rerank` raises."""
        _check(options)
        texts = await self._intakes[embedder.name].tokenize_pairs(query, documents, truncate=options.get("truncate"))
        results = await self._run(embedder, texts, slot, options)
        maps = use_activation and embedder.plan.width == 1
        scores = [float(one.vector[0]) for one in results]
        return [
            Relevance(number, _sigmoid(score) if maps else score, result)
            for number, (score, result) in enumerate(zip(scores, results, strict=True))
        ]

    async def _run(
        self, embedder: Embedder, texts: Sequence[Sequence[int]], slot: Slot[Request], options: EmbedOptions
    ) -> list[EmbeddingResult]:
        """Run all texts of a call; its tenant is charged for the call as a whole."""
        lengths = [len(text) for text in texts]
        job = EmbeddingJob(self._scheduler, lengths, embedder.places, self._maker(embedder, texts, options))
        permit = self._scheduler.enter(options.get("tenant", ""), sum(lengths))
        try:
            job.start(self._levels.parse(options.get("priority")), slot)
            return await job.results()
        finally:
            permit.release(max(0, permit.tokens - job.used_tokens), self._clock.now())

    def _maker(self, embedder: Embedder, texts: Sequence[Sequence[int]], options: EmbedOptions) -> MakeRequest:
        name = options.get("request_id") or f"embd-{secrets.token_hex(12)}"
        seconds = options.get("deadline")
        deadline = None if seconds is None else self._clock.now() + seconds

        def make(number: int, level: Level, *, begun: bool, on_close: Callable[[Ending], None]) -> EmbeddingRequest:
            now = self._clock.now()
            return make_embedding_request(
                RequestId(f"{name}/{number}"),
                texts[number],
                model=embedder.name,
                level=level,
                tenant=options.get("tenant", ""),
                arrival=now,
                key=self._scheduler.rules.aging.key(level, now),
                order=next(self._orders),
                deadline=deadline,
                deadline_after=seconds or 0.0,
                begun=begun,
                on_close=on_close,
            )

        return make


def _check(options: EmbedOptions) -> None:
    unknown = options.keys() - EmbedOptions.__annotations__.keys()
    if unknown:
        raise TypeError(f"unknown options: {', '.join(sorted(unknown))}")
    check_types(options)
    check_deadline(options.get("deadline"))


def _as_it_is(vector: llama.Vector) -> llama.Vector:
    return vector


def _sigmoid(score: float) -> float:
    return 0.5 * (1 + math.tanh(score / 2))  # which does not overflow

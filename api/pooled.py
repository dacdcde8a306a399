"""Endpoints that answer with vectors or scores: what their requests have in common, and how answers are sent."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeVar

import anyio.lowlevel
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from llamalane.api.answers import while_connected
from llamalane.api.config import ApiConfig
from llamalane.api.field_schemas import TIER, close, level_or_name
from llamalane.api.keys import Caller
from llamalane.api.middleware import record_of
from llamalane.api.prioritized import PrioritizedResponse
from llamalane.api.priority import PRIORITY_HEADER
from llamalane.api.schemas import MAX_USER_LENGTH, check_extra_fields
from llamalane.errors import RequestError
from llamalane.ids import Level
from llamalane.scheduler import EmbeddingResult, EmbedOptions, Engine

MAX_INPUTS = 2048
"""So many texts may one body hold, as with OpenAI."""


class PooledBody(BaseModel):
    """What these endpoints take. A field that is null is unset; types are strict, so `"5"` is no number.

    `truncate_prompt_tokens` cuts off what goes beyond so many tokens, −1 for as many as the model takes; without it,
    what is too long is refused. `priority` and `deadline` are as for text. `model` may be left out if one is for this.
    """

    model_config = ConfigDict(strict=True, extra="allow", frozen=True, allow_inf_nan=False, json_schema_extra=close)

    model: str | None = None
    truncate_prompt_tokens: int | None = None
    priority: Annotated[Any, level_or_name()] = None
    service_tier: Annotated[str | None, TIER] = None
    deadline: Annotated[float, Field(gt=0)] | None = None
    user: Annotated[str, Field(max_length=MAX_USER_LENGTH)] | None = None

    def check(self) -> None:
        """Raise `InvalidRequestError` for fields that are unknown, or not supported."""
        check_extra_fields(self.model_extra or {})

    def options(self, level: Level, tenant: str) -> EmbedOptions:
        """Return what the engine is asked for."""
        return EmbedOptions(
            model=self.model,
            truncate=self.truncate_prompt_tokens,
            priority=level,
            tenant=tenant,
            deadline=self.deadline,
        )


PooledBodyT = TypeVar("PooledBodyT", bound=PooledBody)


@dataclass(frozen=True, slots=True)
class PooledAnswer:
    """An answer whose body is `head`, and under `name` the `entries`, each written by itself.

    `results` are what was computed for it.
    """

    head: Mapping[str, Any]
    name: str
    entries: Iterable[Mapping[str, Any]]
    results: Sequence[EmbeddingResult]

    def whole(self) -> dict[str, Any]:
        """Return the body in one piece."""
        return {**self.head, self.name: list(self.entries)}

    async def encode(self) -> bytes:
        """Return the body as JSON; others go on between two entries, for there may be millions of numbers."""
        pieces = []
        for entry in self.entries:
            pieces.append(json.dumps(entry, separators=(",", ":")).encode())
            await anyio.lowlevel.checkpoint()
        head = json.dumps(self.head, separators=(",", ":")).encode()
        return b'%s,"%s":[%s]}' % (head[:-1], self.name.encode(), b",".join(pieces))


class PooledEndpoint(ABC, Generic[PooledBodyT]):
    """What differs between these endpoints."""

    paths: Sequence[str]
    body_type: type[PooledBodyT]
    answer_type: type[BaseModel]
    """Describes the answer."""

    @abstractmethod
    async def answer(self, engine: Engine, body: PooledBodyT, options: EmbedOptions) -> PooledAnswer:
        """Return the answer to `body`; if the wait is cancelled, so is the work."""

    def client_name(self, param: str | None) -> str | None:
        """Return what the client called the engine's parameter `param`."""
        return "input" if param == "prompt" else param


class PooledResponse(PrioritizedResponse):
    """Computes and sends an answer, for as long as its client is there."""

    def __init__(
        self,
        engine: Engine,
        endpoint: PooledEndpoint[Any],
        body: PooledBody,
        *,
        caller: Caller,
        api: ApiConfig,
        priority_header: str | None,
    ) -> None:
        super().__init__(engine, caller=caller, api=api, priority_header=priority_header)
        self._endpoint = endpoint
        self._body = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Compute, and send what comes of it."""
        body, record = self._body, record_of(scope)
        level = record.level = self._level_of(body)
        tenant, _ = self._caller.owner(body.user, tenant_from_user=self._api.tenant_from_user)
        answer = await while_connected(receive, lambda: compute(self._engine, self._endpoint, body, level, tenant))
        record.add_texts(answer.results)
        response = Response(await answer.encode(), media_type="application/json", headers={PRIORITY_HEADER: str(level)})
        await response(scope, receive, send)


async def compute(
    engine: Engine, endpoint: PooledEndpoint[PooledBodyT], body: PooledBodyT, level: Level, tenant: str = ""
) -> PooledAnswer:
    """Return the answer to `body`; errors name the field at fault as the client did."""
    try:
        return await endpoint.answer(engine, body, body.options(level, tenant))
    except RequestError as error:
        error.param = endpoint.client_name(error.param)
        raise


def usage_of(results: Iterable[EmbeddingResult]) -> dict[str, int]:
    """Return the token counts as OpenAI counts them."""
    tokens = sum(result.prompt_tokens for result in results)
    return {"prompt_tokens": tokens, "total_tokens": tokens}

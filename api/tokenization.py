"""`/tokenize` and `/detokenize`, in vLLM's shape."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema
from starlette.responses import JSONResponse

from llamalane.api.bodies import read_body
from llamalane.api.field_schemas import close
from llamalane.api.messages import Message
from llamalane.api.openapi import answer, errors, request_body
from llamalane.api.pooled_schemas import Detokenized, Tokenized
from llamalane.api.questions import tokens_of
from llamalane.api.reply import Question
from llamalane.api.schemas import check_extra_fields
from llamalane.api.service import Service
from llamalane.errors import InvalidRequestError
from llamalane.scheduler import Engine


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", frozen=True, json_schema_extra=close)

    model: str | None = None

    def check(self) -> None:
        """Raise `InvalidRequestError` for fields that are unknown."""
        check_extra_fields(self.model_extra or {})


class TokenizeBody(_Body):
    """The body of `/tokenize`: a prompt, or the messages of a chat.

    `add_special_tokens` puts around a prompt what the model wants there; a chat's template does that by itself.
    """

    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1, max_length=10_000)] | None = None
    add_special_tokens: bool | None = None

    def check(self) -> None:
        """Raise `InvalidRequestError` unless there is one thing to tokenize."""
        super().check()
        if (self.prompt is None) == (self.messages is None):
            raise InvalidRequestError("give either a prompt or messages", param="prompt")
        if self.messages is not None and self.add_special_tokens:
            raise InvalidRequestError(
                "the chat template writes the special tokens of messages: add_special_tokens must be false",
                param="add_special_tokens",
            )
        for index, message in enumerate(self.messages or ()):
            message.check(f"messages[{index}]")


class DetokenizeBody(_Body):
    """The body of `/detokenize`."""

    tokens: Annotated[list[int], WithJsonSchema({"type": "array", "items": {"type": "integer", "minimum": 0}})]


def add_tokenization_routes(router: APIRouter, service: Service) -> None:
    """Add the routes to `router`."""

    @router.post(
        "/tokenize",
        responses=answer(Tokenized, "The tokens.") | errors(400, 404, 408, 413, 503),
        openapi_extra=request_body(TokenizeBody),
    )
    async def tokenize(request: Request) -> JSONResponse:
        """Return the tokens of a prompt or of a chat, as a model gets them, and how many there are."""
        engine = service.ready_engine()
        body = await read_body(engine, TokenizeBody, await request.body())
        limit = engine.find_model(body.model).info.limit
        tokens = await _tokens_of(engine, body)
        return JSONResponse({"tokens": tokens, "count": len(tokens), "max_model_len": limit})

    @router.post(
        "/detokenize",
        responses=answer(Detokenized, "The text.") | errors(400, 404, 408, 413, 503),
        openapi_extra=request_body(DetokenizeBody),
    )
    async def detokenize(request: Request) -> JSONResponse:
        """Return the text of tokens, control tokens by their names."""
        engine = service.ready_engine()
        body = await read_body(engine, DetokenizeBody, await request.body())
        return JSONResponse({"prompt": await engine.detokenize(body.tokens, model=body.model)})


async def _tokens_of(engine: Engine, body: TokenizeBody) -> list[int]:
    if body.messages is None:
        assert body.prompt is not None
        add = body.add_special_tokens is not False
        return await engine.tokenize(body.prompt, model=body.model, add_special_tokens=add)
    return await tokens_of(engine, Question([message.turn() for message in body.messages]), body.model)

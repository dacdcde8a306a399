"""`/v1/messages/count_tokens`: how many tokens a conversation has, without an answer to it."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse

from llamalane.api.anthropic import MESSAGES_PATH
from llamalane.api.anthropic.answer_schemas import MessageErrorAnswer, PromptTokenCount
from llamalane.api.anthropic.bodies import CountTokensBody
from llamalane.api.bodies import read_body
from llamalane.api.openapi import answer, errors, request_body
from llamalane.api.questions import tokens_of
from llamalane.api.service import Service


def add_counting_route(router: APIRouter, service: Service) -> None:
    """Add the route to `router`."""

    @router.post(
        f"{MESSAGES_PATH}/count_tokens",
        responses=answer(PromptTokenCount, "The count.")
        | errors(400, 401, 404, 408, 413, 431, 500, 503, form=MessageErrorAnswer),
        openapi_extra=request_body(CountTokensBody),
    )
    async def count_tokens(request: Request) -> JSONResponse:
        """Return how many tokens the prompt has that a conversation makes, tools and system among them."""
        engine = service.ready_engine()
        body = await read_body(engine, CountTokensBody, await request.body())
        return JSONResponse({"input_tokens": len(await tokens_of(engine, body.question, body.model))})

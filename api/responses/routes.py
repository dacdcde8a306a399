"""What there is below `/v1/responses`: tokens are counted, and stored responses are not found."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse

from llamalane.api.bodies import read_body
from llamalane.api.errors import response_not_found
from llamalane.api.openapi import answer, errors, request_body
from llamalane.api.questions import tokens_of
from llamalane.api.responses.body import ResponsesBody
from llamalane.api.responses.schemas import InputTokens
from llamalane.api.service import Service


def add_response_routes(router: APIRouter, service: Service) -> None:
    """Add the routes to `router`."""

    @router.post(
        "/v1/responses/input_tokens",
        responses=answer(InputTokens, "How many tokens the input is.") | errors(400, 404, 408, 413, 503),
        openapi_extra=request_body(ResponsesBody),
    )
    async def count_input_tokens(request: Request) -> JSONResponse:
        """Count the tokens that a response's input would be, with its instructions and tools; nothing is generated."""
        engine = service.ready_engine()
        body = await read_body(engine, ResponsesBody, await request.body())
        with body.client_names():
            tokens = await tokens_of(engine, body.question, body.model)
        return JSONResponse({"object": "response.input_tokens", "input_tokens": len(tokens)})

    @router.get("/v1/responses/{response_id}", include_in_schema=False)
    @router.delete("/v1/responses/{response_id}", include_in_schema=False)
    @router.post("/v1/responses/{response_id}/cancel", include_in_schema=False)
    @router.get("/v1/responses/{response_id}/input_items", include_in_schema=False)
    async def find_response(response_id: str) -> JSONResponse:
        """Tell that no response is stored here."""
        return response_not_found(response_id).response()

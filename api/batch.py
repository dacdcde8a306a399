"""One item of a batch file, served without HTTP."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException

from llamalane.api.bodies import read_body
from llamalane.api.chat import Chat
from llamalane.api.choices import Endpoint, submit_all
from llamalane.api.completions import Completions
from llamalane.api.embeddings import Embeddings
from llamalane.api.errors import answer_for
from llamalane.api.pooled import PooledEndpoint, compute
from llamalane.api.priority import choose_level
from llamalane.api.rerank import Rerank
from llamalane.errors import InvalidRequestError, LlamalaneError
from llamalane.scheduler import Engine, Result

ENDPOINTS: Mapping[str, Endpoint[Any]] = {endpoint.path: endpoint for endpoint in (Completions(), Chat())}
POOLED: Mapping[str, PooledEndpoint[Any]] = {
    path: endpoint for endpoint in (Embeddings(), Rerank()) for path in endpoint.paths
}


async def serve_item(engine: Engine, method: str, url: str, body: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
    """Return the HTTP status and the body with which the server would answer; an error is an answer, too.

    If the call is cancelled, so is the request.
    """
    try:
        endpoint = ENDPOINTS.get(url) or POOLED.get(url)
        if endpoint is None:
            raise HTTPException(404, f"no such endpoint: {method} {url}")
        if method != "POST":
            raise HTTPException(405, f"the endpoint does not have this method: {method} {url}")
        request = await read_body(engine, endpoint.body_type, json.dumps(body).encode())
        if isinstance(endpoint, PooledEndpoint):
            level = choose_level(engine.levels, request.priority, None, request.service_tier)
            return 200, (await compute(engine, endpoint, request, level)).whole()
        if request.stream:
            raise InvalidRequestError("stream is not possible in a batch", param="stream")
        level = choose_level(engine.levels, request.priority, None, request.service_tier)
        async with submit_all(engine, endpoint, request, level) as order:
            return 200, await order.collect(_ignore)
    except (LlamalaneError, HTTPException) as error:
        answer = answer_for(error)
        return answer.status, answer.body


def _ignore(result: Result) -> None:
    """Note nothing: who runs a batch reads the answers."""

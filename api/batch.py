"""One item of a batch file, served without HTTP, and the line that tells what came of it."""

from __future__ import annotations

import functools
import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.exceptions import HTTPException

from llamalane.api.bodies import read_body
from llamalane.api.chat import Chat
from llamalane.api.completions import Completions
from llamalane.api.embeddings import Embeddings
from llamalane.api.errors import answer_for
from llamalane.api.keys import ANYONE, Caller
from llamalane.api.orders import Endpoint, submit_all
from llamalane.api.pooled import PooledBody, PooledEndpoint, compute
from llamalane.api.priority import choose_level
from llamalane.api.rerank import Rerank
from llamalane.api.responses.endpoint import Responses
from llamalane.api.sampling_fields import SampledBody
from llamalane.errors import InvalidRequestError, LlamalaneError
from llamalane.ids import Level
from llamalane.scheduler import Engine, Result

ENDPOINTS: Mapping[str, Endpoint[Any]] = {endpoint.path: endpoint for endpoint in (Completions(), Chat(), Responses())}
POOLED: Mapping[str, PooledEndpoint[Any]] = {
    path: endpoint for endpoint in (Embeddings(), Rerank()) for path in endpoint.paths
}


@dataclass(frozen=True, slots=True)
class ItemTerms:
    """On whose behalf an item is served, and what it may have.

    Attributes:
        caller: whose request it is, and the most urgent level that it may ask for.
        level: the level of an item that names none; None for the one that any request would have.
        cap: whether an item that asks for a more urgent level than it may have gets that one, and is not refused.
        tenant_from_user: whether the field `user` says which tenant it belongs to.
    """

    caller: Caller = ANYONE
    level: Level | None = None
    cap: bool = False
    tenant_from_user: bool = False


class ServeBody(Protocol):
    """Serves the body of an item, in JSON, at one endpoint.

    It calls `accepted` as soon as all of the item is queued. Raises what submitting and waiting for it raises; if the
    call is cancelled, so is all that was submitted.
    """

    async def __call__(
        self, engine: Engine, body: bytes, terms: ItemTerms, accepted: Callable[[], None]
    ) -> dict[str, Any]:
        """Return the body of the answer."""


async def _generate(
    endpoint: Endpoint[Any], engine: Engine, body: bytes, terms: ItemTerms, accepted: Callable[[], None]
) -> dict[str, Any]:
    request = await read_body(engine, endpoint.body_type, body)
    if request.stream:
        raise InvalidRequestError("stream is not possible in a batch", param="stream")
    tenant, salt = terms.caller.owner(request.end_user, tenant_from_user=terms.tenant_from_user)
    level = _level_of(engine, request, terms)
    async with submit_all(engine, endpoint, request, level, tenant=tenant, cache_salt=salt) as order:
        accepted()
        return await endpoint.collect(order, _ignore)


async def _compute(
    endpoint: PooledEndpoint[Any], engine: Engine, body: bytes, terms: ItemTerms, accepted: Callable[[], None]
) -> dict[str, Any]:
    request = await read_body(engine, endpoint.body_type, body)
    tenant, _ = terms.caller.owner(request.user, tenant_from_user=terms.tenant_from_user)
    level = _level_of(engine, request, terms)
    accepted()  # its texts are queued a few at a time; a full queue refuses the first of them
    return (await compute(engine, endpoint, request, level, tenant)).whole()


def _level_of(engine: Engine, request: SampledBody | PooledBody, terms: ItemTerms) -> Level:
    unsaid = request.priority is None and request.service_tier is None
    return choose_level(
        engine.levels,
        terms.level if unsaid else request.priority,
        None,
        request.service_tier,
        most_urgent=terms.caller.most_urgent,
        cap=terms.cap,
    )


SERVERS: Mapping[str, ServeBody] = {
    **{path: functools.partial(_generate, endpoint) for path, endpoint in ENDPOINTS.items()},
    **{path: functools.partial(_compute, endpoint) for path, endpoint in POOLED.items()},
}
"""What serves the items of each endpoint; a batch can be for any of these."""


async def run_item(
    engine: Engine,
    method: str,
    url: str,
    body: bytes,
    terms: ItemTerms,
    accepted: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Return the body with which the server would answer the item whose body is `body`, in JSON.

    `accepted` is called when the item is queued. Raises what keeps it from being served: a `LlamalaneError`, or an
    `HTTPException` for an endpoint that is not there. If the call is cancelled, so is the request.
    """
    serve = SERVERS.get(url)
    if serve is None:
        raise HTTPException(404, f"no such endpoint: {method} {url}")
    if method != "POST":
        raise HTTPException(405, f"the endpoint does not have this method: {method} {url}")
    return await serve(engine, body, terms, accepted)


async def serve_item(engine: Engine, method: str, url: str, body: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
    """Return the HTTP status and the body with which the server would answer; an error is an answer, too.

    If the call is cancelled, so is the request.
    """
    try:
        return 200, await run_item(engine, method, url, json.dumps(body).encode(), ItemTerms())
    except (LlamalaneError, HTTPException) as error:
        answer = answer_for(error)
        return answer.status, answer.body


def response_line(custom_id: str, status: int, body: Mapping[str, Any]) -> bytes:
    """Return the line of an output file that tells with what an item was answered."""
    response = {"status_code": status, "request_id": str(body.get("id") or uuid.uuid4()), "body": body}
    return _line({"custom_id": custom_id, "response": response, "error": None})


def error_line(custom_id: str | None, error: Mapping[str, Any]) -> bytes:
    """Return the line of an output file that tells why an item was not served at all."""
    return _line({"custom_id": custom_id, "response": None, "error": error})


def _ignore(result: Result) -> None:
    """Note nothing: who runs a batch reads the answers."""


def _line(record: Mapping[str, Any]) -> bytes:
    return json.dumps({"id": f"batch_req_{uuid.uuid4().hex}", **record}).encode() + b"\n"

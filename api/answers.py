"""Answers a generation request over HTTP, in one piece or as a stream, for as long as its client is there."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import anyio
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from llamalane.api.config import ApiConfig
from llamalane.api.keys import Caller
from llamalane.api.middleware import RequestRecord, record_of
from llamalane.api.orders import Endpoint, EventStream, Order, submit_all
from llamalane.api.pings import describe_first
from llamalane.api.prioritized import PrioritizedResponse
from llamalane.api.priority import PRIORITY_HEADER
from llamalane.api.sampling_fields import SampledBody
from llamalane.api.sse import EventWriter
from llamalane.api.tracing import GenerationSpan, Tracing
from llamalane.errors import LlamalaneError
from llamalane.ids import Level
from llamalane.scheduler import Engine, Result

logger = logging.getLogger("llamalane.api")

T = TypeVar("T")


class GenerationAnswer(PrioritizedResponse):
    """Submits a request's choices and sends what comes of them.

    Submitting belongs to the sending, so that there is no moment at which a request runs and nobody would
    cancel it. A stream's head goes out with its first text, or after `api.ping_after` seconds: what fails before that
    is answered with the error's own status, what fails later with an event.
    """

    def __init__(
        self,
        engine: Engine,
        endpoint: Endpoint[Any],
        body: SampledBody,
        *,
        caller: Caller,
        api: ApiConfig,
        priority_header: str | None,
        tracing: Tracing,
    ) -> None:
        super().__init__(engine, caller=caller, api=api, priority_header=priority_header)
        self._endpoint = endpoint
        self._body = body
        self._tracing = tracing
        self._order: Order[Any] | None = None
        self._events: EventStream | None = None
        self._results: list[Result] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Submit, and send what comes."""
        body, record = self._body, record_of(scope)
        level = record.level = self._level_of(body)
        with self._tracing.generation(scope, self._endpoint.operation, body, level, self._engine.model_names) as span:
            try:
                if body.stream:
                    await self._send_stream(level, receive, send, record, span)
                else:
                    answer = await while_connected(receive, lambda: self._collect(level))
                    headers = {PRIORITY_HEADER: str(answer["priority"])}  # it may have changed meanwhile
                    await JSONResponse(answer, headers=headers)(scope, receive, send)
            finally:
                self._tell(record, span)

    async def _send_stream(
        self, level: Level, receive: Receive, send: Send, record: RequestRecord, span: GenerationSpan
    ) -> None:
        writer = EventWriter(send, {PRIORITY_HEADER: str(level)})
        try:
            ending = await while_connected(receive, lambda: self._stream(level, writer))
        except ClientDisconnect:
            raise
        except Exception as error:
            if not writer.begun:
                raise
            record.error = type(error).__name__
            span.fail(error)
            if not isinstance(error, LlamalaneError):
                logger.error("a stream failed", exc_info=error)
            assert self._events is not None, "it has begun"
            ending = self._events.failure(error)
        await writer.end(ending)

    async def _collect(self, level: Level) -> dict[str, Any]:
        with self._body.client_names():
            async with self._submit(level) as order:
                return await self._endpoint.collect(order, self._results.append)

    async def _stream(self, level: Level, writer: EventWriter) -> bytes:
        with self._body.client_names():
            async with self._submit(level) as order:
                requests = [handle.id for handle in order.handles]
                writer.describe = functools.partial(describe_first, self._engine, requests)
                self._events = self._endpoint.stream(order, writer, self._results.append)
                return await self._events.run(self._api.ping_after)

    @contextlib.asynccontextmanager
    async def _submit(self, level: Level) -> AsyncIterator[Order[Any]]:
        tenant, salt = self._caller.owner(self._body.end_user, tenant_from_user=self._api.tenant_from_user)
        async with submit_all(
            self._engine, self._endpoint, self._body, level, tenant=tenant, cache_salt=salt
        ) as self._order:
            yield self._order

    def _tell(self, record: RequestRecord, span: GenerationSpan) -> None:
        """Tell the log and the trace what became of the choices, if they were submitted at all."""
        for result in self._results:
            record.add(result)
        if self._order is not None:
            finished = {result.id for result in self._results}
            for handle in self._order.handles:
                if handle.id not in finished:
                    record.add_unfinished(handle.progress)
            span.tell(self._order, self._results)


async def while_connected(receive: Receive, work: Callable[[], Awaitable[T]]) -> T:
    """Return what `work` returns; when the client goes first, cancel it and raise `ClientDisconnect`."""
    outcome: list[T] = []
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_cancel_when_gone, receive, tasks.cancel_scope)
        try:
            outcome.append(await work())
        except Exception as error:
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
    if not outcome:
        raise ClientDisconnect
    return outcome[0]


async def _cancel_when_gone(receive: Receive, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()

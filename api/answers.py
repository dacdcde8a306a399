"""Answers a generation request over HTTP, in one piece or as a stream, for as long as its client is there."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import anyio
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from llamalane.api.choices import Endpoint, Order, submit_all
from llamalane.api.config import ApiConfig
from llamalane.api.errors import answer_for
from llamalane.api.keys import Caller
from llamalane.api.middleware import RequestRecord, record_of
from llamalane.api.prioritized import PrioritizedResponse
from llamalane.api.priority import PRIORITY_HEADER
from llamalane.api.reply_chunks import ReplyChunks, finish_of
from llamalane.api.schemas import GenerationBody
from llamalane.api.sse import DONE, ChunkEncoder, EventWriter, encode_event
from llamalane.api.tracing import GenerationSpan, Tracing
from llamalane.errors import LlamalaneError
from llamalane.ids import Level
from llamalane.scheduler import Engine, Result, TextPiece

logger = logging.getLogger("llamalane.api")

T = TypeVar("T")
Note = Callable[[Result], None]


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
        body: GenerationBody,
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
        self._order: Order | None = None
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
                    await JSONResponse(answer, headers={PRIORITY_HEADER: str(level)})(scope, receive, send)
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
            ending = _error_event(error)
        await writer.end(ending)

    async def _collect(self, level: Level) -> dict[str, Any]:
        with self._body.client_names():
            async with self._submit(level) as order:
                return await order.collect(self._results.append)

    async def _stream(self, level: Level, writer: EventWriter) -> bytes:
        with self._body.client_names():
            async with self._submit(level) as order:
                return await ChoiceStream(order, writer, self._results.append).run(self._api.ping_after)

    @contextlib.asynccontextmanager
    async def _submit(self, level: Level) -> AsyncIterator[Order]:
        tenant, salt = self._caller.owner(self._body.user, tenant_from_user=self._api.tenant_from_user)
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


class ChoiceStream:
    """Writes the choices of one order as they come, interleaved. An error of one ends all of them."""

    def __init__(self, order: Order, writer: EventWriter, note: Note) -> None:
        self._order = order
        self._writer = writer
        self._note = note
        self._encoder = ChunkEncoder(order.envelope(chunk=True), usage=order.include_usage)
        self._results: dict[int, Result] = {}
        self._error: Exception | None = None

    async def run(self, ping_after: float) -> bytes:
        """Write all events, and a comment after `ping_after` seconds without any; returns the last ones, unwritten.

        Raises the first error of a choice, or `ClientDisconnect` when the client is gone.
        """
        count = len(self._order.handles)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._guard, tasks.cancel_scope, self._writer.ping_when_silent, ping_after)
            async with anyio.create_task_group() as others:
                for index in range(1, count):
                    others.start_soon(self._guard, tasks.cancel_scope, self._follow, index)
                # The first choice needs no task of its own; mostly it is the only one.
                await self._guard(tasks.cancel_scope, self._follow, 0)
            await self._writer.stop()
            tasks.cancel_scope.cancel()
        if self._error is not None:
            raise self._error
        return self._ending()

    async def _guard(self, scope: anyio.CancelScope, work: Callable[[Any], Awaitable[None]], argument: float) -> None:
        try:
            await work(argument)
        except Exception as error:
            self._error = self._error or error
            await self._writer.stop()
            scope.cancel()

    async def _follow(self, index: int) -> None:
        """Write one choice to its end."""
        order, encoder, write = self._order, self._encoder, self._writer.write
        echo = await order.echo(index // order.per_prompt)
        first = order.endpoint.first_chunk(index, echo)
        opening = encoder.chunk(first) if first is not None else b""
        frame = encoder.text_frame(*order.endpoint.text_chunk(index))
        format = order.reply(index)
        reply = None if format is None else ReplyChunks(encoder, index, format.reader(), frame)
        handle = order.handles[index]
        pieces: AsyncIterator[str | TextPiece] = handle.pieces() if order.logprobs else aiter(handle)
        try:
            async for piece in pieces:
                if reply is not None:
                    chunks = opening + reply.encode(piece)
                elif isinstance(piece, str):
                    chunks = opening + frame.encode(piece)
                else:
                    chunks = opening + encoder.chunk(order.endpoint.scored_chunk(index, piece, echo))
                opening = b""
                if chunks:
                    await write(chunks)
        finally:
            if isinstance(pieces, AsyncGenerator):
                await pieces.aclose()  # trio warns of a generator that was left to the garbage collector
        result = self._results[index] = await handle.result()
        self._note(result)
        if echo is not None and result.ending is not None:
            ending = order.endpoint.scored_chunk(index, TextPiece("", (result.ending,)), echo)
            await write(opening + encoder.chunk(ending))
            opening = b""
        more: dict[str, Any] = {}
        if len(self._results) == len(order.handles) and not order.include_usage:
            more = order.summary(list(self._results.values()))
        if reply is not None:
            opening += reply.end()
        finish = finish_of(result.finish_reason, called=reply is not None and reply.called)
        await write(opening + encoder.chunk(order.endpoint.last_chunk(index, finish), **more))

    def _ending(self) -> bytes:
        if not self._order.include_usage:
            return DONE
        results = [self._results[index] for index in sorted(self._results)]
        usage = self._encoder.chunk(usage=self._order.usage(results), **self._order.summary(results))
        return usage + DONE


def _error_event(error: Exception) -> bytes:
    if not isinstance(error, LlamalaneError):
        logger.error("a stream failed", exc_info=error)
    return encode_event(answer_for(error).body)


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

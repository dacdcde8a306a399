"""Outputs as OpenAI's two older endpoints tell them: a list of choices, or a stream of chunks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import anyio

from llamalane.api.bodies import BodyT
from llamalane.api.errors import answer_for
from llamalane.api.logprobs import Echo
from llamalane.api.orders import Endpoint, EventStream, Note, Order
from llamalane.api.reply import ReplyFormat
from llamalane.api.reply_chunks import ReplyChunks, finish_of
from llamalane.api.sse import DONE, ChunkEncoder, EventWriter, encode_event, while_pinging
from llamalane.scheduler import Result, TextPiece


class ChoicesEndpoint(Endpoint[BodyT]):
    """What differs between the two: what a choice looks like, whole or in chunks."""

    object_name: ClassVar[str]
    chunk_object_name: ClassVar[str]

    @abstractmethod
    def choice(self, index: int, result: Result, echo: Echo | None = None) -> dict[str, Any]:
        """Return a finished choice, with `echo` before it."""

    def read_choice(self, index: int, result: Result, format: ReplyFormat) -> dict[str, Any]:
        """Return a finished choice that is to be read in `format`; where no prompt has one, it is never asked for."""
        raise NotImplementedError

    @abstractmethod
    def first_chunk(self, index: int, echo: Echo | None = None) -> dict[str, Any] | None:
        """Return the choice of the chunk before the first text, if there is one; an `echo` is there."""

    @abstractmethod
    def text_chunk(self, index: int) -> tuple[str, str]:
        """Return what stands before and after the text, in the JSON of a chunk's choice."""

    @abstractmethod
    def scored_chunk(self, index: int, piece: TextPiece, echo: Echo | None = None) -> dict[str, Any]:
        """Return the choice of a chunk that brings log probabilities with its text; `echo` came before."""

    @abstractmethod
    def last_chunk(self, index: int, finish: str) -> dict[str, Any]:
        """Return the choice of the chunk that tells why the text ended."""

    async def collect(self, order: Order[BodyT], note: Note) -> dict[str, Any]:
        """Wait for every choice and return the answer's body; `note` is told of each result."""
        results = []
        for handle in order.handles:
            results.append(await order.result(handle))
            note(results[-1])
        choices = []
        for index, result in enumerate(_wanted(order, results)):
            prompt = index // order.body.returned
            format = order.replies[prompt]
            if format is None:
                choices.append(self.choice(index, result, await order.echo(prompt)))
            else:
                choices.append(self.read_choice(index, result, format))
        return {
            **_envelope(order, self.object_name),
            "choices": choices,
            "usage": usage_of(order, results),
            **order.summary(results),
        }

    def stream(self, order: Order[BodyT], writer: EventWriter, note: Note) -> EventStream:
        """Return what tells the choices as they come; `note` is told of each result."""
        return ChoiceStream(self, order, writer, note)


class ChoiceStream:
    """Writes the choices of one order as they come, interleaved. An error of one ends all of them."""

    def __init__(self, endpoint: ChoicesEndpoint[Any], order: Order[Any], writer: EventWriter, note: Note) -> None:
        self._endpoint = endpoint
        self._order = order
        self._writer = writer
        self._note = note
        self._encoder = ChunkEncoder(_envelope(order, endpoint.chunk_object_name), usage=order.body.include_usage)
        self._results: dict[int, Result] = {}

    async def run(self, ping_after: float) -> bytes:
        """Write all events, and a comment after `ping_after` seconds without any; returns the last ones, unwritten.

        Raises the first error of a choice, or `ClientDisconnect` when the client is gone.
        """
        await while_pinging(self._writer, ping_after, self._follow_all)
        return self._ending()

    async def _follow_all(self) -> None:
        """Write every choice to its end; raises the first error of one."""
        failure: Exception | None = None

        async def guard(index: int) -> None:
            nonlocal failure
            try:
                await self._follow(index)
            except Exception as error:
                failure = failure or error
                await self._writer.stop()
                tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            for index in range(1, len(self._order.handles)):
                tasks.start_soon(guard, index)
            # The first choice needs no task of its own; mostly it is the only one.
            await guard(0)
        if failure is not None:
            raise failure

    async def _follow(self, index: int) -> None:
        """Write one choice to its end."""
        endpoint, order, encoder, write = self._endpoint, self._order, self._encoder, self._writer.write
        echo = await order.echo(index // order.body.choices)
        first = endpoint.first_chunk(index, echo)
        opening = encoder.chunk(first) if first is not None else b""
        frame = encoder.text_frame(*endpoint.text_chunk(index))
        format = order.reply(index)
        reply = None if format is None else ReplyChunks(encoder, index, format.reader(), frame)
        handle = order.handles[index]
        pieces: AsyncIterator[str | TextPiece] = handle.pieces() if order.logprobs else aiter(handle)
        try:
            async for piece in pieces:
                if order.body.prompt_only:
                    continue
                if reply is not None:
                    chunks = opening + reply.encode(piece)
                elif isinstance(piece, str):
                    chunks = opening + frame.encode(piece)
                else:
                    chunks = opening + encoder.chunk(endpoint.scored_chunk(index, piece, echo))
                opening = b""
                if chunks:
                    await write(chunks)
        finally:
            if isinstance(pieces, AsyncGenerator):
                await pieces.aclose()  # trio warns of a generator that was left to the garbage collector
        result = self._results[index] = await order.result(handle)
        self._note(result)
        if echo is not None and result.ending is not None:
            ending = endpoint.scored_chunk(index, TextPiece("", (result.ending,)), echo)
            await write(opening + encoder.chunk(ending))
            opening = b""
        more: dict[str, Any] = {}
        if len(self._results) == len(order.handles) and not order.body.include_usage:
            more = order.summary(list(self._results.values()))
        if reply is not None:
            opening += reply.end()
        finish = finish_of(result.finish_reason, called=reply is not None and reply.called)
        await write(opening + encoder.chunk(endpoint.last_chunk(index, finish), **more))

    def failure(self, error: Exception) -> bytes:
        """Return the events with which a stream ends that has begun, and which `error` broke off."""
        return encode_event(answer_for(error).body)

    def _ending(self) -> bytes:
        if not self._order.body.include_usage:
            return DONE
        results = [self._results[index] for index in sorted(self._results)]
        usage = self._encoder.chunk(usage=usage_of(self._order, results), **self._order.summary(results))
        return usage + DONE


def usage_of(order: Order[Any], results: Sequence[Result]) -> dict[str, Any]:
    """Return the token counts as OpenAI's older endpoints tell them."""
    counts = order.counts(results)
    return {
        "prompt_tokens": counts.prompt,
        "completion_tokens": counts.completion,
        "total_tokens": counts.prompt + counts.completion,
        "prompt_tokens_details": {"cached_tokens": counts.cached},
    }


def _envelope(order: Order[Any], object_name: str) -> dict[str, Any]:
    """Return what every answer, or every chunk of a stream, begins with."""
    fields = {
        "id": order.id,
        "object": object_name,
        "created": order.created,
        "model": order.model,
        "priority": order.level,
    }
    return fields if order.tier is None else {**fields, "service_tier": order.tier}


def _wanted(order: Order[Any], results: Sequence[Result]) -> list[Result]:
    """Return the results that are wanted: all in their order, or of each prompt those with the likeliest tokens."""
    computed, returned = order.body.choices, order.body.returned
    if returned == computed:
        return list(results)
    best: list[Result] = []
    for first in range(0, len(results), computed):
        ranked = sorted(results[first : first + computed], key=_mean_logprob, reverse=True)
        best += ranked[:returned]
    return best if order.logprobs else [replace(result, logprobs=None) for result in best]


def _mean_logprob(result: Result) -> float:
    assert result.cumulative_logprob is not None
    return result.cumulative_logprob / max(1, len(result.tokens))

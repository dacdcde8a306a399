"""`/v1/responses`: the items of a conversation, through the model's own chat template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llamalane.api.orders import Endpoint, EventStream, Note, Order, PromptInput
from llamalane.api.questions import question_input
from llamalane.api.responses.answer import begun, ended
from llamalane.api.responses.body import ResponsesBody
from llamalane.api.responses.output import read_output
from llamalane.api.responses.schemas import ResponseAnswer, ResponseEvent
from llamalane.api.responses.stream import ResponseStream
from llamalane.api.sse import EventWriter
from llamalane.scheduler import Engine


class Responses(Endpoint[ResponsesBody]):
    """Answers a conversation of items, and stores nothing of it."""

    path = "/v1/responses"
    body_type = ResponsesBody
    answer = ResponseAnswer
    chunk = ResponseEvent
    operation = "chat"
    id_prefix = "resp"

    def prompts(self, engine: Engine, body: ResponsesBody) -> Sequence[PromptInput]:
        """Return the one prompt that the items make, and how its answer is to be read."""
        return [question_input(engine, body.question)]

    async def collect(self, order: Order[ResponsesBody], note: Note) -> dict[str, Any]:
        """Wait for the output and return the response; `note` is told of the result."""
        result = await order.handles[0].result()
        note(result)
        return ended(order, begun(order), read_output(order.id, result, order.reply(0)), result)

    def stream(self, order: Order[ResponsesBody], writer: EventWriter, note: Note) -> EventStream:
        """Return what tells the output as it comes; `note` is told of the result."""
        return ResponseStream(order, writer, note)

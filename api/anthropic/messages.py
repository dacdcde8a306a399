"""`/v1/messages`: a conversation in Anthropic's shape, through the model's own chat template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from llamalane.api.anthropic import MESSAGES_PATH
from llamalane.api.anthropic.answer_schemas import AnsweredMessage, MessageEvent
from llamalane.api.anthropic.bodies import MessagesBody
from llamalane.api.anthropic.content import content_of, message_of, stop_of
from llamalane.api.anthropic.stream import MessageStream
from llamalane.api.orders import Endpoint, EventStream, Note, Order, PromptInput
from llamalane.api.questions import question_input
from llamalane.api.reply import Content, Event
from llamalane.api.sse import EventWriter
from llamalane.ids import RequestId
from llamalane.scheduler import Engine, RequestHandle, SubmitOptions


class Messages(Endpoint[MessagesBody]):
    """Answers messages, as Anthropic's API does."""

    path = MESSAGES_PATH
    body_type = MessagesBody
    answer = AnsweredMessage
    chunk = MessageEvent
    operation = "chat"
    id_prefix = "msg"

    def prompts(self, engine: Engine, body: MessagesBody) -> Sequence[PromptInput]:
        """Return the one prompt that the messages make, and how its answer is to be read."""
        prompt = question_input(engine, body.question)
        return [_to_the_end(prompt) if body.max_tokens > engine.limit else prompt]

    async def collect(self, order: Order[MessagesBody], note: Note) -> dict[str, Any]:
        """Wait for the reply and return the message; `note` is told of the result."""
        [handle] = order.handles
        result = await handle.result()
        note(result)
        content = content_of(_events(order, result.text))
        called = any(block["type"] == "tool_use" for block in content)
        return {
            **message_of(order, order.counts([result])),
            "content": content,
            **stop_of(order, result, called=called),
            **order.summary([result]),
        }

    def stream(self, order: Order[MessagesBody], writer: EventWriter, note: Note) -> EventStream:
        """Return what tells the message as it comes; `note` is told of its result."""
        return MessageStream(order, writer, note)


def _events(order: Order[MessagesBody], text: str) -> list[Event]:
    format = order.reply(0)
    if format is None:
        return [Content(text)] if text else []
    reader = format.reader()
    return [*reader.feed(text), *reader.end()]


def _to_the_end(prompt: PromptInput) -> PromptInput:
    """Return a prompt whose output may fill its sequence: clients have to say a bound, and say one for other models."""

    async def submit(ids: Sequence[RequestId], options: SubmitOptions) -> list[RequestHandle]:
        more = SubmitOptions(**options)
        more["sampling"] = replace(options["sampling"], max_tokens=None)
        return await prompt.submit(ids, more)

    return replace(prompt, submit=submit)

"""A model's reply as the content of a message, and what a message tells beside it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from pydantic_core import from_json

from llamalane.api.anthropic.bodies import MessagesBody
from llamalane.api.orders import Order, TokenCounts
from llamalane.api.reply import CallArguments, CallStart, Content, Event, Reasoning
from llamalane.scheduler import FinishReason, Result

_TIERS = {"default": "standard", "priority": "priority", "flex": "batch"}


class Blocks:
    """Follows a reply, and tells where its content blocks begin."""

    def __init__(self) -> None:
        self.index = -1
        """The number of the block that is open; -1 before the first one."""
        self.called = False
        """Whether a call has begun."""
        self.kind = ""
        """The type of the block that is open."""

    def begin(self, event: Event) -> dict[str, Any] | None:
        """Return the block, still empty, that begins with `event`; None if that goes on with the one that is open."""
        block = _begun(event)
        if block["type"] == self.kind and not isinstance(event, CallStart):
            return None
        self.index += 1
        self.kind = block["type"]
        self.called |= isinstance(event, CallStart)
        return block


def content_of(events: Iterable[Event]) -> list[dict[str, Any]]:
    """Return the content blocks that the events of a whole reply make."""
    blocks = Blocks()
    drafts: list[tuple[dict[str, Any], list[str]]] = []
    for event in events:
        block = blocks.begin(event)
        if block is not None:
            drafts.append((block, []))
        if isinstance(event, Content | Reasoning | CallArguments):
            drafts[-1][1].append(event.text)
    return [_filled(block, "".join(texts)) for block, texts in drafts]


def message_of(order: Order[MessagesBody], tokens: TokenCounts) -> dict[str, Any]:
    """Return a message of which nothing is known yet but the `tokens` so far."""
    return {
        "id": order.id,
        "type": "message",
        "role": "assistant",
        "model": order.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage_of(order, tokens),
        "priority": order.level,
    }


def usage_of(order: Order[MessagesBody], tokens: TokenCounts) -> dict[str, Any]:
    """Return token counts as Anthropic's API has them: those of the prompt that were there before stand apart."""
    usage = {
        "input_tokens": tokens.prompt - tokens.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": tokens.cached,
        "output_tokens": tokens.completion,
    }
    return usage if order.tier is None else {**usage, "service_tier": _TIERS[order.tier]}


def stop_of(order: Order[MessagesBody], result: Result, *, called: bool) -> dict[str, str | None]:
    """Return why a message ended; `called` says whether it calls tools."""
    reason = "tool_use" if called else "end_turn"
    if result.stop is not None:
        reason = "stop_sequence"
    elif result.finish_reason is FinishReason.LENGTH:
        full = result.usage.completion_tokens < order.body.max_tokens
        reason = "model_context_window_exceeded" if full else "max_tokens"
    return {"stop_reason": reason, "stop_sequence": result.stop}


def _begun(event: Event) -> dict[str, Any]:
    """Return the block that `event` belongs to as it begins."""
    match event:
        case Content():
            return {"type": "text", "text": ""}
        case Reasoning():
            return {"type": "thinking", "thinking": "", "signature": ""}
        case CallStart(_, name, tool):
            return {"type": "tool_use", "id": name, "name": tool, "input": {}}
        case CallArguments():
            return {"type": "tool_use"}


def _filled(block: dict[str, Any], text: str) -> dict[str, Any]:
    return block | (_input(text) if block["type"] == "tool_use" else {block["type"]: text})


def _input(text: str) -> dict[str, Any]:
    """Return a call's input. A call that was cut off, or in which the model made a mistake, comes as text, too."""
    whole = _read(text or "{}", partial=False)
    return {"input": _read(text, partial=True) or {}, "partial_json": text} if whole is None else {"input": whole}


def _read(text: str, *, partial: bool) -> dict[str, Any] | None:
    try:
        value = from_json(text, allow_inf_nan=False, allow_partial=partial)
        json.dumps(value, allow_nan=False)  # a number may have been too large
    except ValueError:
        return None
    return value if isinstance(value, dict) else None

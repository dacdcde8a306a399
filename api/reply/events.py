"""What a model's reply consists of, piece by piece and as a whole, whichever endpoint tells it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Content:
    """A piece of the answer's text."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A piece of what the model thought before it answered."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call of a tool begins; calls are counted from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of a call's arguments, which are JSON."""

    index: int
    text: str


Event = Content | Reasoning | CallStart | CallArguments


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool. `arguments` is a JSON object, unless the model was cut off or made a mistake in it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole reply."""

    content: str
    reasoning: str = ""
    calls: tuple[Call, ...] = ()


def collect(events: Iterable[Event]) -> Reply:
    """Return the reply that `events` make."""
    content, reasoning = [], []
    starts: list[CallStart] = []
    arguments: list[list[str]] = []
    for event in events:
        match event:
            case Content(text):
                content.append(text)
            case Reasoning(text):
                reasoning.append(text)
            case CallStart():
                starts.append(event)
                arguments.append([])
            case CallArguments(index, text):
                arguments[index].append(text)
    calls = [Call(start.id, start.name, "".join(texts)) for start, texts in zip(starts, arguments, strict=True)]
    return Reply("".join(content), "".join(reasoning), tuple(calls))

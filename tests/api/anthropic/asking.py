"""What the tests of Anthropic's API ask, and by which client."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from anthropic import Anthropic
from anthropic.types import MessageParam, ToolParam

from llamalane.api import create_app
from llamalane.scheduler import ChatPrompt
from tests.api.fake_engine import ScriptedEngine, ScriptedHandle, as_engine
from tests.api.serving import served

MESSAGES_PATH = "/v1/messages"
COUNT_PATH = f"{MESSAGES_PATH}/count_tokens"
MESSAGES: list[MessageParam] = [{"role": "user", "content": "How is the weather in Oslo?"}]
BODY: dict[str, Any] = {"max_tokens": 64, "messages": MESSAGES}
TOOLS: list[ToolParam] = [
    {"name": "get_weather", "description": "The weather in a city.", "input_schema": {"type": "object"}},
    {"name": "get_time", "input_schema": {"type": "object"}},
]


@contextlib.contextmanager
def client_of(engine: ScriptedEngine, **api: Any) -> Iterator[Anthropic]:
    """A client of a server on an engine that follows its plays."""
    with (
        served(create_app(as_engine(engine), **api)) as url,
        Anthropic(base_url=url, api_key="none", max_retries=0) as client,
    ):
        yield client


def prompt_of(handle: ScriptedHandle) -> str:
    assert isinstance(handle.prompt, ChatPrompt)
    return handle.prompt.text


def pieces(text: str, size: int = 3) -> Sequence[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]

"""A token costs one write to its connection, however it is asked for."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from llamalane.api import create_app
from llamalane.bench.streaming.writes import WriteCounter
from tests.api.fake_engine import Play, ScriptedEngine, as_engine
from tests.api.serving import served

AROUND = 4
"""The head, why the output ended, `[DONE]`, and the end of the body."""
MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("path", "body"), [("/v1/completions", {"prompt": "x"}), ("/v1/chat/completions", {"messages": MESSAGES})]
)
@pytest.mark.parametrize("usage", [False, True])
@pytest.mark.parametrize("count", [1, 7])
def test_each_piece_of_text_is_one_write(path: str, body: dict[str, Any], count: int, usage: bool) -> None:
    counter = WriteCounter()
    engine = ScriptedEngine([Play([f"text {number}" for number in range(count)])])
    more = {"stream": True, "stream_options": {"include_usage": usage}}
    with counter.watching(), served(create_app(as_engine(engine))) as url:
        answer = httpx.post(url + path, json={**body, **more})
        assert answer.text.count("text ") == count
        assert answer.text.endswith("data: [DONE]\n\n")
    assert counter.writes == count + AROUND
    assert counter.bytes > len(answer.content)

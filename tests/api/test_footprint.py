"""What could never fit the queue, however empty it is, is refused for good; what fits later is not."""

from __future__ import annotations

from typing import Any

import pytest

from llamalane.api import create_app
from llamalane.errors import QueueFullError
from llamalane.scheduler import QueueConfig, SchedulerConfig
from tests.api.asgi import client_of
from tests.api.fake_engine import CONFIG, Play, ScriptedEngine, as_engine

pytestmark = pytest.mark.anyio

FULL = QueueFullError(1, reason="tokens", limit=100)


def engine_of(*plays: Play, waiting_tokens: int = 0) -> ScriptedEngine:
    """An engine whose queue takes 10 requests and 100 tokens."""
    queue = QueueConfig(max_requests=10, max_tokens=100)
    config = CONFIG.model_copy(update={"scheduler": SchedulerConfig(queue=queue)})
    return ScriptedEngine(list(plays), config=config, waiting_tokens=waiting_tokens)


async def refusal(engine: ScriptedEngine, **body: Any) -> tuple[int, str | None]:
    """Return the status of the answer, and the field at fault."""
    async with client_of(create_app(as_engine(engine))) as client:
        answer = await client.post("/v1/completions", json=body)
    return answer.status_code, answer.json().get("error", {}).get("param")


@pytest.mark.parametrize(
    ("fields", "expected", "submitted"),
    [
        ({"prompt": [[1] * 50, [2] * 50]}, (200, None), 2),
        ({"prompt": [[1] * 50, [2] * 51]}, (400, "prompt"), 0),
        ({"prompt": [1] * 50, "n": 2}, (200, None), 2),
        ({"prompt": [1] * 51, "n": 2}, (400, "n"), 0),
        ({"prompt": [1] * 101}, (200, None), 1),
        ({"prompt": ["x"] * 11}, (400, "prompt"), 0),
        ({"prompt": "x", "n": 11}, (400, "n"), 0),
    ],
)
async def test_prompts_in_tokens_are_counted_before_any_is_submitted(
    fields: dict[str, Any], expected: tuple[int, str | None], submitted: int
) -> None:
    engine = engine_of()
    assert await refusal(engine, **fields) == expected
    assert len(engine.handles) == submitted


async def test_a_text_is_counted_as_soon_as_its_length_is_known() -> None:
    engine = engine_of(Play(prompt_tokens=26))
    assert await refusal(engine, prompt="x", n=4) == (400, "n")
    assert [handle.cancelled for handle in engine.handles] == [1] * 4
    assert await refusal(engine_of(*[Play(prompt_tokens=25)] * 4), prompt="x", n=4) == (200, None)
    texts = engine_of(Play(prompt_tokens=60), Play(prompt_tokens=41), Play())
    assert await refusal(texts, prompt=["x", "y"]) == (400, "prompt")


@pytest.mark.parametrize(
    ("waiting_tokens", "reason", "status"),
    [(60, "tokens", 400), (61, "tokens", 429), (60, "requests", 429)],
)
async def test_a_refusal_is_for_good_when_nobody_else_waits(waiting_tokens: int, reason: str, status: int) -> None:
    full = QueueFullError(1, reason=reason, limit=100)
    engine = engine_of(Play(prompt_tokens=60), Play(refusal=full), waiting_tokens=waiting_tokens)
    assert (await refusal(engine, prompt=["x", "y"]))[0] == status
    assert [handle.cancelled for handle in engine.handles] == [1]


async def test_a_refusal_of_the_only_prompt_is_for_now() -> None:
    assert (await refusal(engine_of(Play(refusal=FULL), waiting_tokens=90), prompt="x"))[0] == 429

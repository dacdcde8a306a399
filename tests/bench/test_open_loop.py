"""Requests that arrive at random, at a server that answers as told."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from llamalane.bench.open_loop import OpenLoop
from llamalane.bench.workload import Span, Workload
from tests.bench.fake_server import Asked, chunk, fake_server, full_answer, head, token

pytestmark = pytest.mark.anyio

SHORT = Workload(words=Span(2, 6), output_tokens=Span(3, 9))


async def test_requests_arrive_at_their_rate_and_the_same_again_for_the_same_seed() -> None:
    starts = []
    async with fake_server(full_answer) as server:
        for seed in (1, 1, 2):
            result = await OpenLoop(server.target(), SHORT, rate=200, seed=seed).run(seconds=0.3)
            assert result.summary().errors == {}
            starts.append(len(result.records))
    assert starts[0] == starts[1]
    assert 20 <= starts[0] <= 120, "60 arrivals are expected"
    prompts = [asked.body["prompt"] for asked in server.asked]
    assert len(set(prompts)) >= starts[0] + starts[2] - 3, "every arrival asks something new, but for the last ones"
    assert len(set(prompts)) <= starts[0] + starts[2]


async def test_nobody_waits_for_those_before() -> None:
    def answer(asked: Asked) -> Sequence[bytes | None]:
        return [head(), chunk(token("a")), None]

    async with fake_server(answer) as server:
        result = await OpenLoop(server.target(), SHORT, rate=100, seed=1).run(seconds=0.2)
    summary = result.summary()
    assert summary.cut == len(result.records) > 3
    assert summary.time_to_first_token is not None


async def test_the_warm_up_does_not_count() -> None:
    async with fake_server(full_answer) as server:
        result = await OpenLoop(server.target(), SHORT, rate=100, seed=1).run(seconds=0.05, warm_up=0.02)
    assert result.window.seconds == pytest.approx(0.03)

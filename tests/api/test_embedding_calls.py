"""Calls for vectors whose client leaves, and items of batch files, on the real engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from llamalane.api import create_app, serve_item
from llamalane.scheduler import EventKind
from tests.api.asgi import client_of, exchange
from tests.engine.embedding_rig import PLACES, embedding_config, embedding_engine
from tests.engine.running import Follower, Gate, WatchedEngine

pytestmark = pytest.mark.anyio


@pytest.fixture
def engines() -> Iterator[list[WatchedEngine]]:
    """Every engine of the test; when it is over, all is back."""
    engines: list[WatchedEngine] = []
    yield engines
    for engine in engines:
        engine.check_conserved()


async def test_a_client_that_leaves_takes_its_texts_along(engines: list[WatchedEngine], tiny_encoder: Path) -> None:
    gate, follower = Gate(), Follower()
    config = embedding_config([{"name": "enc", "path": tiny_encoder, "task": "embed"}])
    async with embedding_engine(config, engines, lambda _: gate.pass_through(), follower) as engine:
        app = create_app(engine)
        with gate:
            body = {"input": [f"text {number}" for number in range(40)]}
            async with exchange(app, "/v1/embeddings", body) as request:
                await follower.wait_for(EventKind.ADMITTED, times=PLACES)
                request.leave()
            assert request.sent == 0
            assert engine.stats().counters.cancelled == PLACES
        async with client_of(app) as client:
            assert (await client.post("/v1/embeddings", json={"input": "abc"})).status_code == 200


async def test_others_are_served_while_a_large_answer_is_written(
    engines: list[WatchedEngine], tiny_encoder: Path
) -> None:
    config = embedding_config([{"name": "enc", "path": tiny_encoder, "task": "embed"}])
    async with embedding_engine(config, engines) as engine, client_of(create_app(engine)) as client:
        sizes: list[int] = []

        async def large() -> None:
            answer = await client.post("/v1/embeddings", json={"input": ["a b c"] * 500, "encoding_format": "float"})
            sizes.append(len(answer.json()["data"]))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(large)
            for _ in range(20):
                assert (await client.get("/health")).status_code == 200
    assert sizes == [500]


async def test_items_of_a_batch(engines: list[WatchedEngine], tiny_encoder: Path, tiny_ranker: Path) -> None:
    entry = {"name": "enc", "path": tiny_encoder, "task": "embed"}
    async with embedding_engine(embedding_config([entry]), engines) as engine:
        status, answer = await serve_item(engine, "POST", "/v1/embeddings", {"input": ["a", "b"], "priority": "batch"})
        assert (status, answer["object"], [one["index"] for one in answer["data"]]) == (200, "list", [0, 1])
        status, answer = await serve_item(engine, "POST", "/v1/embeddings", {"input": ""})
        assert (status, answer["error"]["param"]) == (400, "input")
        status, answer = await serve_item(engine, "POST", "/v1/rerank", {"query": "q", "documents": ["d"]})
        assert (status, answer["error"]["code"]) == (400, "wrong_task")
    entry = {"name": "rank", "path": tiny_ranker, "task": "rerank"}
    async with embedding_engine(embedding_config([entry]), engines) as engine:
        status, answer = await serve_item(engine, "POST", "/v1/rerank", {"query": "q", "documents": ["d"]})
        assert (status, len(answer["results"])) == (200, 1)

"""Batches of texts to embed, and of documents to score."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from llamalane.api import ApiConfig, create_app, lifespan_of
from llamalane.api.batch import ItemTerms, run_item
from llamalane.api.config import BatchesConfig
from llamalane.api.keys import Caller
from llamalane.errors import TenantLimitError
from llamalane.scheduler import Engine, EngineConfig
from tests.api.asgi import client_of
from tests.api.batches.lines import jsonl
from tests.api.batches.test_routes import create, ended, upload
from tests.engine.test_lanes import as_if_each_lane_had_its_cores

pytestmark = pytest.mark.anyio

EMBEDDINGS = "/v1/embeddings"


@pytest.fixture
async def engine(
    tiny_model: Path, tiny_encoder: Path, monkeypatch: pytest.MonkeyPatch, anyio_backend: object
) -> AsyncIterator[Engine]:
    """An engine whose first model generates, and whose second one embeds."""
    as_if_each_lane_had_its_cores(monkeypatch)
    config = EngineConfig.model_validate(
        {
            "models": [
                {"path": tiny_model, "name": "tiny"},
                {"path": tiny_encoder, "name": "enc", "task": "embed", "aliases": ["other"]},
            ],
            "streams": {
                "lanes": [
                    {"name": "main", "places": 2, "threads": 1},
                    {"name": "enc", "model": "enc", "places": 2, "threads": 1},
                ]
            },
            "kv": {"flash_attention": "off"},
            "scheduler": {"tenants": {"few": {"tokens_per_minute": 7}}},
        }
    )
    async with Engine(config) as running:
        yield running


def item(name: str, **body: Any) -> dict[str, Any]:
    return {"custom_id": name, "method": "POST", "url": EMBEDDINGS, "body": {"input": f"text {name}", **body}}


async def lines_of(client: httpx.AsyncClient, file: str) -> dict[str, Any]:
    text = (await client.get(f"/v1/files/{file}/content")).text
    return {line["custom_id"]: line["response"] for line in map(json.loads, text.splitlines())}


async def test_a_batch_of_texts_has_their_vectors(engine: Engine, tmp_path: Path) -> None:
    app = create_app(engine, api=ApiConfig(batches=BatchesConfig(folder=tmp_path)))
    tasks = [*(item(str(number), model="other") for number in range(8)), item("wrong", input=[])]
    async with lifespan_of(app)(app), client_of(app) as client:
        source = (await upload(client, jsonl(*tasks))).json()["id"]
        batch = await ended(client, (await create(client, source, endpoint=EMBEDDINGS)).json()["id"])
        assert (batch["status"], batch["model"]) == ("completed", None)
        assert batch["request_counts"] == {"total": 9, "completed": 8, "failed": 1}
        answers = await lines_of(client, batch["output_file_id"])
        assert list(answers) == [str(number) for number in range(8)]
        alone = (await client.post(EMBEDDINGS, json={"input": "text 3"})).json()["data"][0]["embedding"]
        assert answers["3"]["body"]["data"][0]["embedding"] == pytest.approx(alone, abs=1e-5)
        tokens = sum(answer["body"]["usage"]["prompt_tokens"] for answer in answers.values())
        assert batch["usage"]["input_tokens"] == tokens > 0
        failed = await lines_of(client, batch["error_file_id"])
        assert failed["wrong"]["status_code"] == 400


async def test_a_model_that_is_not_there_fails_the_batch(engine: Engine, tmp_path: Path) -> None:
    app = create_app(engine, api=ApiConfig(batches=BatchesConfig(folder=tmp_path)))
    async with lifespan_of(app)(app), client_of(app) as client:
        source = (await upload(client, jsonl(item("a", model="nobody")))).json()["id"]
        batch = await ended(client, (await create(client, source, endpoint=EMBEDDINGS)).json()["id"])
        assert batch["status"] == "failed"
        assert batch["errors"]["data"][0]["code"] == "model_not_found"


async def test_texts_count_as_their_tenants_and_are_sent_back_at_its_limit(engine: Engine) -> None:
    terms = ItemTerms(caller=Caller(tenant="few"))
    accepted: list[bool] = []

    async def run() -> None:
        await run_item(engine, "POST", EMBEDDINGS, b'{"input": "text"}', terms, lambda: accepted.append(True))

    await run()
    with pytest.raises(TenantLimitError):  # which lets the runner bring it again
        await run()
    assert accepted == [True, True]

"""Files and batches with the real OpenAI client, over a real socket, on the real engine."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import openai
import pytest
from openai.types import Batch

from llamalane.api import ApiConfig, create_app
from llamalane.api.config import BatchesConfig, ServerConfig
from llamalane.scheduler import LaneConfig, ModelConfig, StreamsConfig
from tests.api.batches.lines import jsonl
from tests.api.scraping import Scrape
from tests.api.serving import SERVERS

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"


@pytest.fixture(scope="module", params=SERVERS)
def client(
    request: pytest.FixtureRequest, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[openai.OpenAI]:
    folder = tmp_path_factory.mktemp("batches") / "new"
    config = ServerConfig(
        models=[ModelConfig(path=tiny_model, name="tiny", aliases=["gpt-4o-mini"])],
        streams=StreamsConfig(lanes=[LaneConfig(places=4, threads=1)]),
        api=ApiConfig(batches=BatchesConfig(folder=folder, max_items=100, max_file_bytes=100_000)),
    )
    with (
        SERVERS[request.param](create_app(config)) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        # While the model loads the answer is 503, which the client tries again.
        client.with_options(max_retries=20).models.list()
        yield client


def chat(name: str, **body: Any) -> dict[str, Any]:
    fields = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": f"task {name}"}], "max_tokens": 4}
    return {"custom_id": name, "method": "POST", "url": CHAT, "body": {**fields, **body}}


def upload(client: openai.OpenAI, data: bytes) -> str:
    return client.files.create(file=("tasks.jsonl", data), purpose="batch").id


def finished(client: openai.OpenAI, batch: Batch) -> Batch:
    """Ask for a batch until it has ended."""
    while batch.status in ("validating", "in_progress", "finalizing", "cancelling"):
        batch = client.batches.retrieve(batch.id)
    return batch


def run(client: openai.OpenAI, *tasks: dict[str, Any], endpoint: Any = CHAT, **options: Any) -> Batch:
    """Create a batch and wait for its end."""
    source = upload(client, jsonl(*tasks))
    batch = client.batches.create(input_file_id=source, endpoint=endpoint, completion_window="24h", **options)
    return finished(client, batch)


def lines_of(client: openai.OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    assert file_id is not None
    return [json.loads(line) for line in client.files.content(file_id).text.splitlines()]


def queued(client: openai.OpenAI) -> float:
    """Tell how many requests of the least urgent level the metrics have counted."""
    scraped = Scrape(httpx.get(str(client.base_url.join("/metrics"))).text)
    return scraped.total("llamalane_request_queue_time_seconds_count", level="5")


def test_a_batch_from_its_file_to_its_output(client: openai.OpenAI) -> None:
    tasks = [chat("a"), chat("b", n=2), chat("c", model="tiny", priority="interactive"), chat("d", temperature="hot")]
    before = time.time()
    source = client.files.create(file=("tasks.jsonl", jsonl(*tasks)), purpose="batch")
    assert (source.filename, source.purpose, source.status) == ("tasks.jsonl", "batch", "processed")
    assert source.bytes == len(jsonl(*tasks))
    assert int(before) <= source.created_at <= time.time()
    created = client.batches.create(
        input_file_id=source.id, endpoint=CHAT, completion_window="24h", metadata={"project": "rivers"}
    )
    assert (created.object, created.status, created.endpoint) == ("batch", "validating", CHAT)
    assert created.expires_at == created.created_at + 24 * 3600
    batch = finished(client, created)
    assert batch.status == "completed"
    assert batch.metadata == {"project": "rivers"}
    assert batch.request_counts is not None
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (4, 3, 1)
    assert batch.in_progress_at is not None
    assert batch.finalizing_at is not None
    assert batch.completed_at is not None
    assert batch.created_at <= batch.in_progress_at <= batch.finalizing_at <= batch.completed_at
    assert batch.expired_at is batch.cancelled_at is batch.failed_at is None
    answers = {line["custom_id"]: line["response"] for line in lines_of(client, batch.output_file_id)}
    assert list(answers) == ["a", "b", "c"]
    assert {answer["status_code"] for answer in answers.values()} == {200}
    assert [len(answer["body"]["choices"]) for answer in answers.values()] == [1, 2, 1]
    assert [answer["body"]["priority"] for answer in answers.values()] == [5, 5, 1]
    [failure] = lines_of(client, batch.error_file_id)
    assert (failure["custom_id"], failure["response"]["status_code"]) == ("d", 400)
    assert failure["response"]["body"]["error"]["param"] == "temperature"
    assert batch.usage is not None
    tokens = [answer["body"]["usage"]["completion_tokens"] for answer in answers.values()]
    assert batch.usage.output_tokens == sum(tokens)


def test_completions_of_many_items(client: openai.OpenAI) -> None:
    body = {"prompt": "once upon a time", "max_tokens": 3, "ignore_eos": True}
    before = queued(client)
    names = [f"item-{number}" for number in range(100)]
    tasks = [{"custom_id": name, "method": "POST", "url": COMPLETIONS, "body": body} for name in names]
    batch = run(client, *tasks, endpoint=COMPLETIONS)
    assert batch.status == "completed"
    lines = lines_of(client, batch.output_file_id)
    assert [line["custom_id"] for line in lines] == names
    assert {line["response"]["body"]["usage"]["completion_tokens"] for line in lines} == {3}
    assert batch.error_file_id is None
    assert queued(client) == before + 100


def test_an_interactive_request_is_served_while_a_batch_runs(client: openai.OpenAI) -> None:
    source = upload(client, jsonl(*[chat(f"item-{number}", max_tokens=200, ignore_eos=True) for number in range(100)]))
    batch = client.batches.create(input_file_id=source, endpoint=CHAT, completion_window="24h")
    while batch.status != "in_progress":
        batch = client.batches.retrieve(batch.id)
    answer = client.completions.create(model="tiny", prompt="x", max_tokens=2, extra_body={"priority": "interactive"})
    assert answer.choices
    assert client.batches.retrieve(batch.id).status == "in_progress"
    assert client.batches.cancel(batch.id).status == "cancelling"
    batch = finished(client, batch)
    assert (batch.status, batch.cancelled_at is not None) == ("cancelled", True)
    counts = batch.request_counts
    assert counts is not None
    errors = lines_of(client, batch.error_file_id)
    assert len(errors) == 100 - counts.completed
    assert {line["error"]["code"] for line in errors} == {"batch_cancelled"}
    with pytest.raises(openai.ConflictError) as caught:
        client.with_options(max_retries=5).batches.cancel(run(client, chat("a")).id)
    assert caught.value.code == "batch_conflict"


def test_a_batch_expires(client: openai.OpenAI) -> None:
    source = upload(client, jsonl(*[chat(f"item-{number}", max_tokens=1000, ignore_eos=True) for number in range(100)]))
    window: Any = "1s"
    batch = finished(client, client.batches.create(input_file_id=source, endpoint=CHAT, completion_window=window))
    assert (batch.status, batch.expired_at is not None) == ("expired", True)
    names = [line["custom_id"] for line in lines_of(client, batch.error_file_id)]
    if batch.output_file_id is not None:
        names += [line["custom_id"] for line in lines_of(client, batch.output_file_id)]
    assert len(names) == len(set(names)) == 100


def test_mistakes_of_an_input_are_told_with_their_lines(client: openai.OpenAI) -> None:
    text = jsonl(chat("a"), {**chat("b"), "method": "GET"}, chat("a"), chat("c", model="gpt-9")) + b"\xff\n"
    batch = client.batches.create(input_file_id=upload(client, text), endpoint=CHAT, completion_window="24h")
    batch = finished(client, batch)
    assert (batch.status, batch.failed_at is not None) == ("failed", True)
    assert batch.errors is not None
    assert batch.errors.data is not None
    assert [(error.line, error.code, error.param) for error in batch.errors.data] == [
        (2, "invalid_method", "method"),
        (3, "duplicate_custom_id", "custom_id"),
        (4, "model_not_found", "body.model"),
        (5, "invalid_json_line", None),
    ]
    assert (batch.output_file_id, batch.error_file_id) == (None, None)


def test_an_input_with_too_many_items_fails(client: openai.OpenAI) -> None:
    batch = run(client, *[chat(str(number)) for number in range(101)])
    assert batch.errors is not None
    assert batch.errors.data is not None
    assert [(error.line, error.code) for error in batch.errors.data] == [(101, "too_many_items")]


def test_lists_are_gone_through_page_by_page(client: openai.OpenAI) -> None:
    ids = [upload(client, f"file {number}".encode()) for number in range(3)]
    found = [file.id for file in client.files.list(limit=2, purpose="batch")]
    assert found[:3] == ids[::-1]
    assert len(found) == len(set(found)) > 3
    oldest_first = [file.id for file in client.files.list(limit=2, order="asc", purpose="batch")]
    assert oldest_first == found[::-1]
    batches = [run(client, chat("a")).id for _ in range(2)]
    assert [batch.id for batch in client.batches.list(limit=1)][:2] == batches[::-1]


def test_files_are_read_and_deleted(client: openai.OpenAI) -> None:
    file = client.files.create(
        file=("a.jsonl", b"hello"), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
    )
    assert file.expires_at == file.created_at + 3600
    assert client.files.retrieve(file.id) == file
    assert client.files.content(file.id).read() == b"hello"
    assert client.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError) as caught:
        client.files.content(file.id)
    assert caught.value.code == "file_not_found"


def test_what_cannot_be_had_is_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.files.create(file=("a.jsonl", b"x"), purpose="fine-tune")
    assert caught.value.param == "purpose"
    with pytest.raises(openai.APIStatusError) as too_large:
        client.files.create(file=("a.jsonl", b"x" * 100_001), purpose="batch")
    assert too_large.value.status_code == 413
    with pytest.raises(openai.NotFoundError):
        client.batches.create(input_file_id="file-none", endpoint=CHAT, completion_window="24h")
    source = upload(client, b"")
    with pytest.raises(openai.BadRequestError) as wrong_endpoint:
        client.batches.create(input_file_id=source, endpoint="/v1/moderations", completion_window="24h")
    assert wrong_endpoint.value.param == "endpoint"
    with pytest.raises(openai.NotFoundError):
        client.batches.retrieve("batch_none")

"""`llamalane serve` with batches: killed, told to end, and started again."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.api.batches.lines import jsonl
from tests.cli.process import errors_of, run, started, wait_for_line
from tests.cli.test_serve import address_in

NAMES = [f"task-{number:02}" for number in range(24)]


def task(name: str) -> dict[str, Any]:
    body = {"model": "tiny", "prompt": f"task {name}", "max_tokens": 40, "ignore_eos": True}
    return {"custom_id": name, "method": "POST", "url": "/v1/completions", "body": body}


@pytest.fixture
def config(tiny_model: Path, tmp_path: Path) -> Path:
    file = tmp_path / "server.yaml"
    file.write_text(
        f"models: [{{path: {tiny_model}}}]\nstreams: {{lanes: [{{places: 2, threads: 1}}]}}\n"
        "api: {port: 0, batches: {folder: kept}}\n"
    )
    return file


def client_of(line: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{address_in(line)}/v1", api_key="none", max_retries=0)


def done(client: openai.OpenAI, batch: str) -> int:
    counts = client.batches.retrieve(batch).request_counts
    assert counts is not None
    return counts.completed


def test_a_batch_goes_on_after_a_kill_and_after_a_restart(config: Path) -> None:
    with started("serve", "--config", config) as process:
        with client_of(wait_for_line(process, "ready: ")) as client:
            source = client.files.create(file=("tasks.jsonl", jsonl(*map(task, NAMES))), purpose="batch")
            batch = client.batches.create(
                input_file_id=source.id, endpoint="/v1/completions", completion_window="24h"
            ).id
            while (killed_at := done(client, batch)) < 3:
                pass
            process.kill()
        process.wait(60)
    assert (config.parent / "kept" / "batches.sqlite3").is_file()  # where the file is that names it
    with started("serve", "--config", config) as process:
        with client_of(wait_for_line(process, "ready: ")) as client:
            while (ended_at := done(client, batch)) < killed_at + 3:
                pass
            assert ended_at < len(NAMES)
            process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert "Traceback" not in errors_of(process).read()
    with started("serve", "--config", config) as process:
        with client_of(wait_for_line(process, "ready: ")) as client:
            assert done(client, batch) > ended_at  # what was running has been finished, not thrown away
            while (found := client.batches.retrieve(batch)).status != "completed":
                pass
            assert found.output_file_id is not None
            lines = [json.loads(line) for line in client.files.content(found.output_file_id).text.splitlines()]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert [line["custom_id"] for line in lines] == NAMES
    assert {line["response"]["body"]["usage"]["completion_tokens"] for line in lines} == {40}


def test_a_folder_that_cannot_be_used_is_told_before_the_model_is_read(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("a file")
    file = tmp_path / "server.yaml"
    file.write_text("models: [{path: missing.gguf}]\napi: {port: 0, batches: {folder: kept}}\n")
    result = run("serve", "--config", file)
    assert result.returncode == 2
    message = f"error: the folder for batches cannot be used: [Errno 17] File exists: '{tmp_path}/kept'\n"
    assert result.stderr == message

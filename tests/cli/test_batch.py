"""`llamalane batch`, in a process of its own."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.cli.process import run, started, wait_for_line

ENGINE = ["--places", "2", "--threads", "1"]


def task(name: str, **body: Any) -> dict[str, Any]:
    defaults = {"model": "tiny", "prompt": f"task {name}", "max_tokens": 8, "ignore_eos": True}
    return {"custom_id": name, "method": "POST", "url": "/v1/completions", "body": {**defaults, **body}}


def write(path: Path, *lines: dict[str, Any] | str) -> Path:
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def results(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def test_every_line_gets_its_result(tiny_model: Path, tmp_path: Path) -> None:
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
    source = write(
        tmp_path / "in.jsonl",
        task("good"),
        {"custom_id": "chat", "method": "POST", "url": "/v1/chat/completions", "body": chat},
        task("urgent", priority="interactive"),
        task("unknown model", model="other"),
        task("streamed", stream=True),
        {**task("lost"), "url": "/v1/nowhere"},
        {**task("read"), "method": "GET"},
        "this is not JSON",
        task("good"),
    )
    target = tmp_path / "out.jsonl"
    result = run("batch", source, target, tiny_model, *ENGINE)
    assert result.returncode == 3
    assert result.stderr.startswith("9 done, 6 failed; ")
    assert result.stderr.count("\n") == 1
    lines = results(target)
    answers = {line["custom_id"]: line["response"] for line in lines if line["error"] is None}
    statuses = {name: response["status_code"] for name, response in answers.items()}
    assert statuses == {
        "good": 200,
        "chat": 200,
        "urgent": 200,
        "unknown model": 404,
        "streamed": 400,
        "lost": 404,
        "read": 405,
    }
    assert answers["good"]["body"]["usage"]["completion_tokens"] == 8
    assert answers["good"]["body"]["priority"] == 5
    assert answers["good"]["request_id"] == answers["good"]["body"]["id"]
    assert answers["urgent"]["body"]["priority"] == 1
    assert answers["chat"]["body"]["choices"][0]["message"]["role"] == "assistant"
    errors = [(line["error"]["line"], line["error"]["code"]) for line in lines if line["error"] is not None]
    assert sorted(errors) == [(8, "invalid_json_line"), (9, "duplicate_custom_id")]
    assert len({line["id"] for line in lines}) == 9

    before = target.read_bytes()
    again = run("batch", source, target, tiny_model, *ENGINE)
    assert again.returncode == 3
    assert again.stderr.startswith("9 done, 6 failed, 9 of them before; 0 tokens in ")
    assert target.read_bytes() == before


@pytest.mark.parametrize(("end", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)])
def test_an_interrupted_batch_goes_on_where_it_was(
    tiny_model: Path, tmp_path: Path, end: signal.Signals, code: int
) -> None:
    names = [f"task-{number}" for number in range(30)]
    source = write(tmp_path / "in.jsonl", *(task(name, max_tokens=20) for name in names))
    target = tmp_path / "out.jsonl"
    with started("batch", source, target, tiny_model, *ENGINE, "--log-level", "info") as process:
        for _ in range(4):
            wait_for_line(process, "has status 200")
        process.send_signal(end)
        assert process.wait(60) == code
    finished = target.read_bytes()
    done = finished.count(b"\n")
    assert 4 <= done < len(names)

    target.write_bytes(finished + b'{"id": "batch_req_12')  # as if the kill had come in the middle of a line
    result = run("batch", source, target, tiny_model, *ENGINE)
    assert result.returncode == 0
    assert result.stderr.startswith(f"{len(names)} done, 0 failed, {done} of them before; ")
    assert target.read_bytes().startswith(finished)
    assert sorted(line["custom_id"] for line in results(target)) == sorted(names)
    assert {line["response"]["status_code"] for line in results(target)} == {200}


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("missing.jsonl", "out.jsonl", "cannot use {folder}/missing.jsonl: No such file or directory"),
        ("in.jsonl", "missing/out.jsonl", "cannot use {folder}/missing/out.jsonl: No such file or directory"),
        ("in.jsonl", "in.jsonl", "{folder}/in.jsonl: the tasks and their results must be two files"),
        (
            "in.jsonl",
            "notes.txt",
            "{folder}/notes.txt:1: this is not a line of batch output; name another output file, or remove the line",
        ),
    ],
)
def test_files_that_cannot_be_used_are_told_before_the_model_is_read(
    tmp_path: Path, source: str, target: str, message: str
) -> None:
    write(tmp_path / "in.jsonl", task("a"))
    write(tmp_path / "notes.txt", "keep this")
    result = run("batch", tmp_path / source, tmp_path / target, tmp_path / "missing.gguf")
    assert result.returncode == 2
    assert result.stderr == f"error: {message.format(folder=tmp_path)}\n"
    assert (tmp_path / "notes.txt").read_text() == "keep this\n"


def test_an_unknown_priority_is_told(tiny_model: Path, tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", task("a"))
    result = run("batch", source, tmp_path / "out.jsonl", tiny_model, *ENGINE, "--priority", "soon")
    assert result.returncode == 1
    assert result.stderr.startswith("error: priority must be an integer from 1 (most urgent) to 5")

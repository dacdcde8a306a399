"""`llamalane serve`, in a process of its own, on a real socket."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.process import errors_of, run, started, wait_for_line

ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+")


def address_in(line: str) -> str:
    found = ADDRESS.search(line)
    assert found is not None, line
    return found[0]


def stream(client: httpx.Client, max_tokens: int) -> Iterator[dict[str, Any] | None]:
    """Yield the events of a streamed completion; None stands for the end."""
    body = {"prompt": "hello", "max_tokens": max_tokens, "stream": True, "ignore_eos": True}
    with client.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            if line.startswith("data: "):
                data = line.removeprefix("data: ")
                yield None if data == "[DONE]" else json.loads(data)


def client_of(address: str) -> httpx.Client:
    return httpx.Client(base_url=address, timeout=60, trust_env=False)


def test_a_server_serves_and_finishes_what_runs_when_it_is_told_to_end(tiny_model: Path) -> None:
    with started("serve", tiny_model, "--port", "0", "--places", "2", "--threads", "1") as process:
        ready = wait_for_line(process, "ready: ")
        assert ready.endswith("2 places on main (cpu), up to 2048 tokens each\n")
        with client_of(address_in(ready)) as client:
            assert client.get("/health").json() == {"status": "ok"}
            [model] = client.get("/v1/models").json()["data"]
            assert model["id"] == "tiny"
            events = stream(client, max_tokens=80)
            assert next(events) is not None
            process.send_signal(signal.SIGTERM)
            *chunks, last = events
        assert last is None
        assert chunks[-1] is not None
        assert chunks[-1]["choices"][0]["finish_reason"] == "length"
        assert "error" not in json.dumps(chunks)
        assert process.wait(60) == 0
        assert "Traceback" not in errors_of(process).read()


def test_what_is_not_finished_in_time_ends_with_an_error(tiny_model: Path, tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    file.write_text(
        f"models: [{{path: {tiny_model}}}]\nscheduler: {{drain_timeout: 0}}\n"
        "streams: {lanes: [{places: 1, threads: 1}]}\napi: {port: 0}\n"
    )
    with started("serve", "--config", file) as process:
        with client_of(address_in(wait_for_line(process, "ready: "))) as client:
            events = stream(client, max_tokens=1900)
            assert next(events) is not None
            process.send_signal(signal.SIGINT)
            *_, last = filter(None, events)
        assert last["error"]["code"] == "engine_unavailable"
        assert process.wait(60) == 0
        assert "Traceback" not in errors_of(process).read()


def test_a_second_signal_ends_the_process_at_once(tiny_model: Path) -> None:
    with started("serve", tiny_model, "--port", "0", "--threads", "1", LLAMALANE_API_KEY="key") as process:
        with client_of(address_in(wait_for_line(process, "ready: "))) as client:
            assert client.get("/v1/models").status_code == 401
            client.headers["Authorization"] = "Bearer key"
            events = stream(client, max_tokens=1900)
            assert next(events) is not None
            process.send_signal(signal.SIGTERM)
            line = wait_for_line(process, "finishing ")
            assert line == "finishing 1 requests, for 30 s; a second signal ends at once\n"
            process.send_signal(signal.SIGTERM)
            with pytest.raises(httpx.RemoteProtocolError):
                list(events)
        assert process.wait(60) == 128 + signal.SIGTERM


def test_while_the_model_loads_requests_get_503_and_a_signal_ends_at_once(tmp_path: Path) -> None:
    model = tmp_path / "slow.gguf"
    os.mkfifo(model)  # whoever reads it waits for a writer
    with started("serve", model, "--port", "0") as process:
        address = address_in(wait_for_line(process, "loading "))
        with client_of(address) as client:
            health = client.get("/health")
            assert health.status_code == 503
            assert "is being loaded" in health.json()["error"]["message"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM


@pytest.fixture
def bad_model(tiny_model: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    path = tmp_path / "bad.gguf"
    content = {"cut": tiny_model.read_bytes()[:100_000], "text": b"hello", "empty": b"", "missing": None}[request.param]
    if content is not None:
        path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("bad_model", "message"),
    [
        ("missing", "cannot read the model {path}: No such file or directory"),
        ("text", "{path} is not a GGUF file: it starts with b'hell', not with b'GGUF'"),
        ("empty", "{path} is not a GGUF file: it starts with b'', not with b'GGUF'"),
        ("cut", "cannot load {path}: .*incomplete"),
    ],
    indirect=["bad_model"],
)
def test_a_model_that_cannot_be_loaded_is_told_in_one_line(bad_model: Path, message: str) -> None:
    result = run("serve", bad_model, "--port", "0", "--log-level", "warning")
    loading, error, *rest = result.stderr.splitlines()
    assert loading.startswith(f"loading {bad_model}; ")
    assert re.match(f"error: {message.format(path=re.escape(str(bad_model)))}", error), error
    assert not rest
    assert result.returncode == 1


def test_a_port_in_use_is_told_before_the_model_is_read() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = run("serve", "missing.gguf", "--port", str(port))
    assert result.returncode == 1
    assert result.stderr == (
        f"error: port {port} on 127.0.0.1 is in use by another process: end that one, or give another --port\n"
    )


@pytest.mark.parametrize("host", ["no such host", "192.0.2.1"])
def test_an_address_that_is_not_ours_is_told(host: str) -> None:
    result = run("serve", "missing.gguf", "--host", host, "--port", "0")
    assert result.returncode == 1
    assert re.fullmatch(rf"error: cannot listen on {host}, port 0: [^\n]+\n", result.stderr)


def test_a_bad_file_is_told_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    file.write_text("models: [{path: a.gguf}]\nstreams:\n  lanes: [{places: many}]\n")
    result = run("serve", "--config", file)
    assert result.returncode == 2
    assert result.stderr.startswith(f"error: {file}:3: streams.lanes[0].places must be a valid integer")
    assert result.stderr.count("\n") == 1

"""What a server writes while it serves, in processes of their own: each line as it should be, and no prompt."""

from __future__ import annotations

import json
import re
import signal
import socket
from pathlib import Path

import pytest

from tests.api.collector import collecting
from tests.cli.process import errors_of, started, wait_for_line
from tests.cli.test_serve import address_in, client_of

SECRET = "a secret prompt"


def exercise(address: str) -> None:
    """Ask for a completion, for a path that tries to forge a line, and for something that is no HTTP."""
    with client_of(address) as client:
        body = {"prompt": SECRET, "max_tokens": 3, "ignore_eos": True, "priority": 2}
        answer = client.post("/v1/completions", json=body, headers={"X-Request-Id": "mine"})
        assert answer.status_code == 200
        assert client.get("/x%0AERROR%20forged").status_code == 404
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(b"no HTTP\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 400")


def test_in_json_every_line_is_an_object_and_spans_go_where_the_environment_says(tiny_model: Path) -> None:
    arguments = ("serve", tiny_model, "--port", "0", "--threads", "1", "--log-format", "json", "--log-level", "debug")
    with collecting() as collector:
        variables = {"LLAMALANE_API__TRACES__EXPORT": "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
        with started(*arguments, **variables, OTEL_SERVICE_NAME="from the environment") as process:
            ready = wait_for_line(process, "ready: ")
            exercise(address_in(json.loads(ready)["message"]))
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
            lines = [json.loads(line) for line in (ready, *errors_of(process))]
        spans = {span.name: span for span in collector.spans(3)}
    assert {"time", "level", "logger", "message"} <= set.intersection(*map(set, lines))
    assert SECRET not in str(lines)
    asked, nowhere = (line for line in lines if line["logger"] == "llamalane.api.access")
    times = {name: asked.pop(name) for name in ("queue_seconds", "first_token_seconds", "duration_seconds")}
    assert times["queue_seconds"] <= times["first_token_seconds"] <= times["duration_seconds"]
    trace = asked.pop("trace_id")
    assert spans["text_completion tiny"].trace_id.hex() == spans["POST /v1/completions"].trace_id.hex() == trace
    del asked["time"]
    assert asked == {
        "level": "info",
        "logger": "llamalane.api.access",
        "message": "request",
        "request_id": "mine",
        "method": "POST",
        "path": "/v1/completions",
        "status": 200,
        "priority": 2,
        "prompt_tokens": len(SECRET) + 1,
        "cached_tokens": 0,
        "completion_tokens": 3,
    }
    assert nowhere["path"] == "/x\nERROR forged"
    [refused] = [line for line in lines if line["logger"] == "uvicorn.error"]
    assert refused["level"] == "warning"


@pytest.mark.parametrize("level", ["debug"])
def test_as_text_every_line_begins_with_its_time_or_is_news_for_the_user(tiny_model: Path, level: str) -> None:
    with started("serve", tiny_model, "--port", "0", "--threads", "1", "--log-level", level) as process:
        exercise(address_in(wait_for_line(process, "ready: ")))
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        lines = list(errors_of(process))
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ [a-z_.]+: ", line) for line in lines)
    assert not [line for line in lines if SECRET in line]
    assert any("id=mine POST /v1/completions status=200 level=2 wait=" in line for line in lines)
    assert any("GET /x%0AERROR%20forged status=404" in line for line in lines)
    assert any("WARNING uvicorn.error: Invalid HTTP request received." in line for line in lines)

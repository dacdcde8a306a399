"""Servers in processes of their own."""

from __future__ import annotations

import psutil
import pytest

from llamalane.bench.peers.builds import features
from llamalane.bench.server import free_port, run_server
from llamalane.errors import LlamalaneError

# Answers every path in the same way, which is all that health and models need here.
PROGRAM = """
import http.server, json, sys

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        content = json.dumps({"status": "ok", "data": [{"id": "the-model"}]}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def test_a_server_runs_while_the_context_is_open() -> None:
    port = free_port()
    with run_server(["-c", PROGRAM, str(port)], port) as server:
        process = psutil.Process(server.pid)
        target = server.target()
        assert process.is_running()
    assert (target.model, target.url) == ("the-model", f"http://127.0.0.1:{port}")
    assert not process.is_running()


def test_a_server_is_stopped_after_an_error() -> None:
    port = free_port()
    processes = []

    def fail() -> None:
        with run_server(["-c", PROGRAM, str(port)], port) as server:
            processes.append(psutil.Process(server.pid))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not processes[0].is_running()


def test_a_server_that_ends_at_once_tells_why() -> None:
    program = "import sys; print('no such model'); sys.exit(3)"
    with (
        pytest.raises(LlamalaneError, match=r"(?s)ended with code 3 before it was healthy.*no such model"),
        run_server(["-c", program], free_port()),
    ):
        pytest.fail("it was never healthy")


def test_the_features_of_a_build_are_those_that_are_on() -> None:
    assert features("CPU : SSE3 = 1 | AVX512 = 0 | AVX2 = 1 | OPENMP = 1 | \n") == "CPU: SSE3 AVX2 OPENMP"

"""What a server refuses of a request's head and body, on a real socket."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from llamalane.api.limits import MAX_HEAD_BYTES, MAX_HEADERS
from tests.cli.process import started, wait_for_line
from tests.cli.test_serve import address_in

POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"


@pytest.fixture(scope="module")
def address(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    file = tmp_path_factory.mktemp("limits") / "server.yaml"
    file.write_text(
        f"models: [{{path: {tiny_model}}}]\nstreams: {{lanes: [{{places: 1, threads: 1}}]}}\n"
        "api: {port: 0, max_body_bytes: 2048, body_timeout: 0.2}\n"
    )
    with started("serve", "--config", file) as process:
        host, port = address_in(wait_for_line(process, "ready: ")).removeprefix("http://").split(":")
        yield host, int(port)


def answered(address: tuple[str, int], *pieces: bytes) -> tuple[int, bytes]:
    """Send pieces of a request, and return the status and the body of what comes until the server hangs up."""
    with socket.create_connection(address, timeout=30) as connection:
        try:
            for piece in pieces:
                connection.sendall(piece)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has answered, and reads no more
        received = b""
        try:
            while data := connection.recv(65536):
                received += data
        except ConnectionResetError:
            pass
    head, _, body = received.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


def code_of(body: bytes) -> str:
    code: str = json.loads(body)["error"]["code"]
    return code


def test_a_flood_of_headers(address: tuple[str, int]) -> None:
    headers = b"".join(b"X-%d: y\r\n" % number for number in range(MAX_HEADERS))
    status, body = answered(address, POST, headers, b"Content-Length: 0\r\n\r\n")
    assert (status, code_of(body)) == (431, "headers_too_large")


def test_a_long_header_that_is_allowed(address: tuple[str, int]) -> None:
    status, _ = answered(
        address, b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Long: ", b"y" * 60_000, b"\r\n\r\n"
    )
    assert status == 200


def test_a_huge_header(address: tuple[str, int]) -> None:
    status, body = answered(address, POST, b"X-Large: ", b"y" * MAX_HEAD_BYTES, b"\r\nContent-Length: 0\r\n\r\n")
    assert (status, code_of(body)) == (431, "headers_too_large")


@pytest.mark.parametrize("ending", [b"\r\n\r\n", b""], ids=["complete", "endless"])
def test_a_header_without_measure_is_not_read_to_its_end(address: tuple[str, int], ending: bytes) -> None:
    status, _ = answered(address, POST, b"X-Large: ", b"y" * (16 * MAX_HEAD_BYTES), ending)
    assert status == 400


def test_a_body_that_is_too_large_unread(address: tuple[str, int]) -> None:
    status, body = answered(address, POST, b"Content-Length: 2049\r\n\r\n")
    assert (status, code_of(body)) == (413, "request_too_large")


def test_a_body_that_turns_out_too_large(address: tuple[str, int]) -> None:
    chunk = b"400\r\n" + b"x" * 1024 + b"\r\n"
    status, body = answered(address, POST, b"Transfer-Encoding: chunked\r\n\r\n", chunk, chunk, chunk)
    assert (status, code_of(body)) == (413, "request_too_large")


@pytest.mark.parametrize("begun", [b"", b'{"prompt": '], ids=["not at all", "in part"])
def test_a_body_that_does_not_come(address: tuple[str, int], begun: bytes) -> None:
    status, body = answered(address, POST, b"Content-Length: 100\r\n\r\n", begun)
    assert (status, code_of(body)) == (408, "request_timeout")

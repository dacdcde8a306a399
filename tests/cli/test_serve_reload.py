"""A server that reads its configuration again, speaks HTTPS, and bounds what comes in."""

from __future__ import annotations

import re
import shutil
import signal
import ssl
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.api.test_keys import ALICE, BOB, sha256
from tests.cli.process import Process, errors_of, run, started, wait_for_line

ADDRESS = re.compile(r"https?://127\.0\.0\.1:(\d+)")


def address_in(line: str) -> str:
    found = ADDRESS.search(line)
    assert found is not None, line
    return found[0]


def status(address: str, key: str) -> int:
    return httpx.get(f"{address}/v1/models", headers={"x-api-key": key}, trust_env=False).status_code


def write(file: Path, model: Path, key: str, scheduler: str = "{}", port: int = 0) -> None:
    file.write_text(
        f"models: [{{path: {model}}}]\nstreams: {{lanes: [{{places: 1, threads: 1}}]}}\nscheduler: {scheduler}\n"
        f"api:\n  port: {port}\n  keys: [{{name: someone, sha256: {sha256(key)}}}]\n"
    )


def hang_up(process: Process, answer: str) -> str:
    process.send_signal(signal.SIGHUP)
    return wait_for_line(process, answer)


def test_sighup_reads_the_configuration_again(tiny_model: Path, tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    write(file, tiny_model, ALICE)
    with started("serve", "--config", file) as process:
        address = address_in(wait_for_line(process, "ready: "))
        assert (status(address, ALICE), status(address, BOB)) == (200, 401)

        write(file, tiny_model, BOB, "{target_itl: 0.5, ceiling: 2, queue: {max_requests: 7}}", port=1)
        line = hang_up(process, "read the configuration again")
        assert line.endswith(
            "read the configuration again; changed: scheduler.queue.max_requests, scheduler.target_itl, api.keys\n"
        )
        assert wait_for_line(process, "restart").endswith("need a restart: scheduler.ceiling, api.port\n")
        assert (status(address, ALICE), status(address, BOB)) == (401, 200)

        file.write_text("models: [{path: m.gguf}]\nscheduler: {target_itl: soon}\n")
        line = hang_up(process, "the configuration stays as it was")
        assert f"{file}:2: scheduler.target_itl must be a valid number" in line
        assert status(address, BOB) == 200

        write(file, tiny_model, ALICE)
        hang_up(process, "read the configuration again")
        assert status(address, ALICE) == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert "Traceback" not in errors_of(process).read()


def test_without_a_file_sighup_ends_the_server_as_it_ends_any_process(tiny_model: Path) -> None:
    with started("serve", tiny_model, "--port", "0", "--threads", "1") as process:
        wait_for_line(process, "ready: ")
        process.send_signal(signal.SIGHUP)
        assert process.wait(60) == -signal.SIGHUP


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1, signed by itself, and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        [
            *(openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate),
        ],
        capture_output=True,
        check=True,
    )
    return certificate, key


def test_a_server_with_a_certificate_speaks_https(tiny_model: Path, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    options = ("--port", "0", "--threads", "1", "--ssl-certfile", cert, "--ssl-keyfile", key)
    with started("serve", tiny_model, *options) as process:
        address = address_in(wait_for_line(process, "ready: "))
        assert address.startswith("https://")
        trusted = ssl.create_default_context(cafile=str(cert))
        assert httpx.get(f"{address}/health", verify=trusted, trust_env=False).json() == {"status": "ok"}
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_a_certificate_that_cannot_be_used_is_told_before_the_model_is_read(tmp_path: Path) -> None:
    missing, text = tmp_path / "missing.pem", tmp_path / "text.pem"
    text.write_text("no certificate")
    for file, reason in ((missing, "No such file or directory"), (text, ".*PEM.*")):
        result = run("serve", "missing.gguf", "--port", "0", "--ssl-certfile", file)
        assert result.returncode == 1
        assert re.fullmatch(rf"error: the certificate {file} cannot be used: {reason}\n", result.stderr), result.stderr


def test_a_key_file_without_a_certificate_is_refused(tmp_path: Path) -> None:
    result = run("serve", "m.gguf", "--ssl-keyfile", tmp_path / "key.pem")
    assert result.returncode == 2
    assert result.stderr == "error: --ssl-keyfile: needs ssl_certfile beside it\n"


def test_a_keys_hash_is_printed() -> None:
    result = run("hash-key", stdin=f"{ALICE}\n")
    assert (result.returncode, result.stdout) == (0, f"{sha256(ALICE)}\n")
    assert ALICE not in result.stderr


@pytest.mark.parametrize(
    ("key", "message"),
    [("", "at least 16 characters"), ("a-short-one", "at least 16"), ("two words, and long enough", "one word")],
)
def test_a_key_that_is_too_short_or_no_word_is_refused(key: str, message: str) -> None:
    result = run("hash-key", stdin=key)
    assert result.returncode == 2
    assert message in result.stderr
    assert not key or key not in result.stderr


def test_checking_a_file_checks_its_keys(tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    file.write_text("models: [{path: m.gguf}]\napi: {keys: [{name: alice}]}\n")
    result = run("config", "check", "--no-models", file)
    assert result.returncode == 2
    assert "the key 'alice' has no sha256" in result.stderr
    assert run("config", "check", "--no-models", file, LLAMALANE_API_KEYS=f"alice={ALICE}").returncode == 0

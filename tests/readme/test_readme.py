"""What the README tells a newcomer to do works as it is written there."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def block(language: str, mark: str) -> str:
    """Return the first code block of that language that holds `mark`."""
    blocks: list[str] = re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    return next(text for text in blocks if mark in text)


def python(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.fixture
def folder(tmp_path: Path, smollm2: Path) -> Path:
    """A folder with the demonstration model in it."""
    (tmp_path / smollm2.name).symlink_to(smollm2)
    (tmp_path / "llamalane.yaml").write_text(block("yaml", "models:"))
    return tmp_path


@contextlib.contextmanager
def served() -> Iterator[None]:
    """Run `make serve` until the block ends."""
    # Without make's own variables, which an outer `make test` hands down.
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS"))}
    command = block("sh", "make serve").strip()
    with subprocess.Popen(
        command.split(),
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as server:
        assert server.stdout is not None
        output = []
        try:
            for line in server.stdout:
                output.append(line)
                if line.startswith("ready:"):
                    break
            else:
                pytest.fail("make serve ended: " + "".join(output))
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGTERM)


@pytest.mark.smollm2
@pytest.mark.timeout(2400)  # on a machine where nothing is set up yet, make compiles llama.cpp first
def test_make_serve_answers_the_curl_command() -> None:
    with served():
        command = block("sh", "curl http://127.0.0.1:8000")
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, check=True)
    answer = json.loads(done.stdout)
    assert "river" in answer["choices"][0]["message"]["content"].lower()
    assert answer["priority"] in (1, "interactive")


@pytest.mark.smollm2
def test_embedding_example_runs(folder: Path) -> None:
    code = block("python", "from llamalane import Engine")
    done = python(code, folder)
    assert done.returncode == 0, done.stderr
    assert "llama" in done.stdout.lower()


@pytest.mark.smollm2
def test_mounting_example_builds_an_app(folder: Path) -> None:
    code = block("python", "app.mount(")
    done = python(code + "\nassert any(route.path == '/llm' for route in app.routes)", folder)
    assert done.returncode == 0, done.stderr


@pytest.mark.smollm2
def test_yaml_example_is_a_valid_configuration(folder: Path) -> None:
    command = [sys.executable, "-m", "llamalane", "config", "check", "llamalane.yaml"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_make_commands_are_targets() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for command in re.findall(r"^make (\w+)", README, re.MULTILINE):
        assert re.search(rf"^{command}:", makefile, re.MULTILINE), command


def test_continuous_integration_runs_the_test_command() -> None:
    assert "make test" in (ROOT / ".ci" / "run").read_text()

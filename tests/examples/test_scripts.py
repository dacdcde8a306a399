"""The examples that are programs, run as such."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from llamalane.api import create_app
from llamalane.scheduler import EngineConfig, ModelConfig
from tests.api.serving import served
from tests.examples.conftest import CLIENTS, EXAMPLES, run_example

needs_clients = pytest.mark.skipif(
    not CLIENTS.exists(), reason="LangChain and LlamaIndex are not installed: make examples does that"
)
LEVEL = re.compile(r'llamalane_request_queue_time_seconds_count\{[^}]*level="(\d)"[^}]*\} (\d+)')


def test_every_example_is_told_of() -> None:
    told = set(re.findall(r"\[([\w.]+)\]\(\1\)", (EXAMPLES / "README.md").read_text()))
    files = {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".yaml")}
    assert told == files


def test_blocking_script(tiny_model: Path) -> None:
    done = run_example("blocking_script", tiny_model)
    assert (done.returncode, done.stderr) == (0, "")
    sentences = re.findall(r"^(\w+): .*?\((\d+) tokens\)$", done.stdout, re.MULTILINE | re.DOTALL)
    assert [subject for subject, _ in sentences] == ["rivers", "mountains", "deserts", "forests"]


def test_batch_beside_chat(tiny_model: Path, tmp_path: Path) -> None:
    articles = tmp_path / "articles.txt"
    articles.write_text("".join(f"Article {number}\n" for number in range(12)) + "too long " * 5000 + "\n")
    summaries = tmp_path / "summaries.txt"
    done = run_example("batch_beside_chat", tiny_model, articles, summaries, stdin="Hello\n\nWhat is a llama?\n")
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"\(\d+\.\d\d s to the first token; \d+ requests of the batch run\)", done.stdout)) == 3
    lines = summaries.read_text().splitlines()
    assert len(lines) == 13
    assert "shorten the prompt" in lines[-1]


@pytest.fixture(scope="module")
def server(tiny_model: Path) -> Iterator[str]:
    """The address of a server whose model is called llm, as in the examples."""
    with served(create_app(EngineConfig(models=[ModelConfig(path=tiny_model, name="llm")]))) as url:
        yield url


def levels_served(url: str) -> dict[int, int]:
    """Count the requests that were served so far, by level."""
    metrics = httpx.get(f"{url}/metrics").text
    return {int(level): int(count) for level, count in LEVEL.findall(metrics) if int(count)}


@needs_clients
@pytest.mark.parametrize(("name", "patient"), [("langchain_chat", 2), ("llamaindex_chat", 1)])
def test_clients_of_a_server(server: str, name: str, patient: int) -> None:
    before = levels_served(server)
    done = run_example(name, f"{server}/v1", python=CLIENTS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    after = levels_served(server)
    assert {level: after[level] - before.get(level, 0) for level in after} == {1: 1, 5: patient}

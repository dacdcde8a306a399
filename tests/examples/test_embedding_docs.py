"""What docs/embedding.md shows works as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.process import environment
from tests.examples.conftest import EXAMPLES

DOCS = Path(__file__).parents[2] / "docs" / "embedding.md"
BLOCKS: list[str] = re.findall(r"^```python\n(.*?)^```", DOCS.read_text(), re.MULTILINE | re.DOTALL)

SERVE = """
from fastapi.testclient import TestClient
with TestClient(app) as client:
    print(client.get("/internal/v1/models").status_code, client.get("/public/v1/models").status_code)
"""
CALL = """
from fastapi import FastAPI
from fastapi.testclient import TestClient
from contextlib import asynccontextmanager
from llamalane import Engine, EngineConfig

@asynccontextmanager
async def lifespan(app):
    async with Engine(EngineConfig.for_model("model.gguf")) as engine:
        yield {"engine": engine}

app = FastAPI(lifespan=lifespan)
app.get("/")(summarize)
with TestClient(app) as client:
    print(client.get("/", params={"text": "Llamas"}).status_code)
"""


def block(mark: str) -> str:
    """The one block of Python that holds `mark`."""
    [found] = [text for text in BLOCKS if mark in text]
    return found


@pytest.fixture
def folder(tmp_path: Path, tiny_model: Path) -> Path:
    (tmp_path / "model.gguf").symlink_to(tiny_model)
    (tmp_path / "llamalane.yaml").write_text("models: [{path: model.gguf}]\nscheduler: {drain_timeout: 0}\n")
    (tmp_path / "keys.yaml").write_text(f"keys:\n  - {{name: somebody, sha256: {'ab' * 32}}}\n")
    (tmp_path / "own_app.py").write_text((EXAMPLES / "own_app.py").read_text())
    return tmp_path


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment(MODEL="model.gguf", PYTHONIOENCODING="utf-8"),
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )


def test_an_engine_for_code_without_an_event_loop(folder: Path) -> None:
    done = run(folder, "-c", block("with BlockingEngine("))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_a_lifespan_of_ones_own(folder: Path) -> None:
    code = block('yield {"engine": engine}')
    done = run(folder, "-c", f"{code}\nfrom fastapi.testclient import TestClient\nwith TestClient(app): pass")
    assert (done.returncode, done.stderr) == (0, "")


def test_several_apps_share_an_engine(folder: Path) -> None:
    done = run(folder, "-c", block('app.mount("/public"') + SERVE)
    assert (done.returncode, done.stdout) == (0, "200 401\n"), done.stderr


def test_handlers_without_async_reach_an_engine(folder: Path) -> None:
    done = run(folder, "-c", block("anyio.from_thread.run") + CALL)
    assert (done.returncode, done.stdout) == (0, "200\n"), done.stderr


def test_an_app_is_tested_with_a_tiny_model(folder: Path) -> None:
    (folder / "test_own_app.py").write_text(block("def test_summaries"))
    done = run(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_own_app.py")
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_every_block_is_run() -> None:
    assert len(BLOCKS) == 5

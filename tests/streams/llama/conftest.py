from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from llamalane.ids import SequenceId
from llamalane.streams.llama import Batch, Context, ContextOptions, Model, ModelOptions, Vocabulary
from tests.models.tiny_gguf import Kind

OPTIONS = ContextOptions(cells=256, sequences=3, max_step_tokens=32, micro_batch=16, threads=1)
PROMPT = [1, *range(70, 90)]


@pytest.fixture(scope="session")
def model(tiny_model: Path) -> Iterator[Model]:
    with Model(ModelOptions(path=tiny_model)) as model:
        yield model


@pytest.fixture(scope="session")
def models(tiny_models: Mapping[Kind, Path]) -> Iterator[Mapping[Kind, Model]]:
    loaded = {kind: Model(ModelOptions(path=tiny_models[kind])) for kind in Kind}
    yield loaded
    for model in loaded.values():
        model.close()


@pytest.fixture(scope="session")
def gemma3() -> Path:
    """Gemma 3 270M, a real model with a sliding window, which few need: `make gemma` fetches it."""
    path = Path(sys.prefix, "models", "gemma-3-270m-q4_k_m.gguf")
    if not path.is_file():
        pytest.skip("Gemma 3 270M is not there; fetch it with: make gemma")
    return path


@pytest.fixture
def vocabulary(model: Model) -> Vocabulary:
    return model.vocabulary


@pytest.fixture
def context(model: Model) -> Iterator[Context]:
    context = Context(model, OPTIONS)
    yield context
    context.close()


def step(context: Context, *rows: tuple[SequenceId, list[int]]) -> npt.NDArray[np.float32]:
    """Compute tokens after what the sequences hold, and return a copy of each one's logits."""
    batch = Batch(256)
    for sequence, tokens in rows:
        batch.add(sequence, tokens, context.length(sequence), output=True)
    context.decode(batch)
    return context.logits(batch).copy()

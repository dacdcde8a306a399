from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from llamalane.streams.llama import Context, ContextOptions, Model, ModelOptions, Vocabulary
from tests.models.tiny_gguf import Kind

OPTIONS = ContextOptions(cells=256, sequences=3, max_step_tokens=32, micro_batch=16, threads=1)


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


@pytest.fixture
def vocabulary(model: Model) -> Vocabulary:
    return model.vocabulary


@pytest.fixture
def context(model: Model) -> Iterator[Context]:
    context = Context(model, OPTIONS)
    yield context
    context.close()

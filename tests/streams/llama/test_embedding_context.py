"""Contexts that embed, against llama.cpp asked directly for one text at a time."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from llamalane.errors import ContextError, ModelLoadError, StepAbandonedError
from llamalane.ids import SequenceId
from llamalane.streams.llama import (
    Batch,
    Context,
    ContextOptions,
    EmbeddingContext,
    EmbeddingOptions,
    Model,
    ModelOptions,
    Pooling,
    Vector,
    library,
)
from llamalane.streams.llama.footprint import measure_cells, measure_embedding_context
from tests.models.tiny_embedders import CLS, SEP, TRAIN_CONTEXT, WIDTH, tokens_of, write_encoder
from tests.models.tiny_gguf import Kind, write_model

TEXTS = [tokens_of(text) for text in ("a short one", "another text, longer than the first", "x", "the last of four")]
CLOSE = 1e-4
"""So much may a number differ between steps of different shapes; the vectors have a length of some units."""


def options(**changes: Any) -> EmbeddingOptions:
    values: dict[str, Any] = {"sequences": 4, "step_tokens": 128, "limit": 64, "threads": 1, "pooling": Pooling.CLS}
    return EmbeddingOptions(**values | {"flash_attention": "off"} | changes)


def embed(context: EmbeddingContext, texts: Sequence[Sequence[int]]) -> list[Vector]:
    batch = Batch(context.options.step_tokens)
    for number, tokens in enumerate(texts):
        batch.add_text(SequenceId(number), tokens)
    return context.embed(batch)


def token_vectors(model: Model, tokens: Sequence[int]) -> Vector:
    """What llama.cpp says of each token of a text when it pools nothing, shape (tokens, width)."""
    api = library().api
    params = api.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = 256
    params.embeddings, params.pooling_type, params.flash_attn_type, params.n_threads = True, 0, 0, 1
    pointer = api.llama_init_from_model(model.pointer, params)
    batch = Batch(256)
    batch.add_text(SequenceId(0), tokens)
    assert api.llama_decode(pointer, batch.struct) == 0
    rows = [
        np.ctypeslib.as_array(api.llama_get_embeddings_ith(pointer, row), (model.width,)).copy()
        for row in range(len(tokens))
    ]
    api.llama_free(pointer)
    return np.array(rows)


@pytest.fixture(scope="module")
def encoder(tiny_encoder: Path) -> Iterator[Model]:
    with Model(ModelOptions(path=tiny_encoder)) as model:
        yield model


@pytest.fixture(scope="module")
def ranker(tiny_ranker: Path) -> Iterator[Model]:
    with Model(ModelOptions(path=tiny_ranker)) as model:
        yield model


@pytest.fixture(scope="module")
def causal(tiny_model: Path) -> Iterator[Model]:
    with Model(ModelOptions(path=tiny_model)) as model:
        yield model


@pytest.mark.parametrize(
    ("pooling", "pool"),
    [
        (Pooling.CLS, lambda rows: rows[0]),
        (Pooling.LAST, lambda rows: rows[-1]),
        (Pooling.MEAN, lambda rows: rows.mean(axis=0)),
    ],
    ids=lambda value: value.value if isinstance(value, Pooling) else "",
)
@pytest.mark.parametrize("name", ["encoder", "causal"])
def test_texts_of_one_step_get_what_llama_cpp_says_of_each_alone(
    name: str, pooling: Pooling, pool: Any, request: pytest.FixtureRequest
) -> None:
    model: Model = request.getfixturevalue(name)
    context = EmbeddingContext(model, options(pooling=pooling))
    for vector, tokens in zip(embed(context, TEXTS), TEXTS, strict=True):
        assert vector.shape == (model.width,)
        assert np.abs(vector - pool(token_vectors(model, tokens))).max() < CLOSE
    context.close()


def test_a_causal_model_looks_back_only_and_an_encoder_both_ways(encoder: Model, causal: Model) -> None:
    for model, same in ((causal, True), (encoder, False)):
        context = EmbeddingContext(model, options())
        short, long = embed(context, [tokens_of("abc"), tokens_of("abc and more")])
        assert bool(np.abs(short - long).max() < CLOSE) is same
        context.close()


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("pooling", [Pooling.MEAN, Pooling.LAST])
def test_however_a_model_remembers_texts_do_not_mix(
    kind: Kind, pooling: Pooling, tiny_models: Mapping[Kind, Path]
) -> None:
    with Model(ModelOptions(path=tiny_models[kind])) as model:
        context = EmbeddingContext(model, options(pooling=pooling))
        together = embed(context, TEXTS)
        for _ in range(2):  # nothing stays from one step to the next
            alone = [embed(context, [tokens])[0] for tokens in TEXTS]
            assert all(
                np.abs(one - other).max() < 0.02 * np.abs(one).max() for one, other in zip(together, alone, strict=True)
            )
        context.close()


def test_scores_come_from_the_models_head(ranker: Model) -> None:
    context = EmbeddingContext(ranker, options(pooling=Pooling.RANK))
    scores = embed(context, TEXTS)
    assert context.width == 1
    assert [score.shape for score in scores] == [(1,)] * 4
    alone = [float(embed(context, [tokens])[0][0]) for tokens in TEXTS]
    assert np.allclose(np.ravel(scores), alone, atol=CLOSE)
    assert np.std(alone) > 0.01, "it has no opinion"
    context.close()


def test_a_head_may_give_several_scores(tmp_path: Path) -> None:
    write_encoder(tmp_path / "many.gguf", gguf.PoolingType.RANK, head=True, labels=3)
    with Model(ModelOptions(path=tmp_path / "many.gguf")) as model:
        context = EmbeddingContext(model, options(pooling=Pooling.RANK))
        first, second = embed(context, TEXTS[:2])
        assert first.shape == second.shape == (3,)
        context.close()


def test_the_file_tells_the_pooling(encoder: Model, ranker: Model, causal: Model, tmp_path: Path) -> None:
    assert (encoder.pooling, ranker.pooling, causal.pooling) == (Pooling.CLS, Pooling.RANK, None)
    write_model(tmp_path / "last.gguf", Kind.DENSE, pooling=gguf.PoolingType.LAST)
    write_encoder(tmp_path / "none.gguf", gguf.PoolingType.NONE)
    for name, pooling in (("last", Pooling.LAST), ("none", None)):
        with Model(ModelOptions(path=tmp_path / f"{name}.gguf")) as model:
            assert model.pooling is pooling


def test_a_model_without_a_head_gives_no_scores(encoder: Model, causal: Model) -> None:
    for model in (encoder, causal):
        with pytest.raises(ModelLoadError, match="no head that scores"):
            EmbeddingContext(model, options(pooling=Pooling.RANK))


def test_an_encoder_cannot_generate(encoder: Model) -> None:
    for attempt in (
        lambda: Context(encoder, ContextOptions(cells=256, sequences=1, max_step_tokens=8, micro_batch=8, threads=1)),
        lambda: measure_cells(encoder),
    ):
        with pytest.raises(ModelLoadError, match="task: embed"):
            attempt()


def test_what_would_end_the_process_is_refused(encoder: Model) -> None:
    context = EmbeddingContext(encoder, options(limit=TRAIN_CONTEXT))
    for fill in (
        lambda batch: None,
        lambda batch: batch.add_text(SequenceId(0), [CLS] * (TRAIN_CONTEXT + 1)),
        lambda batch: batch.add_text(SequenceId(4), [CLS, SEP]),
        lambda batch: batch.add_text(SequenceId(-1), [CLS, SEP]),
        lambda batch: batch.add_text(SequenceId(0), [CLS, 10**6]),
        lambda batch: batch.add_text(SequenceId(0), [-1]),
        lambda batch: [batch.add_text(SequenceId(0), [CLS, SEP]) for _ in range(2)],
        lambda batch: batch.add(SequenceId(0), [CLS, SEP], 3, output=True),
        lambda batch: [batch.add_text(SequenceId(number), [CLS] * 60) for number in range(3)],
    ):
        batch = Batch(256)
        fill(batch)
        with pytest.raises(ContextError):
            context.embed(batch)
    assert len(embed(context, TEXTS)) == 4, "a refusal has harmed the context"
    context.close()
    context.close()
    with pytest.raises(ContextError, match="closed"):
        embed(context, TEXTS)


@pytest.mark.parametrize(
    "changes",
    [
        {"sequences": 0},
        {"sequences": 257},
        {"limit": 0},
        {"threads": 0},
        {"step_tokens": 63},
        {"sequences": 200, "step_tokens": 128},
        {"flash_attention": "maybe"},
        {"limit": TRAIN_CONTEXT + 1},
    ],
)
def test_options_that_cannot_be_used_are_refused(changes: dict[str, Any], encoder: Model) -> None:
    with pytest.raises(ContextError):
        EmbeddingContext(encoder, options(**changes)).close()


@pytest.mark.parametrize("name", ["encoder", "causal"])
def test_a_step_can_be_abandoned_and_the_next_one_is_right(name: str, request: pytest.FixtureRequest) -> None:
    model: Model = request.getfixturevalue(name)
    context = EmbeddingContext(model, options())
    before = embed(context, TEXTS)
    context.interrupt(True)
    with pytest.raises(StepAbandonedError):
        embed(context, TEXTS)
    context.interrupt(False)
    assert all(np.array_equal(one, other) for one, other in zip(before, embed(context, TEXTS), strict=True))
    context.close()


def test_the_footprint_is_what_llama_cpp_comes_to_take(encoder: Model, causal: Model) -> None:
    for model in (encoder, causal):
        with Model(ModelOptions(path=model.options.path, weights=False)) as hollow:
            small = measure_embedding_context(hollow, options())
            large = measure_embedding_context(hollow, options(step_tokens=2048))
        assert (small.cells > 0) is (model is causal)
        assert large.host - small.host >= 1920 * 4 * (model.vocabulary.size + model.width)


def test_vectors_are_copies(encoder: Model) -> None:
    context = EmbeddingContext(encoder, options())
    (first,) = embed(context, TEXTS[:1])
    kept = first.copy()
    embed(context, TEXTS[1:])
    context.close()
    assert np.array_equal(first, kept)
    assert first.dtype == np.float32
    assert WIDTH * ctypes.sizeof(ctypes.c_float) == first.nbytes

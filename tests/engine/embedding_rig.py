"""Engines that embed, and what tests put between a lane and its context."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from llamalane.clock import MonotonicClock
from llamalane.ids import SequenceId
from llamalane.scheduler import EngineConfig, Observer
from llamalane.scheduler.assembly import OpenEmbeddingContext
from llamalane.streams.embedding_lane import EmbeddingStepContext
from llamalane.streams.llama import Batch, EmbeddingContext, EmbeddingOptions, Model, ModelOptions, Pooling, Vector
from tests.engine.running import EXACT, PART, WatchedEngine

PLACES = 4
"""Of the lane that embeds, and of the one that generates."""


def embedding_config(
    models: Sequence[Mapping[str, Any]],
    *,
    generating: Path | None = None,
    places: int = PLACES,
    micro_batch: int = 512,
    lanes: int = 1,
    **scheduler: Any,
) -> EngineConfig:
    """An engine with a lane for each of `models`, or `lanes` of them, and one for the model that generates."""
    entries: list[Mapping[str, Any]] = [*models]
    rows: list[dict[str, Any]] = [
        {"name": f"{model['name']}-lane", "model": model["name"], "places": places, "threads": 1, "count": lanes}
        for model in models
    ]
    if generating is not None:
        entries.insert(0, {"path": generating, "name": "tiny"})
        rows.insert(0, {"name": "generating", "places": PLACES, "threads": 1})
    return EngineConfig.model_validate(
        {
            "models": entries,
            "streams": {"lanes": rows, "micro_batch": micro_batch},
            "kv": EXACT.model_dump() | {"budget": PART * PLACES},
            "scheduler": scheduler,
        }
    )


class InterceptedEmbeddings:
    """A context that calls `before_step` with the texts of each step but the first, which only warms up."""

    def __init__(self, context: EmbeddingContext, before_step: Callable[[list[list[int]]], None]) -> None:
        self._context = context
        self._before_step = before_step
        self._warm = False

    def embed(self, batch: Batch) -> list[Vector]:
        if self._warm:
            tokens, start = batch.tokens.tolist(), 0
            texts = []
            for _, _, length in batch.parts:
                texts.append(tokens[start : start + length])
                start += length
            self._before_step(texts)
        self._warm = True
        return self._context.embed(batch)

    def interrupt(self, on: bool) -> None:
        self._context.interrupt(on)

    def set_threads(self, threads: int) -> None:
        self._context.set_threads(threads)

    def close(self) -> None:
        self._context.close()


def intercepted_embeddings(before_step: Callable[[list[list[int]]], None]) -> OpenEmbeddingContext:
    """Open real contexts that call `before_step` before each step."""

    def open_context(model: Model, options: EmbeddingOptions) -> EmbeddingStepContext:
        return InterceptedEmbeddings(EmbeddingContext(model, options), before_step)

    return open_context


def embedding_engine(
    config: EngineConfig,
    engines: list[WatchedEngine],
    before_step: Callable[[list[list[int]]], None] = lambda _: None,
    observer: Observer | None = None,
    **options: Any,
) -> WatchedEngine:
    """An engine that is checked after the test; see `WatchedEngine`."""
    engine = WatchedEngine(
        config,
        clock=MonotonicClock(),
        observer=observer,
        open_embedding_context=intercepted_embeddings(before_step),
        **options,
    )
    engines.append(engine)
    return engine


def said_by_llama_cpp(path: Path, texts: Sequence[Sequence[int]], pooling: Pooling) -> list[Vector]:
    """What a context of its own says of each text alone."""
    options = EmbeddingOptions(
        sequences=1, step_tokens=512, limit=96, threads=1, pooling=pooling, flash_attention="off"
    )
    vectors = []
    with Model(ModelOptions(path=path)) as model:
        context = EmbeddingContext(model, options)
        for tokens in texts:
            batch = Batch(512)
            batch.add_text(SequenceId(0), tokens)
            vectors += context.embed(batch)
        context.close()
    return vectors

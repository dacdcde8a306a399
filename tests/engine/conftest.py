"""Engines on the tiny model, and the check after each test that nothing of them is left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from llamalane.clock import MonotonicClock
from llamalane.scheduler import Observer
from llamalane.scheduler.assembly import OpenContext
from llamalane.streams.llama import Context
from tests.engine.running import WatchedBlockingEngine, WatchedEngine, config_for, lane_threads

MakeEngine = Callable[..., WatchedEngine]
"""Makes an engine; takes a model's path, an observer, and what `config_for` takes."""
MakeBlockingEngine = Callable[..., WatchedBlockingEngine]
"""Makes an engine for code without an event loop; takes what `BlockingEngine` takes, and what `config_for` takes."""


@pytest.fixture(autouse=True)
def engines() -> Iterator[list[WatchedEngine]]:
    """Every engine of the test. When it is over, all is back, and no lane's thread is left."""
    assert not lane_threads()
    engines: list[WatchedEngine] = []
    yield engines
    assert not lane_threads()
    for engine in engines:
        engine.check_conserved()


@pytest.fixture
def make_engine(tiny_model: Path, engines: list[WatchedEngine]) -> MakeEngine:
    """Makes engines, on the tiny model unless another is named."""

    def make(
        model: Path = tiny_model,
        *,
        observer: Observer | None = None,
        open_context: OpenContext = Context,
        **options: Any,
    ) -> WatchedEngine:
        config = config_for(model, **options)
        engine = WatchedEngine(config, clock=MonotonicClock(), observer=observer, open_context=open_context)
        engines.append(engine)
        return engine

    return make


@pytest.fixture
def make_blocking_engine(tiny_model: Path, engines: list[WatchedEngine]) -> MakeBlockingEngine:
    """Makes engines for code without an event loop, on the tiny model."""

    def make(
        *,
        observer: Observer | None = None,
        open_context: OpenContext = Context,
        allow_event_loop: bool = False,
        **options: Any,
    ) -> WatchedBlockingEngine:
        engine = WatchedBlockingEngine(
            config_for(tiny_model, **options),
            observer=observer,
            open_context=open_context,
            allow_event_loop=allow_event_loop,
        )
        engines.append(engine.watched)
        return engine

    return make

"""The engine for code without an event loop offers what the engine offers, with the same types."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import assert_type

import pytest

from llamalane.ids import Level, RequestId
from llamalane.scheduler import (
    BlockingEngine,
    BlockingRequestHandle,
    Changes,
    Engine,
    EngineConfig,
    EngineState,
    EngineStatistics,
    Explanation,
    Grammar,
    ModelInfo,
    PriorityLevels,
    RequestHandle,
    RequestState,
    Result,
)
from tests.engine.running import config_for

OWN = {"start", "close"}
"""What takes the place of `async with`."""
OF_THE_LOOP = {"view", "wait_for"}
"""What can only be read, or waited for, on the thread of the event loop: `start` returns when the engine is ready, and
whoever waited for a state that does not come any more would keep `close` from ending that thread."""


def public(value: object) -> set[str]:
    return {name for name in dir(value) if not name.startswith("_")}


def parameters(function: object) -> Mapping[str, inspect.Parameter]:
    assert callable(function)
    return inspect.signature(function).parameters


@pytest.fixture
def config(tiny_model: Path) -> EngineConfig:
    return config_for(tiny_model)


def test_both_engines_have_the_same_names(config: EngineConfig) -> None:
    assert public(BlockingEngine(config)) == (public(Engine(config)) | OWN) - OF_THE_LOOP


def test_both_engines_are_made_from_the_same() -> None:
    ours = dict(parameters(BlockingEngine))
    assert ours.pop("allow_event_loop").default is False
    assert ours == parameters(Engine)


@pytest.mark.parametrize("name", sorted(public(Engine) - OF_THE_LOOP))
def test_a_name_means_the_same_on_both_engines(name: str) -> None:
    theirs = getattr(Engine, name)
    ours = getattr(BlockingEngine, name)
    assert ours.__doc__ == theirs.__doc__
    assert ours.__doc__
    if inspect.isfunction(theirs):
        assert inspect.unwrap(ours) is theirs
        assert parameters(ours) == parameters(theirs)
        assert not inspect.iscoroutinefunction(ours)


def test_attributes_are_those_of_the_engine(config: EngineConfig) -> None:
    engine, blocking = Engine(config), BlockingEngine(config)
    for name in ("config", "state", "down", "model_name", "model_names"):
        assert getattr(blocking, name) == getattr(engine, name)
    assert blocking.levels.names == engine.levels.names


def test_both_handles_have_the_same_names() -> None:
    assert public(BlockingRequestHandle) == public(RequestHandle)
    for name in public(RequestHandle) - {"cancel", "result"}:
        assert getattr(BlockingRequestHandle, name).__doc__ == getattr(RequestHandle, name).__doc__
    assert list(parameters(BlockingRequestHandle.result)) == ["self", "timeout"]


def check_types(engine: BlockingEngine, grammar: Grammar, config: EngineConfig) -> None:
    """Never run: mypy checks that every type is known."""
    request = RequestId("name")
    messages = [{"role": "user", "content": "Hello"}]
    assert_type(engine.config, EngineConfig)
    assert_type(engine.levels, PriorityLevels)
    assert_type(engine.state, EngineState)
    assert_type(engine.down, bool)
    assert_type(engine.model_name, str)
    assert_type(engine.model_names, tuple[str, ...])
    assert_type(engine.model_info, ModelInfo)
    assert_type(engine.limit, int)
    assert_type(engine.most_choices, int)
    assert_type(engine.submit("Hello", priority="batch", tenant="me"), BlockingRequestHandle)
    assert_type(engine.submit([1, 2], deadline=1.5), BlockingRequestHandle)
    assert_type(engine.submit_chat(messages), BlockingRequestHandle)
    assert_type(engine.submit_tokens_nowait([1, 2]), BlockingRequestHandle)
    assert_type(engine.submit_choices("Hello", [request]), list[BlockingRequestHandle])
    assert_type(engine.submit_chat_choices(messages, [request]), list[BlockingRequestHandle])
    assert_type(engine.generate("Hello"), Result)
    assert_type(engine.chat(messages), Result)
    assert_type(engine.stats(), EngineStatistics)
    assert_type(engine.explain(request), Explanation)
    assert_type(engine.queue(), list[Explanation])
    assert_type(engine.reload(config), Changes)
    engine.compile_grammar(grammar)
    engine.drain(patience=1.0)
    engine.check_model("name")
    engine.cancel(request)
    engine.set_priority(request, 1)
    engine.pause_lane("main")
    engine.resume_lane("main")
    engine.submit("Hello", priority=1.5)  # type: ignore[arg-type]
    engine.submit("Hello", urgency=1)  # type: ignore[call-arg]
    engine.submit(17)  # type: ignore[arg-type]
    with engine as entered:
        assert_type(entered, BlockingEngine)
    handle = engine.submit("Hello")
    for text in handle:
        assert_type(text, str)
    assert_type(handle.result(timeout=1), Result)
    assert_type((handle.id, handle.level, handle.state, handle.seed), tuple[RequestId, Level, RequestState, int])

"""Models that embed or rerank, and their lanes, in a configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llamalane.errors import ConfigError
from llamalane.scheduler import EngineConfig

CHAT = "models:\n  - {path: chat.gguf}\n"
BOTH = CHAT + "  - {path: vectors.gguf, task: embed, aliases: [ada]}\n"


def read(folder: Path, text: str) -> EngineConfig:
    file = folder / "engine.yaml"
    file.write_text(text)
    return EngineConfig.from_yaml(file)


def lanes(*rows: str) -> str:
    return "streams:\n  lanes:\n" + "".join(f"    - {{{row}}}\n" for row in rows)


def test_each_lane_computes_the_model_that_it_names_or_else_the_one_that_generates(tmp_path: Path) -> None:
    config = read(tmp_path, BOTH + lanes("name: main", "name: v, model: vectors, count: 2", "name: w, model: ada"))
    chat, vectors = config.models
    assert (config.generating_model, config.embedding_models) == (chat, [vectors])
    assert [lane.name for lane in config.lanes_of(chat)] == ["main"]
    assert [lane.name for lane in config.lanes_of(vectors)] == ["v-1", "v-2", "w"]
    assert config.lanes_of(None) == []
    part = config.for_generation()
    assert part.models == [chat]
    assert [lane.name for lane in part.streams.lanes] == ["main"]


def test_a_model_alone_needs_no_lane_of_its_own(tmp_path: Path) -> None:
    config = read(tmp_path, "models: [{path: vectors.gguf, task: embed, pooling: mean, max_input: 2048}]")
    assert config.generating_model is None
    assert [lane.name for lane in config.lanes_of(config.models[0])] == ["main"]
    assert config.for_generation().models == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOTH, ":3: models[1]: no lane computes 'vectors': add one, such as {name: vectors, model: vectors}"),
        (BOTH + lanes("name: v, model: vectors"), ":2: models[0]: no lane computes 'chat'"),
        (
            BOTH + lanes("name: main", "name: v, model: vector"),
            "lane 'v' names the model 'vector', which is none of chat, vectors, ada",
        ),
        (
            "models: [{path: a.gguf, task: embed}, {path: b.gguf, task: rerank}]",
            "lane 'main' has to name its model, one of a, b",
        ),
        (
            BOTH + lanes("name: main", "name: v, model: vectors, role: prefill"),
            "lane 'v' has a model for the task embed, where role has no meaning",
        ),
        (BOTH + lanes("name: main", "name: v, model: vectors, kv_weight: 2"), "where kv_weight has no meaning"),
        (BOTH + lanes("name: main", "name: v, model: vectors, layout: paged"), "where layout has no meaning"),
        (
            BOTH + lanes("name: main, role: prefill", "name: v, model: vectors"),
            "every lane of 'chat' has the role prefill",
        ),
        (CHAT + "  - {path: chat.gguf, task: embed}\n", "'chat' names several models"),
        (BOTH.replace("ada", "chat"), "'chat' names several models"),
        ("models: [{path: a.gguf, pooling: mean}]", "pooling is for a model whose task is embed; its task is generate"),
        ("models: [{path: a.gguf, task: rerank, pooling: cls}]", "pooling is for a model whose task is embed"),
        ("models: [{path: a.gguf, max_input: 9}]", "max_input is for a model whose task is embed or rerank"),
        ("models: [{path: a.gguf, task: embed, max_input: 0}]", "max_input"),
        ("models: [{path: a.gguf, task: embed, max_input: true}]", "max_input"),
        ("models: [{path: a.gguf, task: embed, pooling: rank}]", "pooling"),
        ("models: [{path: a.gguf, task: translate}]", "task"),
        (
            BOTH + lanes("name: main, places: 2", "name: v, model: vectors") + "scheduler: {reserve: {interactive: 2}}",
            "2 of 2 places are reserved",
        ),
    ],
)
def test_what_does_not_go_together_is_told(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    assert message in str(caught.value)


def test_lanes_that_embed_have_no_part_in_the_kv_budget() -> None:
    values: dict[str, Any] = {
        "models": [{"path": "a.gguf"}, {"path": "b.gguf", "task": "embed"}],
        "streams": {"lanes": [{"name": "main", "places": 4}, {"name": "b", "model": "b", "places": 200}]},
        "kv": {"budget": 256 * 4, "layout": "partitioned"},
    }
    assert EngineConfig.model_validate(values).kv.budget == 1024


def test_the_same_file_may_do_several_tasks_under_several_names() -> None:
    entries = [
        {"path": "a.gguf"},
        {"path": "a.gguf", "name": "v", "task": "embed", "pooling": "last"},
        {"path": "a.gguf", "name": "w", "task": "embed", "pooling": "mean"},
    ]
    rows = [{"name": name, "model": name} for name in ("a", "v", "w")]
    config = EngineConfig.model_validate({"models": entries, "streams": {"lanes": rows}})
    assert [model.names for model in config.embedding_models] == [("v",), ("w",)]

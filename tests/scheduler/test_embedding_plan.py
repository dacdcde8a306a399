"""What models that embed take of the memory, beside the one that generates."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import anyio
import pytest

from llamalane.errors import ConfigError
from llamalane.scheduler import EngineConfig, assembly
from llamalane.scheduler.assembly import assemble, plan
from llamalane.streams.llama import EmbeddingContext, Model, ModelOptions
from tests.models.tiny_gguf import Kind
from tests.streams.llama.cpu_as_gpu import as_if_there_were

CELL = 2 * 64 * 2
"""Bytes of a token in the dense model, as f16."""


def config_of(*models: dict[str, Any], lanes: list[dict[str, Any]], **more: Any) -> EngineConfig:
    each = [{"places": 2, "threads": 1} | lane for lane in lanes]
    return EngineConfig.model_validate({"models": models, "streams": {"lanes": each}, **more})


def test_a_file_that_is_there_twice_is_counted_once(tiny_model: Path, tiny_encoder: Path) -> None:
    memory = plan(
        config_of(
            {"path": tiny_model, "name": "chat"},
            {"path": tiny_model, "name": "v", "task": "embed", "pooling": "last"},
            {"path": tiny_encoder, "name": "e", "task": "embed"},
            {"path": tiny_encoder, "name": "f", "task": "embed", "pooling": "mean"},
            lanes=[{"name": "chat"}, *({"name": name, "model": name} for name in "vef")],
        )
    )
    shared, encoder, again = memory.embedding
    assert (dict(shared.weights), dict(again.weights)) == ({}, {})
    assert encoder.weights[None] > 0
    (device,) = memory.devices
    assert device.embedding == sum(model.taken(None) for model in memory.embedding)
    assert device.needed == device.weights + device.kv + device.computing + device.embedding
    assert f"+ embedding {device.embedding / 2**20:.1f} MiB" in device.summary()


def test_the_planned_cells_are_those_that_llama_cpp_makes(tiny_model: Path, caplog: pytest.LogCaptureFixture) -> None:
    entry = {"path": tiny_model, "name": "v", "task": "embed", "pooling": "mean", "max_input": 4096}
    memory = plan(config_of(entry, lanes=[{"name": "v"}]))
    (model,) = memory.embedding
    (lane,) = model.lanes
    assert lane.cells == 4096 * CELL
    with Model(ModelOptions(path=tiny_model)) as loaded, caplog.at_level(logging.DEBUG, "llamalane.llama"):
        EmbeddingContext(loaded, model.options(2, threads=1, flash_attention="auto")).close()
    (size,) = re.findall(r"KV buffer size = +([\d.]+) MiB", caplog.text)
    assert float(size) * 2**20 == lane.cells


def test_a_recurrent_model_has_states_and_no_cells(tiny_models: dict[Kind, Path]) -> None:
    entry = {"path": tiny_models[Kind.RECURRENT], "name": "v", "task": "embed", "pooling": "last"}
    memory = plan(config_of(entry, lanes=[{"name": "v"}]))
    assert memory.embedding[0].lanes[0].cells > 0


def test_a_share_of_the_free_memory_is_of_what_models_that_embed_leave(tiny_model: Path) -> None:
    entries = [
        {"path": tiny_model, "name": "chat"},
        {"path": tiny_model, "name": "v", "task": "embed", "pooling": "cls"},
    ]
    lanes = [{"name": "chat"}, {"name": "v", "model": "v"}]
    large = [entries[0], entries[1] | {"max_input": 8192}]
    kv = {"budget": "0.01%", "layout": "paged"}
    less, more = (plan(config_of(*each, lanes=lanes, kv=kv)) for each in (large, entries))
    assert less.devices[0].embedding > more.devices[0].embedding
    assert less.kv <= more.kv


def test_what_is_too_large_is_told_with_the_part_of_embedding(tiny_encoder: Path) -> None:
    memory = plan(config_of({"path": tiny_encoder, "name": "e", "task": "embed"}, lanes=[{"name": "e"}]))
    (device,) = memory.devices
    assert memory.lanes == ()
    assert "models that embed take" in device.shortage()


@pytest.mark.usefixtures("several_gpus")
def test_each_gpu_has_what_its_lanes_name(tiny_model: Path, tiny_encoder: Path) -> None:
    config = config_of(
        {"path": tiny_model, "name": "chat"},
        {"path": tiny_encoder, "name": "e", "task": "embed"},
        lanes=[
            {"name": "chat", "device": 1},
            {"name": "near", "model": "e", "device": 1},
            {"name": "far", "model": "e", "device": 2},
        ],
        kv={"budget": 1024},
    )
    memory = plan(config)
    here, there = memory.devices
    assert (here.name, here.lanes, there.name, there.lanes) == ("GPU 1", ("chat",), "GPU 2", ("far",))
    assert here.embedding == there.embedding > 0
    assert (there.weights, there.kv) == (0, 0)
    assert [lane.gpu for lane in memory.embedding[0].lanes] == [1, 2]

    async def build() -> None:
        machinery = assemble(config)
        try:
            homes = [model.options.device for model in machinery.models]
            assert (homes, machinery.model.options.path) == ([1, 1, 2], tiny_model)
            assert [lane.model for lane in machinery.pool.lanes] == ["", "e", "e"]
            assert [(one.name, one.places) for one in machinery.embedders] == [("e", 4)]
            gates = [lane.backend._gate for lane in machinery.pool.lanes]  # type: ignore[attr-defined]
            assert gates[0] is gates[1], "a context may come or go within a step of a lane beside it"
            assert gates[1] is not gates[2]
        finally:
            machinery.close()

    anyio.run(build)


@pytest.fixture
def several_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    as_if_there_were(monkeypatch, ("NVIDIA H200", "NVIDIA L4", "NVIDIA L4"))
    monkeypatch.setattr(assembly, "available_cores", lambda: range(8))


def test_settings_that_do_not_suit_the_model_are_told_before_it_is_loaded(tiny_model: Path, tiny_ranker: Path) -> None:
    for entry, message in (
        ({"path": tiny_model}, "'m' does not say what stands for a text"),
        ({"path": tiny_ranker}, "'m' scores texts"),
        ({"path": tiny_model, "pooling": "last", "max_input": 8193}, "'m' was trained for 8192 tokens"),
    ):
        with pytest.raises(ConfigError, match=message):
            plan(config_of({"name": "m", "task": "embed"} | entry, lanes=[{"name": "m"}]))

"""What a configuration takes of the memory, and what of that llama.cpp really takes."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamalane.errors import ConfigError
from llamalane.kvcache import Layout, RegionPlan
from llamalane.scheduler import Engine, EngineConfig
from llamalane.scheduler.assembly import plan
from llamalane.scheduler.config import CacheType
from llamalane.scheduler.memory_needs import LanePlan, MemoryPlan, in_words
from llamalane.scheduler.memory_plan import Site, plan_memory
from llamalane.streams import Device
from llamalane.streams.llama import Context, ContextOptions, Model, ModelOptions
from tests.models.tiny_gguf import Kind

CELL = 2 * 64 * 2
"""Bytes of a token in the dense model: keys and values of 2 layers, 2 heads and 16 numbers, as f16."""
STATE = 2 * (3 * 128 + 128 * 16) * 4
"""Bytes of a sequence in the recurrent model."""
PLENTY = 1 << 40


def config_of(path: Path, *, lanes: list[dict[str, Any]] | None = None, **kv: Any) -> EngineConfig:
    lanes = lanes or [{"name": "main", "places": 4}]
    return EngineConfig.model_validate({"models": [{"path": path}], "streams": {"lanes": lanes}, "kv": kv})


def options_of(region: RegionPlan) -> ContextOptions:
    return ContextOptions(
        cells=region.cells,
        sequences=region.sequences,
        partitioned=region.layout is Layout.PARTITIONED,
        max_step_tokens=512,
        micro_batch=512,
        threads=1,
    )


@pytest.fixture(scope="module")
def hollow(tiny_models: Mapping[Kind, Path]) -> Iterator[Mapping[Kind, Model]]:
    """The models without their weights."""
    models = {kind: Model(ModelOptions(path=path, weights=False)) for kind, path in tiny_models.items()}
    yield models
    for model in models.values():
        model.close()


def planned(
    model: Model, *, free: int | None = PLENTY, lanes: list[dict[str, Any]] | None = None, **kv: Any
) -> MemoryPlan:
    config = config_of(Path("m.gguf"), lanes=lanes, **kv)
    names = tuple(lane.name for lane in config.streams.lanes)
    return plan_memory(config, Device.CPU, [Site(name="CPU", lanes=names, model=model, free=free)], options_of)


def said_by_llama_cpp(model: Model, memory: MemoryPlan, types: tuple[str, str], log: pytest.LogCaptureFixture) -> str:
    """Open the plan's lane as it will be, and return the MiB that its KV buffer is said to take."""
    (lane,) = memory.lanes
    region = lane.region
    log.clear()
    with log.at_level(logging.DEBUG, logger="llamalane.llama"):
        options = ContextOptions(
            cells=region.cells,
            sequences=region.sequences,
            partitioned=region.layout is Layout.PARTITIONED,
            max_step_tokens=16,
            micro_batch=16,
            threads=1,
            key_type=types[0],
            value_type=types[1],
        )
        Context(model, options).close()
    (size,) = re.findall(r"KV buffer size = +([\d.]+) MiB", log.text)
    return str(size)


@pytest.mark.parametrize("layout", ["paged", "partitioned"])
@pytest.mark.parametrize("types", [("f16", "f16"), ("f32", "bf16"), ("bf16", "f32")])
def test_the_planned_kv_cache_is_the_one_that_llama_cpp_makes(
    tiny_model: Path, types: tuple[str, str], layout: str, caplog: pytest.LogCaptureFixture
) -> None:
    memory = plan(config_of(tiny_model, budget=16_384, layout=layout, key_type=types[0], value_type=types[1]))
    with Model(ModelOptions(path=tiny_model)) as model:
        said = said_by_llama_cpp(model, memory, types, caplog)
    assert float(said) * (1 << 20) == memory.kv


@pytest.mark.smollm2
@pytest.mark.parametrize("layout", ["paged", "partitioned"])
def test_so_it_is_with_every_cache_type(smollm2: Path, layout: str, caplog: pytest.LogCaptureFixture) -> None:
    names = get_args(CacheType)
    pairs = list(zip(names[::2], names[1::2], strict=True))
    with Model(ModelOptions(path=smollm2)) as model:
        for types in pairs if layout == "paged" else [(value, key) for key, value in pairs]:
            config = config_of(smollm2, budget=1024, layout=layout, key_type=types[0], value_type=types[1])
            memory = plan(config)
            said = said_by_llama_cpp(model, memory, types, caplog)
            assert said == f"{memory.kv / (1 << 20):.2f}", types


def test_quantized_types_need_heads_of_whole_blocks(tiny_model: Path) -> None:
    for key_type, value_type, flash_attention in (
        ("q8_0", "f16", "auto"),
        ("f16", "q4_0", "on"),
        ("q4_1", "f16", "off"),
    ):
        with pytest.raises(ConfigError, match=r"^kv\.(key|value)_type: q.* blocks of 32 .* has 16 in each head"):
            plan(config_of(tiny_model, key_type=key_type, value_type=value_type, flash_attention=flash_attention))


def test_bytes_buy_whole_cells_and_not_one_byte_more(hollow: Mapping[Kind, Model]) -> None:
    memory = planned(hollow[Kind.DENSE], budget="1MiB", layout="paged")
    assert memory.cell == CELL
    assert [region.cells for region in memory.regions] == [4096]
    assert memory.kv == 1 << 20
    less = planned(hollow[Kind.DENSE], budget=f"{(1 << 20) - 1}B", layout="paged")
    assert [region.cells for region in less.regions] == [4096 - 256]


def test_a_share_is_one_of_what_the_weights_leave(hollow: Mapping[Kind, Model]) -> None:
    model = hollow[Kind.DENSE]
    memory = planned(model, free=model.bytes + (4 << 20), budget="25%", layout="paged")
    assert memory.kv == 1 << 20


def sites_of(model: Model, *free: int | None) -> list[Site]:
    """A GPU for each number of free bytes, with a lane of its own, and one more lane on the first."""
    names = [("a", "d"), ("b",), ("c",)]
    return [
        Site(name=f"GPU {number}", lanes=names[number], model=model, free=bytes_) for number, bytes_ in enumerate(free)
    ]


FOUR: list[dict[str, Any]] = [
    {"name": "a", "places": 3},
    {"name": "b", "places": 2},
    {"name": "c", "places": 4},
    {"name": "d", "places": 1},
]


def test_a_share_is_one_of_what_each_device_has(hollow: Mapping[Kind, Model]) -> None:
    model = hollow[Kind.DENSE]
    free = [model.bytes + size for size in (4 << 20, 8 << 20, 2 << 20)]
    config = config_of(Path("m.gguf"), lanes=FOUR, budget="50%", layout="paged")
    memory = plan_memory(config, Device.GPU, sites_of(model, *free), options_of)
    assert [device.kv for device in memory.devices] == [2 << 20, 4 << 20, 1 << 20]
    assert [lane.name for lane in memory.lanes] == list("abcd")
    assert [lane.cells for lane in memory.lanes] == [3 << 19, 4 << 20, 1 << 20, 1 << 19]


def test_tokens_and_bytes_are_divided_among_all_lanes_wherever_they_are(hollow: Mapping[Kind, Model]) -> None:
    model = hollow[Kind.DENSE]
    for budget in (10 * 256, f"{10 * 256 * CELL}B"):
        config = config_of(Path("m.gguf"), lanes=FOUR, budget=budget)
        memory = plan_memory(config, Device.GPU, sites_of(model, None, None, None), options_of)
        assert [region.cells for region in memory.regions] == [3 * 256, 2 * 256, 4 * 256, 256]
        assert (memory.free, memory.missing) == (None, 0)


def test_each_device_needs_room_for_weights_and_its_own_lanes(
    hollow: Mapping[Kind, Model], caplog: pytest.LogCaptureFixture
) -> None:
    model = hollow[Kind.DENSE]
    config = config_of(Path("m.gguf"), lanes=FOUR, budget="10MiB")
    memory = plan_memory(config, Device.GPU, sites_of(model, PLENTY, 1 << 20, PLENTY), options_of)
    assert [device.missing > 0 for device in memory.devices] == [False, True, False]
    assert memory.missing == memory.devices[1].missing
    assert memory.weights == 3 * model.bytes
    assert memory.needed == sum(device.needed for device in memory.devices)
    with caplog.at_level(logging.WARNING, "llamalane.scheduler"):
        memory.log()
    (warning,) = caplog.records
    assert "1.0 MiB are free on the GPU 1" in warning.getMessage()


def test_a_device_with_too_little_for_its_share_is_named(hollow: Mapping[Kind, Model]) -> None:
    model = hollow[Kind.DENSE]
    config = config_of(Path("m.gguf"), lanes=FOUR, budget="50%")
    with pytest.raises(ConfigError, match=r"50%, which is 512 bytes on GPU 2, is too small for 4 places on 1 lanes"):
        plan_memory(config, Device.GPU, sites_of(model, PLENTY, PLENTY, model.bytes + 1024), options_of)


def test_a_share_of_memory_that_nobody_knows_is_refused(hollow: Mapping[Kind, Model]) -> None:
    with pytest.raises(ConfigError, match=r"^kv\.budget: 25% of the free memory is unknown"):
        planned(hollow[Kind.DENSE], free=None, budget="25%")
    assert planned(hollow[Kind.DENSE], free=None, budget="1MiB").missing == 0


def test_lanes_get_their_parts_by_weight(hollow: Mapping[Kind, Model]) -> None:
    lanes: list[dict[str, Any]] = [{"name": "a", "places": 1, "kv_weight": 3}, {"name": "b", "places": 8}]
    memory = planned(hollow[Kind.DENSE], lanes=lanes, budget=11 * 1024, layout="paged")
    assert [region.cells for region in memory.regions] == [3 * 1024, 8 * 1024]


def test_more_cells_than_can_be_counted_are_refused(hollow: Mapping[Kind, Model]) -> None:
    with pytest.raises(ConfigError, match=r"kv.budget: 900TB, .*: at most 2000000000 can be used"):
        planned(hollow[Kind.DENSE], budget="900TB")
    vast = planned(hollow[Kind.DENSE], free=900 * 10**12, budget="100%", layout="paged")
    assert vast.regions[0].cells == pytest.approx(2e9, abs=256)


@pytest.mark.parametrize("layout", ["auto", "paged", "partitioned"])
def test_too_little_is_refused_with_what_would_be_enough(hollow: Mapping[Kind, Model], layout: str) -> None:
    with pytest.raises(ConfigError, match=r"is too small for 4 places on 1 lanes: at least \d+ bytes") as refusal:
        planned(hollow[Kind.DENSE], budget="10KiB", layout=layout)
    found = re.search(r"at least (\d+) bytes", str(refusal.value))
    assert found is not None
    enough = int(found[1])
    assert planned(hollow[Kind.DENSE], budget=f"{enough}B", layout=layout).kv == enough
    with pytest.raises(ConfigError, match="too small"):
        planned(hollow[Kind.DENSE], budget=f"{enough - 1}B", layout=layout)


def test_more_than_is_free_is_planned_and_told(hollow: Mapping[Kind, Model], caplog: pytest.LogCaptureFixture) -> None:
    memory = planned(hollow[Kind.DENSE], free=2 << 20, budget="8MiB")
    assert memory.needed == memory.weights + (8 << 20) + memory.computing
    assert memory.missing == memory.needed - (2 << 20)
    with caplog.at_level(logging.INFO, "llamalane.scheduler"):
        memory.log()
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert f"{in_words(memory.needed)} are needed and 2.0 MiB are free on the CPU" in warning.getMessage()


def test_a_larger_cache_than_could_be_measured_is_planned_all_the_same(hollow: Mapping[Kind, Model]) -> None:
    memory = planned(hollow[Kind.DENSE], free=400 * 10**9, budget="500GB")
    assert memory.kv == pytest.approx(500e9, rel=1e-6)
    assert memory.missing > 0
    assert [lane.measured for lane in memory.lanes] == [False]
    assert [lane.measured for lane in planned(hollow[Kind.DENSE]).lanes] == [True]


def test_a_recurrent_model_takes_memory_for_sequences_and_none_for_tokens(hollow: Mapping[Kind, Model]) -> None:
    memory = planned(hollow[Kind.RECURRENT], budget=4096, layout="paged")
    assert (memory.cell, memory.state) == (0, STATE)
    assert memory.kv == 8 * STATE
    with pytest.raises(ConfigError, match=r"1MiB is no number of tokens for this model.* give a number of tokens"):
        planned(hollow[Kind.RECURRENT], budget="1MiB")


def test_a_hybrid_models_states_are_paid_for_first(hollow: Mapping[Kind, Model]) -> None:
    memory = planned(hollow[Kind.HYBRID], budget="1MiB", layout="partitioned")
    assert memory.state > 0
    (lane,) = memory.lanes
    assert lane.states == 4 * memory.state
    assert 0 <= (1 << 20) - memory.kv < 4 * 256 * memory.cell
    with pytest.raises(ConfigError, match=rf"and 4 states of {memory.state} bytes"):
        planned(hollow[Kind.HYBRID], budget="1KiB", layout="partitioned")


@given(
    cells=st.integers(1, 40), places=st.integers(1, 8), length=st.integers(1, 12_000), layout=st.sampled_from(Layout)
)
def test_so_many_sequences_fit_and_no_more(cells: int, places: int, length: int, layout: Layout) -> None:
    part = 256 * cells
    paged = layout is Layout.PAGED
    region = RegionPlan(part if paged else part * places, places, part, places, layout)
    lane = LanePlan(name="a", region=region, cells=0, states=0, computing=0)
    fitting = lane.fitting(length)
    held = 0
    while held < places and length <= part and (not paged or (held + 1) * length <= part):
        held += 1
    assert fitting == held


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1536, "1.5 KiB"),
        (5 << 20, "5.0 MiB"),
        (3 << 30, "3.0 GiB"),
        (9 << 50, "9216.0 TiB"),
    ],
)
def test_sizes_are_told_in_their_unit(count: int, words: str) -> None:
    assert in_words(count) == words


@pytest.mark.anyio
async def test_an_engine_says_at_its_start_what_it_takes(tiny_model: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="llamalane.scheduler"):
        async with Engine(config_of(tiny_model, budget="1MiB", layout="paged")) as engine:
            assert engine.limit == 4096
    assert "KV 1.0 MiB" in caplog.text
    assert "lane main: paged, 4096 KV cells for 8 sequences, 4 of them at once, up to 4096 tokens each" in caplog.text


def test_a_lane_has_the_layout_that_it_names(hollow: Mapping[Kind, Model]) -> None:
    lanes = [
        {"name": "chat", "places": 4, "layout": "partitioned"},
        {"name": "documents", "places": 4, "layout": "paged"},
        {"name": "rest", "places": 4},
    ]
    memory = planned(hollow[Kind.DENSE], lanes=lanes, budget=12 * 1024, layout="paged")
    assert [region.layout for region in memory.regions] == [Layout.PARTITIONED, Layout.PAGED, Layout.PAGED]

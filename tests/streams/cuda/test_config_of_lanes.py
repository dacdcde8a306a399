"""What the configuration says of streams: old files mean what they meant, and what is out of range is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from llamalane.errors import ConfigError
from llamalane.scheduler import EngineConfig, LaneConfig

MODEL = "models: [{path: model.gguf}]\n"


def load(tmp_path: Path, streams: str) -> EngineConfig:
    file = tmp_path / "engine.yaml"
    file.write_text(f"{MODEL}streams: {streams}\n", encoding="utf-8")
    return EngineConfig.from_yaml(file)


def test_a_lane_asks_for_nothing_unless_it_says_so(tmp_path: Path) -> None:
    (lane,) = load(tmp_path, "{lanes: [{name: main, places: 8}]}").streams.lanes
    assert (lane.count, lane.device, lane.priority, lane.multiprocessors) == (1, None, None, None)
    assert lane.speed == 1


@pytest.mark.parametrize(
    ("lanes", "gpus"),
    [
        ("{name: a}, {name: b}", [None, None]),
        ("{name: a, device: 0}", [0]),
        ("{name: a}, {name: b, device: 3, count: 2}, {name: c, device: 1}", [0, 3, 3, 1]),
    ],
)
def test_lanes_that_name_no_gpu_are_on_the_first_if_others_name_one(
    tmp_path: Path, lanes: str, gpus: list[int | None]
) -> None:
    assert load(tmp_path, f"{{lanes: [{lanes}]}}").streams.gpus == gpus


def test_lanes_of_one_class_get_names_of_their_own(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        "{lanes: [{name: chat, priority: 1, multiprocessors: 64}, {name: bulk, count: 2, places: 4, device: 1}]}",
    )
    lanes = config.streams.lanes
    assert [lane.name for lane in lanes] == ["chat", "bulk-1", "bulk-2"]
    assert lanes[0] == LaneConfig(name="chat", priority=1, multiprocessors=64)
    assert lanes[1] == LaneConfig(name="bulk-1", places=4, device=1)
    again = EngineConfig(**config.model_dump())
    assert again.streams == config.streams, "what was read can be read again"


@pytest.mark.parametrize(
    ("lane", "message"),
    [
        ("priority: 0", "priority"),
        ("priority: 6", "priority"),
        ("priority: true", "a number, not true or false"),
        ("multiprocessors: 0", "multiprocessors"),
        ("device: -1", "device"),
        ("count: 0", "count"),
        ("speed: 0", "speed"),
        ("speed: .inf", "speed"),
        ("speed: true", "a number, not true or false"),
        ("level: 1", "level"),
    ],
)
def test_what_no_stream_can_be_is_refused(tmp_path: Path, lane: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, f"{{lanes: [{{{lane}}}]}}")


def test_names_that_meet_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'a-2' names several lanes"):
        load(tmp_path, "{lanes: [{name: a, count: 2}, {name: a-2}]}")

"""The KV budget in a configuration: tokens, bytes or a share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from llamalane.errors import ConfigError
from llamalane.scheduler import EngineConfig, KVConfig, LaneConfig
from llamalane.scheduler.config_text import editor_schema


def load(folder: Path, text: str) -> EngineConfig:
    file = folder / "llamalane.yaml"
    file.write_text(f"models: [{{path: m.gguf}}]\n{text}\n")
    return EngineConfig.from_yaml(file)


@pytest.mark.parametrize(
    ("written", "budget"),
    [("4096", 4096), ('"4096"', 4096), ("4GiB", "4GiB"), ("512 MB", "512 MB"), ("50%", "50%"), ("null", None)],
)
def test_a_budget_is_tokens_bytes_or_a_share(tmp_path: Path, written: str, budget: int | str | None) -> None:
    assert load(tmp_path, f"kv: {{budget: {written}}}").kv.budget == budget


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ("4 parsecs", "the unit 'parsecs' is none of B, KB"),
        ("150%", "a share is more than 0% and at most 100%; got 150%"),
        ("0%", "a share is more than 0%"),
        ("some", "'some' is neither tokens, such as 16384, nor bytes"),
        ("2.5", "must be a valid integer"),
        ("true", "must be a number, not true or false"),
    ],
)
def test_a_mistake_is_told_once_and_with_its_line(tmp_path: Path, written: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        load(tmp_path, f"kv:\n  budget: {written}")
    assert refusal.value.line == 3
    (line,) = str(refusal.value).splitlines()
    assert "kv.budget" in line
    assert complaint in line


def test_a_configuration_that_was_written_out_can_be_read_again() -> None:
    for budget in (1024, "4GiB", "50%", None):
        section = KVConfig(budget=budget)
        assert KVConfig(**section.model_dump()) == section
        assert KVConfig.model_validate_json(section.model_dump_json()) == section


def test_the_schema_lets_editors_accept_each_form() -> None:
    forms = editor_schema(EngineConfig)["$defs"]["KVConfig"]["properties"]["budget"]["anyOf"]
    assert [form["type"] for form in forms if "type" in form] == ["integer", "string", "string", "null"]


@pytest.mark.parametrize("weight", [0, -1, float("inf"), True])
def test_a_weight_is_a_positive_number(weight: Any) -> None:
    with pytest.raises(ValidationError):
        LaneConfig(kv_weight=weight)


def test_a_lane_weighs_as_much_as_it_has_places_unless_it_says_otherwise() -> None:
    assert LaneConfig(places=3).weight == 3
    assert LaneConfig(places=3, kv_weight=0.5).weight == 0.5


def test_a_budget_in_tokens_is_checked_with_the_weights(tmp_path: Path) -> None:
    lanes = "streams: {lanes: [{name: a, places: 1, kv_weight: 1}, {name: b, places: 1, kv_weight: 9}]}"
    with pytest.raises(ConfigError, match="budget of 2048 tokens is too small for 2 places on 2 lanes"):
        load(tmp_path, f"{lanes}\nkv: {{budget: 2048}}")
    assert load(tmp_path, f"{lanes}\nkv: {{budget: 2560}}").kv.budget == 2560

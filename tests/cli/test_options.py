"""How options, environment, file and defaults become one configuration."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import get_args

import pytest
from pydantic import SecretStr

from llamalane.api import ServerConfig
from llamalane.cli import options
from llamalane.cli.options import load_config
from llamalane.errors import ConfigError
from llamalane.scheduler import EngineConfig
from llamalane.streams import DeviceChoice


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("LLAMALANE_")]:
        monkeypatch.delenv(name)


def write(folder: Path, text: str) -> Path:
    path = folder / "server.yaml"
    path.write_text(text)
    return path


def test_a_model_is_enough() -> None:
    config = load_config(ServerConfig, None, {"MODEL": Path("some/model.gguf"), "--places": None})
    assert config == ServerConfig.model_validate({"models": [{"path": "some/model.gguf"}]})
    assert config.models[0].names == ("model",)


def test_every_option_reaches_the_configuration() -> None:
    given = {
        "MODEL": Path("model.gguf"),
        "--task": "embed",
        "--places": 3,
        "--threads": 2,
        "--kv-cells": 4096,
        "--device": "cpu",
        "--host": "0.0.0.0",
        "--port": 0,
        "--api-key": "secret",
    }
    config = load_config(ServerConfig, None, given)
    assert (config.models[0].path, config.models[0].task) == (Path("model.gguf"), "embed")
    assert [(lane.places, lane.threads) for lane in config.streams.lanes] == [(3, 2)]
    assert config.kv.budget == 4096
    assert config.streams.device is DeviceChoice.CPU
    assert (config.api.host, config.api.port) == ("0.0.0.0", 0)
    assert config.api.api_key == SecretStr("secret")


def test_the_strongest_source_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(
        tmp_path,
        "models: [{path: model.gguf}]\n"
        "scheduler: {target_itl: 1, drain_timeout: 1}\n"
        "kv: {budget: 1024}\n"
        "api: {host: file, port: 1}\n",
    )
    monkeypatch.setenv("LLAMALANE_SCHEDULER__DRAIN_TIMEOUT", "2")
    monkeypatch.setenv("LLAMALANE_KV__BUDGET", "2048")
    monkeypatch.setenv("LLAMALANE_API__PORT", "2")
    config = load_config(ServerConfig, file, {"--kv-cells": 4096, "--port": 3})
    assert (config.api.host, config.api.port, config.api.ping_after) == ("file", 3, 15)
    assert config.kv.budget == 4096
    assert (config.scheduler.target_itl, config.scheduler.drain_timeout) == (1, 2)


def test_the_model_of_the_command_line_keeps_what_the_file_says_about_the_model(tmp_path: Path) -> None:
    file = write(tmp_path, "models: [{path: a.gguf, aliases: [gpt], gpu_layers: 3}]\n")
    config = load_config(EngineConfig, file, {"MODEL": Path("b.gguf")})
    [model] = config.models
    assert (model.path, model.names, model.gpu_layers) == (Path("b.gguf"), ("b", "gpt"), 3)


def test_the_file_may_leave_the_model_to_the_command_line(tmp_path: Path) -> None:
    file = write(tmp_path, "kv: {budget: 1024}\n")
    config = load_config(EngineConfig, file, {"MODEL": Path("b.gguf")})
    assert (config.models[0].path, config.kv.budget) == (Path("b.gguf"), 1024)


def test_places_and_threads_are_for_each_lane(tmp_path: Path) -> None:
    file = write(
        tmp_path, "models: [{path: a.gguf}]\nstreams: {lanes: [{name: a, places: 1}, {name: b, threads: 9}]}\n"
    )
    config = load_config(EngineConfig, file, {"--places": 2, "--threads": 1})
    assert [(lane.name, lane.places, lane.threads) for lane in config.streams.lanes] == [("a", 2, 1), ("b", 2, 1)]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "name a model: MODEL.gguf or --config FILE"),
        ({"MODEL": "m", "--places": 1000}, "--places: must be less than or equal to 256"),
        ({"MODEL": "m", "--threads": 0}, "--threads: must be greater than or equal to 1"),
        ({"MODEL": "m", "--port": 65536}, "--port: must be less than or equal to 65535"),
        ({"MODEL": "m", "--kv-cells": 3}, "--kv-cells: must be greater than or equal to 256"),
        ({"MODEL": "m", "--device": "x"}, "--device: must be 'auto', 'cuda' or 'cpu'"),
        (
            {"MODEL": "m", "--places": 0, "--threads": 0},
            "--places: must be greater than or equal to 1; --threads: must be greater than or equal to 1",
        ),
    ],
)
def test_a_value_out_of_range_is_told_with_its_option(given: Mapping[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(ServerConfig, None, given)
    assert str(caught.value) == message


def test_what_an_option_breaks_elsewhere_is_told_with_its_place(tmp_path: Path) -> None:
    file = write(tmp_path, "models: [{path: a.gguf}]\nscheduler: {reserve: {interactive: 2}}\n")
    with pytest.raises(ConfigError, match=r"^scheduler\.reserve: 2 of 2 places are reserved"):
        load_config(EngineConfig, file, {"--places": 2})


def test_an_error_in_the_file_is_told_with_its_line(tmp_path: Path) -> None:
    file = write(tmp_path, "models: [{path: a.gguf}]\nkv: {bugdet: 3}\n")
    with pytest.raises(ConfigError, match=r"server\.yaml:2: unknown key 'bugdet' in kv; did you mean 'budget'\?"):
        load_config(EngineConfig, file, {"MODEL": Path("b.gguf")})


def test_the_key_of_the_api_is_not_shown_in_an_error() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(ServerConfig, None, {"MODEL": "m", "--api-key": "swordfish", "--port": -1})
    assert "swordfish" not in str(caught.value)


def test_every_device_can_be_chosen() -> None:
    literal = get_args(get_args(options.Device)[0])[0]
    assert set(get_args(literal)) == {choice.value for choice in DeviceChoice}

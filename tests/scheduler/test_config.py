"""The engine's configuration: defaults, limits, cross checks, and which source wins."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args
from unittest import mock

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from llamalane.errors import ConfigError
from llamalane.scheduler import config_text
from llamalane.scheduler.config import (
    CacheType,
    EngineConfig,
    FlashAttention,
    KVConfig,
    LaneConfig,
    ModelConfig,
    QueueConfig,
    SchedulerConfig,
    StreamsConfig,
)
from llamalane.streams import DeviceChoice
from llamalane.streams.llama import CACHE_TYPES, FLASH_ATTENTION

SOURCE = Path(__file__).parents[2] / "src"
MODELS = "models:\n  - path: model.gguf\n"


@pytest.fixture(autouse=True)
def _no_variables() -> Iterator[None]:
    others = {name: value for name, value in os.environ.items() if not name.upper().startswith("LLAMALANE_")}
    with mock.patch.dict(os.environ, others, clear=True):
        yield


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("config") / "engine.yaml"


def load(
    file: Path,
    text: str,
    environment: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> EngineConfig:
    file.write_text(text, encoding="utf-8")
    with mock.patch.dict(os.environ, environment or {}):
        return EngineConfig.from_yaml(file, overrides)


def refusal(
    file: Path,
    text: str,
    environment: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(file, text, environment, overrides)
    return caught.value


def test_only_the_model_is_required() -> None:
    config = EngineConfig(models=[ModelConfig(path=Path("models/small.gguf"))])
    assert config.models[0].names == ("small",)
    assert config.streams == StreamsConfig(
        device=DeviceChoice.AUTO,
        lanes=[LaneConfig(name="main", places=8, threads=None)],
        max_step_tokens=512,
        micro_batch=512,
    )
    assert config.kv == KVConfig(budget=None, key_type="f16", value_type="f16", flash_attention="auto")
    assert config.scheduler == SchedulerConfig(
        levels={"interactive": 1, "agent": 2, "normal": 3, "background": 4, "batch": 5},
        default_level="normal",
        ceiling=3,
        aging_interval=30,
        guaranteed_share=10,
        reserve={},
        queue=QueueConfig(max_requests=1000, max_tokens=1_000_000),
        target_itl=0.2,
        drain_timeout=30,
    )


def test_a_file_is_read(file: Path) -> None:
    text = """
models:
  - path: SmolLM2-135M-Instruct.Q4_1.gguf
    name: smollm2
    aliases: [gpt-4o-mini]
streams: {device: auto, lanes: [{name: main, places: 8}]}
kv: {flash_attention: off, budget: "${env:CELLS}"}
scheduler: {reserve: {interactive: 1}, ceiling: 2}
api: {host: 127.0.0.1, port: 8000, api_key: "${env:AN_UNSET_KEY}"}
"""
    config = load(file, text, {"CELLS": "4096"})
    assert config.models[0].names == ("smollm2", "gpt-4o-mini")
    assert config.kv == KVConfig(budget=4096, flash_attention="off")
    assert config.scheduler == SchedulerConfig(reserve={"interactive": 1}, ceiling=2)


def test_a_configuration_does_not_change() -> None:
    config = EngineConfig(models=[ModelConfig(path=Path("m.gguf"))])
    for part, field in [(config, "kv"), (config.kv, "budget"), (config.models[0], "name")]:
        with pytest.raises(ValidationError, match="frozen"):
            setattr(part, field, None)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("model.gguf", "{folder}/model.gguf"),
        ("../m.gguf", "{folder}/../m.gguf"),
        ("/m.gguf", "/m.gguf"),
        ("~/m.gguf", "/home/me/m.gguf"),
    ],
)
def test_a_models_path_starts_at_its_file(file: Path, path: str, expected: str) -> None:
    config = load(file, f"models: [{{path: {path}}}]", {"HOME": "/home/me"})
    assert config.models[0].path == Path(expected.format(folder=file.parent))


def test_a_models_path_from_elsewhere_is_left_alone(file: Path) -> None:
    config = load(file, MODELS, {"LLAMALANE_MODELS": '[{"path": "other.gguf"}]'})
    assert config.models[0].path == Path("other.gguf")
    config = load(file, MODELS, overrides={"models": [{"path": "third.gguf"}]})
    assert config.models[0].path == Path("third.gguf")


@pytest.mark.parametrize(
    ("section", "line", "messages"),
    [
        ("kv: {budgett: 1}", 3, ["unknown key 'budgett' in kv; did you mean 'budget'?", "Allowed: budget, key_type"]),
        ("streams:\n  lanes:\n  - {name: a, plases: 3}", 5, ["unknown key 'plases' in streams.lanes[0]", "'places'"]),
        ("shceduler: {}", 3, ["unknown key 'shceduler'; did you mean 'scheduler'?"]),
        ("scheduler:\n  zzz: 1", 4, ["unknown key 'zzz' in scheduler; Allowed: levels"]),
        ("kv: {}\nkv: {}", 4, ["duplicate key 'kv': it is in line 3 already"]),
        ("kv:\n  budget: ${env:AN_UNSET_NUMBER}", 4, ["AN_UNSET_NUMBER is not set"]),
        ("kv: 5", 3, ["kv must be a mapping"]),
        ("streams: {lanes: {}}", 3, ["streams.lanes must be a list"]),
        ("streams: {lanes: []}", 3, ["streams.lanes: List should have at least 1 item"]),
        ("streams: {lanes: [{places: 0}]}", 3, ["streams.lanes[0].places must be greater than or equal to 1"]),
        ("streams: {lanes: [{places: 257}]}", 3, ["must be less than or equal to 256"]),
        ("streams: {lanes: [{places: true}]}", 3, ["streams.lanes[0].places must be a number"]),
        ("streams: {lanes: [{places: 1.5}]}", 3, ["must be a valid integer"]),
        ("streams: {lanes: [{places: 8}, {places: 4}]}", 3, ["'main' names several lanes"]),
        ("streams:\n  lanes: [{name: a, places: 8}]\n  max_step_tokens: 7", 5, ["at least 8, the places of lane 'a'"]),
        ("streams:\n  output_rows: 513", 4, ["streams.output_rows must be at most 512, which is max_step_tokens"]),
        ("streams: {output_rows: -1}", 3, ["streams.output_rows must be greater than or equal to 0"]),
        ("streams: {lookup: {draft_tokens: 17}}", 3, ["streams.lookup.draft_tokens must be less than or equal to 16"]),
        ("streams: {lookup: {draft_tokens: -1}}", 3, ["draft_tokens must be greater than or equal to 0"]),
        ("streams: {lookup: {draft_tokens: true}}", 3, ["streams.lookup.draft_tokens must be a number"]),
        ("streams: {lookup: {levels: []}}", 3, ["streams.lookup.levels: List should have at least 1 item"]),
        ("streams: {lookup: {most_rows: 0}}", 3, ["streams.lookup.most_rows must be greater than or equal to 1"]),
        (
            "streams: {lookup: {draft: 8}}",
            3,
            ["unknown key 'draft' in streams.lookup; Allowed: draft_tokens, most_rows, levels"],
        ),
        (
            "streams:\n  max_step_tokens: 26\n  lookup: {draft_tokens: 8, most_rows: 3}",
            5,
            ["drafts of 8 tokens for 3 sequences make steps of 27 tokens; max_step_tokens is 26"],
        ),
        (
            "streams:\n  lookup:\n    draft_tokens: 8\n    levels: [agent, x]",
            6,
            ["streams.lookup.levels: 'x' is none of the levels, which are interactive, agent"],
        ),
        ("streams: {device: gpu}", 3, ["streams.device must be 'auto', 'cuda' or 'cpu'"]),
        ("streams: {lanes: [{threads: 0}]}", 3, ["streams.lanes[0].threads"]),
        ("kv: {key_type: q9}", 3, ["kv.key_type must be 'f32', 'f16'"]),
        ("kv:\n  value_type: q8_0\n  flash_attention: off", 4, ["q8_0 is quantized and needs flash_attention"]),
        ("kv: {budget: 255}", 3, ["kv.budget must be greater than or equal to 256"]),
        ("streams: {lanes: [{name: a}, {name: b}]}\nkv:\n  budget: 300", 5, ["300 tokens is too small for 16 places"]),
        ("scheduler: {levels: {a: 0}, default_level: a}", 3, ["scheduler.levels.a"]),
        ("scheduler: {levels: {a: 6}, default_level: a}", 3, ["scheduler.levels.a"]),
        ("scheduler: {levels: {a: true}, default_level: a}", 3, ["scheduler.levels.a must be a number"]),
        ("scheduler: {levels: {}}", 3, ["scheduler.levels"]),
        ("scheduler: {levels: {Urgent: 1}}", 3, ["'Urgent' cannot name a level"]),
        ("scheduler:\n  levels: {a: 1, b: 5}", 3, ["default_level: 'normal' is none of the levels, which are a, b"]),
        ("scheduler:\n  default_level: x", 4, ["default_level: 'x' is none of the levels"]),
        ("scheduler:\n  reserve:\n    agent: 1\n    x: 1", 6, ["reserve.x: 'x' is none of the levels"]),
        ("scheduler: {reserve: {agent: -1}}", 3, ["scheduler.reserve.agent"]),
        ("scheduler:\n  reserve: {agent: 7, batch: 1}", 4, ["8 of 8 places are reserved"]),
        ("scheduler: {ceiling: 6}", 3, ["scheduler.ceiling"]),
        ("scheduler: {aging_interval: 0}", 3, ["scheduler.aging_interval must be greater than 0"]),
        ("scheduler: {target_itl: .nan}", 3, ["scheduler.target_itl must be"]),
        ("scheduler: {drain_timeout: .inf}", 3, ["scheduler.drain_timeout must be a finite number"]),
        ("scheduler: {guaranteed_share: -1}", 3, ["scheduler.guaranteed_share"]),
        ("scheduler: {queue: {max_requests: 0}}", 3, ["scheduler.queue.max_requests"]),
    ],
)
def test_a_mistake_is_told_with_its_line(file: Path, section: str, line: int, messages: list[str]) -> None:
    error = refusal(file, MODELS + section)
    assert error.source == str(file)
    assert error.line == line
    first, *others = str(error).splitlines()
    assert others == []
    assert first.startswith(f"{file}:{line}: ")
    for message in messages:
        assert message in first


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("kv: {}", 1, "models is missing"),
        ("kv: {}\nmodels: []", 2, "name a model"),
        ("kv: {}\nmodels: [{name: a}]", 2, "models[0].path is missing"),
        (
            "models:\n- path: a.gguf\n- {path: b.gguf, name: c}",
            1,
            "more than one model that generates is not supported yet: a, c",
        ),
        ("models:\n- path: a.gguf\n  name: 7", 3, "models[0].name must be a text; put a number"),
        ("models:\n- path: a.gguf\n  aliases: [b, a]", 3, "'a' names the model twice"),
        ("models:\n- path: a.gguf\n  aliases: [b, b]", 3, "'b' names the model twice"),
        ("models:\n- path: a.gguf\n  gpu_layers: -2", 3, "models[0].gpu_layers"),
        ("models:\n- path: a.gguf\n  mmap: maybe", 3, "models[0].mmap"),
        ("models: model.gguf", 1, "models must be a list"),
    ],
)
def test_a_mistake_in_the_models_is_told_with_its_line(file: Path, text: str, line: int, message: str) -> None:
    error = refusal(file, text)
    assert error.line == line
    assert message in str(error)


def test_all_mistakes_are_told_at_once_in_the_files_order(file: Path) -> None:
    text = """\
models:
  - path: ${env:AN_UNSET_PATH}
    nmae: x
scheduler:
  default_level: nobody
  reserve: {batch: 1, nowhere: 1}
kv: {value_type: q4_0, flash_attention: off}
kv: {}
streams: {lanes: [{places: many}]}
"""
    error = refusal(file, text, {"LLAMALANE_SCHEDULER__TARGET_ITL": "soon", "LLAMALANE_KVS__BUDGET": "1"})
    assert error.line == 2
    assert str(error).splitlines() == [
        f"{file}:2: the environment variable AN_UNSET_PATH is not set",
        f"{file}:3: unknown key 'nmae' in models[0]; did you mean 'name'? "
        "Allowed: path, name, aliases, gpu_layers, mmap, tool_format, reasoning_format, "
        "task, pooling, max_input",
        f"{file}:7: kv.value_type: q4_0 is quantized and needs flash_attention, which is off",
        f"{file}:8: duplicate key 'kv': it is in line 7 already",
        f"{file}:9: streams.lanes[0].places must be a valid integer, unable to parse string as an integer",
        "environment variable LLAMALANE_KVS__BUDGET: unknown key 'kvs'; did you mean 'kv'? "
        "Allowed: models, streams, kv, scheduler",
        "environment variable LLAMALANE_SCHEDULER__TARGET_ITL: "
        "scheduler.target_itl must be a valid number, unable to parse string as a number",
    ]


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("LLAMALANE_KV__BUDGET", "12", "kv.budget must be greater than or equal to 256"),
        ("llamalane_kv__budget", "", "kv.budget must be a valid integer"),
        ("LLAMALANE_KV__BUDGETT", "512", "unknown key 'budgett' in kv; did you mean 'budget'?"),
        ("LLAMALANE_KV", "512", "kv must be a mapping, given as JSON"),
        ("LLAMALANE_KV", '{"budget": 512, "x": 1}', "unknown key 'x' in kv"),
        ("LLAMALANE_STREAMS__LANES", "main", "streams.lanes must be a list, given as JSON"),
        ("LLAMALANE_STREAMS__LANES", "[" * 100_000, "streams.lanes must be a list, given as JSON"),
        ("LLAMALANE_STREAMS__LANES", '[{"places": 0}]', "streams.lanes[0].places must be greater"),
        ("LLAMALANE_SCHEDULER__RESERVE__NOBODY", "1", "scheduler.reserve.nobody: 'nobody' is none of the levels"),
        ("LLAMALANE_SCHEDULER__LEVELS__URGENT", "0", "scheduler.levels.urgent must be greater"),
        ("LLAMALANE_SCHEDULER__LEVELS", '{"a": 1}', "scheduler.default_level: 'normal' is none of the levels"),
        ("LLAMALANE_MODELS__0__PATH", "x.gguf", "models must be a list, given as JSON"),
        ("LLAMALANE_MODELS", "[{}]", "models[0].path is missing"),
        ("LLAMALANE_STREAM__DEVICE", "cpu", "unknown key 'stream'; did you mean 'streams'?"),
    ],
)
def test_a_mistake_in_the_environment_names_the_variable(file: Path, variable: str, value: str, message: str) -> None:
    error = refusal(file, MODELS, {variable: value})
    assert (error.source, error.line) == (None, None)
    assert str(error).startswith(f"environment variable {variable}: {message}")


def test_variables_of_others_are_left_alone(file: Path) -> None:
    others = {
        "LLAMALANE_API__PORT": "x",
        "LLAMALANE_API_KEY": "x",
        "LLAMALANE_PORT": "tcp://10.0.0.1:80",
        "OTHER__KEY": "1",
    }
    assert load(file, MODELS, others) == load(file, MODELS)


def test_a_mistake_in_an_override_is_told_by_its_key(file: Path) -> None:
    error = refusal(file, MODELS + "kv: {budget: 512}", overrides={"kv": {"budget": 1}})
    assert str(error) == "kv.budget must be greater than or equal to 256"
    assert (error.source, error.line) == (None, None)


def test_a_mistake_in_code_is_a_validation_error() -> None:
    values: dict[str, Any] = {
        "models": [{"path": "m.gguf", "nmae": "x"}],
        "kv": {"value_type": "q8_0", "flash_attention": "off"},
    }
    with pytest.raises(ValidationError) as caught:
        EngineConfig(**values)
    locations = [error["loc"] for error in caught.value.errors()]
    assert locations == [("models", 0, "nmae"), ("kv", "value_type")]


def test_code_goes_before_the_environment() -> None:
    variables = {"LLAMALANE_KV__BUDGET": "1024", "LLAMALANE_SCHEDULER__CEILING": "2"}
    with mock.patch.dict(os.environ, variables):
        config = EngineConfig(models=[ModelConfig(path=Path("m.gguf"))], kv=KVConfig(budget=512))
    assert config.kv.budget == 512
    assert config.scheduler.ceiling == 2


OPTIONS: Mapping[tuple[str, ...], st.SearchStrategy[Any]] = {
    ("streams", "device"): st.sampled_from(["auto", "cuda", "cpu"]),
    ("streams", "max_step_tokens"): st.integers(8, 4096),
    ("kv", "budget"): st.integers(4096, 65_536),
    ("kv", "key_type"): st.sampled_from(get_args(CacheType)),
    ("kv", "flash_attention"): st.sampled_from(get_args(FlashAttention)),
    ("scheduler", "ceiling"): st.integers(1, 5),
    ("scheduler", "target_itl"): st.floats(0.001, 10),
    ("scheduler", "guaranteed_share"): st.integers(0, 100),
    ("scheduler", "queue", "max_requests"): st.integers(1, 10_000),
    ("scheduler", "reserve", "agent"): st.integers(0, 3),
    ("scheduler", "reserve", "batch"): st.integers(0, 3),
}
CHOSEN = st.fixed_dictionaries({}, optional=OPTIONS)


def nested(chosen: Mapping[tuple[str, ...], Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for (*around, key), value in chosen.items():
        part = values
        for name in around:
            part = part.setdefault(name, {})
        part[key] = value
    return values


@settings(max_examples=60)
@given(in_file=CHOSEN, in_environment=CHOSEN, in_overrides=CHOSEN)
def test_the_strongest_source_wins_key_by_key(
    file: Path,
    in_file: Mapping[tuple[str, ...], Any],
    in_environment: Mapping[tuple[str, ...], Any],
    in_overrides: Mapping[tuple[str, ...], Any],
) -> None:
    text = MODELS + (yaml.safe_dump(nested(in_file)) if in_file else "")
    variables = {f"LLAMALANE_{'__'.join(key)}".upper(): str(value) for key, value in in_environment.items()}
    config = load(file, text, variables, nested(in_overrides)).model_dump(mode="json")
    defaults = EngineConfig(models=[ModelConfig(path=Path("m.gguf"))]).model_dump(mode="json")
    for option in OPTIONS:
        source = next((held for held in (in_overrides, in_environment, in_file) if option in held), None)
        found, default = config, defaults
        for part in option:
            found, default = found.get(part, {}), default.get(part, {})
        assert found == (default if source is None else source[option])


SECTIONS: list[type[BaseModel]] = [
    EngineConfig,
    ModelConfig,
    StreamsConfig,
    LaneConfig,
    KVConfig,
    SchedulerConfig,
    QueueConfig,
]


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.__name__)
def test_every_field_is_explained(section: type[BaseModel]) -> None:
    for name, field in section.model_fields.items():
        assert field.description, name
        assert field.description.endswith("."), name


def test_the_example_is_the_defaults(file: Path) -> None:
    text = config_text.example(EngineConfig)
    assert load(file, text) == load(file, MODELS)
    # "name: null" and the like are there, too: the example has every key.
    assert yaml.safe_load(text) == load(file, text).model_dump(mode="json") | {
        "models": [ModelConfig(path=Path("model.gguf")).model_dump(mode="json")]
    }
    for section in SECTIONS:
        for field in section.model_fields.values():
            assert " ".join((field.description or "?").split()[:5]) in text


def test_the_example_does_not_depend_on_the_environment() -> None:
    text = config_text.example(EngineConfig)
    with mock.patch.dict(os.environ, {"LLAMALANE_KV__BUDGET": "1024", "LLAMALANE_MODELS": "x"}):
        assert config_text.example(EngineConfig) == text


def test_the_schema_knows_ranges_and_references() -> None:
    schema = config_text.editor_schema(EngineConfig)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["required"] == ["models"]
    assert schema["additionalProperties"] is False
    places = schema["$defs"]["LaneConfig"]["properties"]["places"]
    assert places["anyOf"][0] == {"type": "integer", "minimum": 1, "maximum": 256}
    assert places["anyOf"][1] == {"type": "string", "pattern": r"\$\{env:"}
    assert places["default"] == 8
    assert places["description"] == LaneConfig.model_fields["places"].description
    budget = schema["$defs"]["KVConfig"]["properties"]["budget"]
    assert budget["anyOf"][0] == {"type": "integer", "minimum": 256, "maximum": 2_000_000_000}


def test_the_names_are_llama_cpps() -> None:
    assert set(get_args(CacheType)) == set(CACHE_TYPES)
    assert set(get_args(FlashAttention)) == set(FLASH_ATTENTION)


def test_importing_it_loads_nothing_heavy() -> None:
    program = "import sys, llamalane.scheduler.config; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=SOURCE, capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "pydantic_settings" in loaded
    assert loaded.isdisjoint({"cuda", "fastapi", "llama_cpp", "starlette", "typer"})


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ("kv: {disk: /tmp/somewhere, swap: 0}", "kv.disk: needs host memory to go through: swap is 0"),
        ("kv: {swap: 0}\nscheduler: {park: swap}", "scheduler.park: swap needs host memory, and kv.swap is 0"),
    ],
)
def test_what_needs_host_memory_is_refused_where_there_is_none(tmp_path: Path, written: str, complaint: str) -> None:
    file = tmp_path / "llamalane.yaml"
    file.write_text(f"models: [{{path: m.gguf}}]\n{written}\n")
    with pytest.raises(ConfigError) as refusal:
        EngineConfig.from_yaml(file)
    assert complaint in str(refusal.value)

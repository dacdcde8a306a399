"""The server's configuration, and what it keeps secret."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from pydantic import SecretStr, ValidationError

from llamalane.api.config import ApiConfig, ServerConfig
from llamalane.errors import ConfigError
from llamalane.scheduler.config import ModelConfig

SECRET = "sk-5ekret"
MODELS = "models: [{path: model.gguf}]\n"


@pytest.fixture(autouse=True)
def _no_variables() -> Iterator[None]:
    others = {name: value for name, value in os.environ.items() if not name.upper().startswith("LLAMALANE_")}
    with mock.patch.dict(os.environ, others, clear=True):
        yield


def load(folder: Path, text: str, environment: Mapping[str, str] | None = None) -> ServerConfig:
    file = folder / "server.yaml"
    file.write_text(MODELS + text, encoding="utf-8")
    with mock.patch.dict(os.environ, environment or {}):
        return ServerConfig.from_yaml(file)


def test_the_defaults() -> None:
    config = ServerConfig(models=[ModelConfig(path=Path("m.gguf"))])
    assert config.api == ApiConfig(host="127.0.0.1", port=8000, api_key=None, max_body_bytes=16_777_216)


def test_the_api_section_is_read(tmp_path: Path) -> None:
    text = 'api: {host: "::1", port: "${env:PORT}", api_key: "${env:LLAMALANE_API_KEY}", ping_after: 0.5}'
    config = load(tmp_path, text, {"LLAMALANE_API_KEY": SECRET, "PORT": "0"})
    assert config.api == ApiConfig(host="::1", port=0, api_key=SecretStr(SECRET), ping_after=0.5)


def test_every_field_is_explained() -> None:
    assert all(field.description for kind in (ApiConfig, ServerConfig) for field in kind.model_fields.values())


def test_the_environment_goes_before_the_file(tmp_path: Path) -> None:
    variables = {"LLAMALANE_API__PORT": "9000", "LLAMALANE_API__API_KEY": SECRET}
    config = load(tmp_path, "api: {port: 1, host: example.org}", variables)
    assert config.api == ApiConfig(host="example.org", port=9000, api_key=SecretStr(SECRET))


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("{prot: 80}", "2: unknown key 'prot' in api; did you mean 'port'? Allowed: host, port, api_key"),
        ("{port: 65536}", "2: api.port must be less than or equal to 65535"),
        ("{port: -1}", "2: api.port must be greater than or equal to 0"),
        ("{host: ''}", "2: api.host"),
        ("{max_body_bytes: 0}", "2: api.max_body_bytes"),
        ("{ping_after: 0}", "2: api.ping_after"),
        ("\n  api_key: ${env:AN_UNSET_KEY}", "3: the environment variable AN_UNSET_KEY is not set"),
        ("\n  api_key: ''", "3: api.api_key"),
        ("\n  api_key: ${env:AN_EMPTY_KEY}", "3: api.api_key"),
    ],
)
def test_a_mistake_is_told_with_its_line(tmp_path: Path, section: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, f"api: {section}", {"AN_EMPTY_KEY": ""})
    assert f"server.yaml:{message}" in str(caught.value)


def test_an_empty_variable_does_not_switch_authentication_off(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^environment variable LLAMALANE_API__API_KEY: api\.api_key"):
        load(tmp_path, f"api: {{api_key: {SECRET}}}", {"LLAMALANE_API__API_KEY": ""})


def everything_shown(error: BaseException) -> str:
    return f"{error} {error!r} {error.args} {vars(error)} {error.__cause__} {error.__cause__!r}"


@pytest.mark.parametrize(
    "text",
    [
        f"api: {{api_key: {SECRET}, port: x}}",
        f"api: {{api_key: [{SECRET}]}}",
        f"api: {{api_key: {{key: {SECRET}}}}}",
        f"api: {{apikey: {SECRET}}}",
        f"api: {{api_key:{SECRET}}}",
        f"api: {{api_key:{SECRET}, api_key:{SECRET}}}",
        f"api: {SECRET}",
        f"api: [{SECRET}]",
        f"api_key: {SECRET}",
        f"api: {{api_key: {SECRET}, api_key: {SECRET}}}",
        f"api: {{port: {SECRET}}}",
        f"api: {{api_key: {SECRET}\n",
        f'api: {{api_key: "{SECRET}',
        f"api: {{api_key: *{SECRET}}}",
        f"api: {{api_key: !{SECRET}}}",
        f"api: {{api_key: {SECRET}}}\nkv: {{value_type: q8_0, flash_attention: off}}",
        f"api: {{api_key: {SECRET}}}\nscheduler: {{reserve: {{agent: 8}}}}",
        "api: {api_key: '${env:KEY}', port: x}",
        "api: {port: '${env:KEY}'}",
    ],
)
def test_no_error_shows_the_key(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text, {"KEY": SECRET})
    assert SECRET not in everything_shown(caught.value)


def test_a_key_of_digits_must_be_quoted_and_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must be a text; put a number or a constant in quotes") as caught:
        load(tmp_path, "api: {api_key: 123456789}")
    assert "123456789" not in everything_shown(caught.value)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("LLAMALANE_API", f'{{"api_key": "{SECRET}", "x": 1}}'),
        ("LLAMALANE_API", f'{{"api_key": "{SECRET}"'),
        ("LLAMALANE_API__PORT", SECRET),
        ("LLAMALANE_API__APIKEY", SECRET),
        ("LLAMALANE_APIS__API_KEY", SECRET),
    ],
)
def test_no_error_shows_a_variables_value(tmp_path: Path, variable: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"^environment variable {variable}: ") as caught:
        load(tmp_path, "", {variable: value})
    assert SECRET not in everything_shown(caught.value)


@pytest.mark.parametrize(
    "values",
    [
        {"api": {"api_key": [SECRET]}},
        {"api": {"api_key": SECRET, "port": "x"}},
        {"api": {"apikey": SECRET}},
        {"api": {"api_key": SECRET}, "kv": {"value_type": "q8_0", "flash_attention": "off"}},
        {"api": {"api_key": SECRET}, "scheduler": {"reserve": {"agent": 8}}},
    ],
)
def test_a_validation_error_shows_no_input(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        ServerConfig(models=[ModelConfig(path=Path("m.gguf"))], **values)
    assert SECRET not in f"{caught.value} {caught.value!r}"
    with pytest.raises(ValidationError) as caught:
        ApiConfig(api_key=[SECRET])  # type: ignore[arg-type]
    assert SECRET not in f"{caught.value} {caught.value!r}"


def test_a_configuration_does_not_show_the_key(tmp_path: Path) -> None:
    config = load(tmp_path, f"api: {{api_key: {SECRET}}}")
    assert SECRET not in f"{config} {config!r} {config.api} {config.model_dump()} {config.model_dump_json()}"
    assert config.api.api_key is not None
    assert config.api.api_key.get_secret_value() == SECRET

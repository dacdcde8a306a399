"""Which keys open a server, and what each of them allows."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from llamalane.api import ApiConfig, ServerConfig
from llamalane.api.config import KeyConfig
from llamalane.api.keys import ANYONE, Caller, KeyRing, digest_of, levels_of, load_keys
from llamalane.errors import ConfigError
from llamalane.ids import Level
from llamalane.scheduler import ModelConfig, PriorityLevels

ALICE, BOB = "alice-0123456789abcdef", "bob-0123456789abcdef"
LEVELS: PriorityLevels = levels_of(ServerConfig(models=[ModelConfig(path=Path("m.gguf"))]))


def sha256(key: str) -> str:
    return digest_of(key.encode()).hex()


def ring(environment: Mapping[str, str] | None = None, **api: Any) -> KeyRing:
    return load_keys(ApiConfig(**api), LEVELS, environment or {})


def find(keys: KeyRing, *shown: str) -> Caller | None:
    return keys.find([key.encode() for key in shown])


def test_without_keys_a_server_is_open() -> None:
    keys = ring()
    assert keys.open
    assert not keys.personal
    assert not keys.has_admin


def test_a_key_is_found_by_its_hash_with_what_it_allows() -> None:
    keys = ring(
        keys=[
            KeyConfig(name="alice", sha256=sha256(ALICE), tenant="research", level="agent", separate_users=True),
            KeyConfig(name="bob", sha256=sha256(BOB), admin=True),
        ]
    )
    assert find(keys, ALICE) == Caller("alice", "research", Level(2), admin=False, separate_users=True)
    assert find(keys, BOB) == Caller("bob", "bob", Level(1), admin=True)
    assert find(keys, "wrong", ALICE) == find(keys, ALICE)
    assert find(keys, "wrong") is find(keys) is find(keys, sha256(ALICE)) is None
    assert keys.has_admin
    assert keys.personal


def test_the_one_key_for_all_allows_every_level_and_does_not_administer() -> None:
    keys = ring(api_key=SecretStr(ALICE))
    assert find(keys, ALICE) is ANYONE
    assert not keys.open
    assert not keys.personal


def test_keys_are_compared_in_constant_time_with_every_key(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def compare(first: bytes, second: bytes) -> bool:
        compared.append((first, second))
        return compare_digest(first, second)

    compare_digest = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", compare)
    keys = ring(keys=[KeyConfig(name="alice", sha256=sha256(ALICE)), KeyConfig(name="bob", sha256=sha256(BOB))])
    for shown in (ALICE, "wrong"):
        compared.clear()
        find(keys, shown)
        digests = [digest_of(key.encode()) for key in (ALICE, BOB)]
        assert compared == [(digest_of(shown.encode()), digest) for digest in digests]


def test_a_key_without_a_hash_comes_from_the_environment() -> None:
    environment = {"LLAMALANE_API_KEYS": f"alice={ALICE},\n  carol=a=b=c"}
    keys = ring(environment, keys=[KeyConfig(name="alice", level="batch")])
    assert find(keys, ALICE) == Caller("alice", "alice", Level(5))
    assert find(keys, "a=b=c") == Caller("carol", "carol", Level(1))


@pytest.mark.parametrize("text", ["", " ", " ,\n"])
def test_an_empty_variable_does_not_open_the_server(text: str) -> None:
    with pytest.raises(ConfigError, match="LLAMALANE_API_KEYS is empty: write name=key, or unset it"):
        ring({"LLAMALANE_API_KEYS": text})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("alice", "entry 1: write name=key"),
        (f"alice={ALICE} {BOB}", "entry 2: write name=key"),
        ("alice=", "entry 1: write name=key"),
        (f"a/b={BOB}", "entry 1: write name=key"),
        (f"alice={ALICE} alice={BOB}", "names 'alice' twice"),
        (f"alice={ALICE} bob={ALICE}", "two API keys are the same"),
    ],
)
def test_a_mistake_in_the_environment_is_told_without_the_keys(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        ring({"LLAMALANE_API_KEYS": text})
    assert ALICE not in str(caught.value)
    assert BOB not in str(caught.value)


def test_a_keys_file_adds_keys(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(f"keys:\n  - {{name: alice, sha256: {sha256(ALICE)}, admin: true}}\n")
    keys = ring(keys=[KeyConfig(name="bob", sha256=sha256(BOB))], keys_file=file)
    assert find(keys, ALICE) == Caller("alice", "alice", admin=True)
    assert find(keys, BOB) == Caller("bob", "bob")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("keys: [{name: alice}]", "'alice' has no sha256"),
        ("keys:\n  - {name: alice, sha256: abc}", r"keys\.yaml:2: keys\[0\]\.sha256"),
        ("keys:\n  - name: alice\n    key: plain", r"keys\.yaml:3: keys\[0\]\.key"),
        ("keys:\n  - {name: alice, sha256: '${env:UNSET_KEY}'}", r"keys\.yaml:2: the environment variable"),
        ("keyz: []", r"keys\.yaml:1: "),
        ("keys: []", r"keys\.yaml:1: keys: List should have at least 1 item"),
        (f"keys:\n  - {{name: alice, sha256: {sha256(BOB)}, level: urgent}}", "level 'urgent' of key 'alice'"),
        (f"keys: [{{name: bob, sha256: {sha256(ALICE)}}}]", "two API keys are called 'bob'"),
        (f"keys: [{{name: alice, sha256: {sha256(BOB)}}}]", "two API keys are the same"),
    ],
)
def test_a_mistake_in_a_keys_file_is_told(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        ring(keys=[KeyConfig(name="bob", sha256=sha256(BOB))], keys_file=file)


def test_a_keys_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.yaml: the file cannot be read"):
        ring(keys_file=tmp_path / "missing.yaml")


def test_a_key_has_one_source() -> None:
    with pytest.raises(ConfigError, match="'alice' has a sha256, and stands in LLAMALANE_API_KEYS too"):
        ring({"LLAMALANE_API_KEYS": f"alice={BOB}"}, keys=[KeyConfig(name="alice", sha256=sha256(ALICE))])


def test_tenants_come_from_the_user_field_only_without_keys_of_single_clients(tmp_path: Path) -> None:
    assert not ring(api_key=SecretStr(ALICE), tenant_from_user=True).open
    with pytest.raises(ConfigError, match="tenant_from_user is for servers without keys"):
        ring({"LLAMALANE_API_KEYS": f"alice={ALICE}"}, tenant_from_user=True)
    with pytest.raises(ValidationError, match="is not possible with keys of single clients"):
        ApiConfig(keys_file=tmp_path / "keys.yaml", tenant_from_user=True)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("keys: [{name: a, sha256: XYZ}]", "3: api.keys[0].sha256"),
        ("keys: [{name: 'a b'}]", "3: api.keys[0].name"),
        ("keys: [{name: a, tenant: ''}]", "3: api.keys[0].tenant"),
        ("keys: [{name: a, level: sometime}]", "3: api.keys[0].level: 'sometime' is none of the levels"),
        ("keys: [{name: a, key: plain}]", "3: unknown key 'key' in api.keys[0]; Allowed: name, sha256, tenant"),
        ("keys: [{name: a}, {name: a}]", "3: api.keys: two keys are called 'a'"),
        ("above_level: maybe", "3: api.above_level must be 'refuse' or 'cap'"),
        ("cors_origins: [example.org]", "3: api.cors_origins[0]"),
        ("ssl_keyfile: key.pem", "3: api.ssl_keyfile: needs ssl_certfile beside it"),
        ("metrics_key: ''", "3: api.metrics_key"),
    ],
)
def test_a_mistake_in_the_configuration_is_told_with_its_line(tmp_path: Path, section: str, message: str) -> None:
    file = tmp_path / "server.yaml"
    file.write_text(f"models: [{{path: m.gguf}}]\napi:\n  {section}\n")
    with pytest.raises(ConfigError) as caught:
        ServerConfig.from_yaml(file)
    assert f"server.yaml:{message}" in str(caught.value)


def test_relative_paths_start_at_the_files_folder(tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    file.write_text("models: [{path: m.gguf}]\napi: {keys_file: keys.yaml, ssl_certfile: /etc/cert.pem}\n")
    config = ServerConfig.from_yaml(file)
    assert config.models[0].path == tmp_path / "m.gguf"
    assert config.api.keys_file == tmp_path / "keys.yaml"
    assert config.api.ssl_certfile == Path("/etc/cert.pem")

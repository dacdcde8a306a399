"""What a running app takes over of a new configuration."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from llamalane.api import ApiConfig, ServerConfig, create_app, lifespan_of, reload_config
from llamalane.api.config import KeyConfig
from llamalane.api.service import RELOADABLE as API_SETTINGS
from llamalane.errors import ConfigError
from llamalane.scheduler import Engine, ModelConfig, SchedulerConfig
from llamalane.scheduler.reload import RELOADABLE as ENGINE_SETTINGS
from tests.api.asgi import client_of
from tests.api.test_keys import ALICE, BOB, sha256

pytestmark = pytest.mark.anyio


def config_of(model: Path, scheduler: dict[str, Any] | None = None, **api: Any) -> ServerConfig:
    settings = SchedulerConfig.model_validate(scheduler or {})
    return ServerConfig(models=[ModelConfig(path=model)], scheduler=settings, api=ApiConfig(**api))


def key(name: str, plain: str, **more: Any) -> KeyConfig:
    return KeyConfig(name=name, sha256=sha256(plain), **more)


async def test_keys_are_taken_over_and_what_needs_a_restart_is_told(tiny_model: Path) -> None:
    app = create_app(Engine(config_of(tiny_model, keys=[key("alice", ALICE)])))
    async with client_of(app, {"x-api-key": BOB}) as client:
        assert (await client.get("/v1/models")).status_code == 401
        new = config_of(tiny_model, {"target_itl": 0.5}, keys=[key("bob", BOB)], port=1, above_level="cap")
        changes = reload_config(app, new)
        assert set(changes.applied) == {"scheduler.target_itl", "api.keys", "api.above_level"}
        assert changes.restart == ("api.port",)
        assert (await client.get("/v1/models")).status_code == 503  # let in; there is no model yet
        assert (await client.get("/v1/models", headers={"x-api-key": ALICE})).status_code == 401
    assert reload_config(app, new).restart == ("api.port",)


async def test_all_that_can_be_reloaded_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "operating.md").read_text()
    section = text.partition("## Changing the configuration")[2].partition("\n## ")[0]
    assert [name for name in API_SETTINGS | ENGINE_SETTINGS if not re.search(rf"[`.]{name}`", section)] == []


async def test_a_keys_file_is_read_again(tiny_model: Path, tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(f"keys: [{{name: alice, sha256: {sha256(ALICE)}}}]")
    config = config_of(tiny_model, keys_file=file)
    app = create_app(Engine(config))
    assert reload_config(app, config).applied == ()
    file.write_text(f"keys: [{{name: bob, sha256: {sha256(BOB)}}}]")
    assert reload_config(app, config).applied == ("api.keys_file",)
    async with client_of(app) as client:
        assert (await client.get("/v1/models", headers={"x-api-key": ALICE})).status_code == 401
        assert (await client.get("/v1/models", headers={"x-api-key": BOB})).status_code == 503


async def test_a_mistake_keeps_all_as_it_was(tiny_model: Path, tmp_path: Path) -> None:
    engine = Engine(config_of(tiny_model, keys=[key("alice", ALICE)]))
    app = create_app(engine)
    before = engine.config
    with pytest.raises(ConfigError, match=r"missing\.yaml"):
        reload_config(app, config_of(tiny_model, {"target_itl": 0.5}, keys_file=tmp_path / "missing.yaml"))
    other_levels = {"levels": {"only": 3}, "default_level": "only", "queue": {"reserve": {"only": 1}}}
    with pytest.raises(ConfigError, match=r"scheduler\.queue\.reserve"):
        reload_config(app, config_of(tiny_model, other_levels, keys=[key("bob", BOB)]))
    assert engine.config == before
    async with client_of(app, {"x-api-key": ALICE}) as client:
        assert (await client.get("/v1/models")).status_code == 503


async def test_a_server_that_no_longer_asks_for_keys_warns(tiny_model: Path, caplog: pytest.LogCaptureFixture) -> None:
    app = create_app(Engine(config_of(tiny_model, api_key=SecretStr(ALICE))))
    with caplog.at_level(logging.WARNING, "llamalane.api"):
        assert reload_config(app, config_of(tiny_model)).applied == ("api.api_key",)
    assert "no API key is asked for any more" in caplog.text


async def test_an_app_that_runs_its_own_engine_takes_settings_over_before_and_after_it_starts(tiny_model: Path) -> None:
    app = create_app(config_of(tiny_model))
    assert reload_config(app, config_of(tiny_model, {"target_itl": 0.5})).applied == ("scheduler.target_itl",)
    async with lifespan_of(app)(app):
        engine = app.state.llamalane.engine
        assert engine.config.scheduler.target_itl == 0.5
        assert reload_config(app, config_of(tiny_model, {"target_itl": 0.7})).applied == ("scheduler.target_itl",)
        assert engine.config.scheduler.target_itl == 0.7
    async with lifespan_of(app)(app):
        assert app.state.llamalane.engine.config.scheduler.target_itl == 0.7

"""Keys, and a server that is not there, not yet, or not any more."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from playwright.sync_api import expect

from llamalane.api import ApiConfig, ServerConfig, create_app
from llamalane.api.config import KeyConfig
from llamalane.scheduler import EngineState, ModelConfig, SchedulerConfig
from tests.api.fake_engine import ScriptedEngine, as_engine
from tests.api.serving import served
from tests.api.test_keys import sha256
from tests.browser.conftest import OpenPage

pytestmark = pytest.mark.browser

KEYS = {"alice": "the key of alice", "root": "the key of root"}
REFUSED = "401|503|ERR_CONNECTION|ERR_INCOMPLETE|ERR_EMPTY|net::"
"""Browsers log every answer that is an error, and every failed connection."""


def app_of(model: Path, *, keys: bool = False) -> FastAPI:
    entries = [KeyConfig(name=name, sha256=sha256(key), admin=name == "root") for name, key in KEYS.items()]
    return create_app(
        ServerConfig(
            models=[ModelConfig(path=model, name="tiny")],
            scheduler=SchedulerConfig(drain_timeout=0),
            api=ApiConfig(keys=entries if keys else []),
        )
    )


@pytest.fixture
def locked(tiny_model: Path) -> Iterator[str]:
    """A server that asks for keys, on which each of them has had one request."""
    with (
        served(app_of(tiny_model, keys=True), patience=1) as url,
        httpx.Client(base_url=url, trust_env=False) as client,
    ):
        for key in KEYS.values():
            body = {"prompt": "x", "max_tokens": 2}
            while client.post("/v1/completions", json=body, headers={"x-api-key": key}).status_code == 503:
                pass
        yield url


def test_a_key_is_asked_for_and_kept_in_the_tab_alone(open_page: OpenPage, locked: str) -> None:
    page = open_page(f"{locked}/dashboard", ignore=REFUSED)
    expect(page.locator("#connection-text")).to_have_text("A key is needed")
    expect(page.locator("#board")).to_be_hidden()
    expect(page.get_by_label("API key")).to_be_focused()
    for wrong, told in (("the key of nobody", "This key does not open it."), ("schlüssel ☃", "No key has such")):
        page.get_by_label("API key").fill(wrong)
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text(told)
    page.get_by_label("API key").fill(KEYS["root"])
    page.keyboard.press("Enter")
    expect(page.locator("#connection-text")).to_have_text("Live")
    expect(page.locator("#key-section")).to_be_hidden()
    page.reload()
    expect(page.locator("#connection-text")).to_have_text("Live")
    kept = page.evaluate("[localStorage.length, document.cookie, Object.values(sessionStorage)]")
    assert kept == [0, "", [KEYS["root"]]]
    page.get_by_role("button", name="Forget the key").click()
    expect(page.get_by_label("API key")).to_be_visible()
    assert page.evaluate("sessionStorage.length") == 0


def test_a_key_shows_its_tenants_requests_alone(open_page: OpenPage, locked: str) -> None:
    for name, seen in (("alice", ["alice"]), ("root", ["alice", "root"])):
        page = open_page(f"{locked}/dashboard", ignore=REFUSED)
        page.get_by_label("API key").fill(KEYS[name])
        page.keyboard.press("Enter")
        expect(page.locator("#ended-rows tr")).to_have_count(len(seen))
        expect(page.locator("#finished-count")).to_have_text("2")
        if name == "root":
            assert sorted(page.locator("#ended-rows td.tenant").all_inner_texts()) == seen
        else:
            expect(page.locator("#ended-rows td.tenant")).to_be_hidden()


def test_the_page_survives_a_restart_of_the_server_on_the_same_port(open_page: OpenPage, tiny_model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as chosen:
        port = chosen.getsockname()[1]
    with served(app_of(tiny_model), port=port, patience=1) as url:
        page = open_page(f"{url}/dashboard", ignore=REFUSED)
        expect(page.locator("#connection-text")).to_have_text("Live")
        answer = httpx.post(f"{url}/v1/completions", json={"prompt": "x", "max_tokens": 2}, trust_env=False)
        assert answer.status_code == 200
        expect(page.locator("#ended-rows tr")).to_have_count(1)
    expect(page.locator("#connection-text")).to_contain_text("Disconnected")
    expect(page.locator("#connection")).to_have_attribute("data-state", "lost")
    expect(page.get_by_role("button", name="Try now")).to_be_visible()
    expect(page.locator("#ended-rows tr")).to_have_count(1)  # what was known last stays to be seen
    with served(app_of(tiny_model), port=port, patience=1):
        expect(page.locator("#connection-text")).to_have_text("Live")
        expect(page.locator("#ended-rows tr")).to_have_count(0)
        expect(page.locator("#ended-empty")).to_be_visible()


def test_while_the_model_loads_the_page_says_so_and_asks_again(open_page: OpenPage) -> None:
    engine = ScriptedEngine(state=EngineState.LOADING)
    with served(create_app(as_engine(engine))) as url:
        page = open_page(f"{url}/dashboard", ignore=REFUSED)
        expect(page.locator("#connection-text")).to_contain_text("The model is being loaded.")
        with page.expect_request(lambda request: request.url.endswith("/events")):
            pass
        with page.expect_request(lambda request: request.url.endswith("/events")):
            page.get_by_role("button", name="Try now").click()

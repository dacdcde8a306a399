"""The page on a real server under load: what it shows, to whom, and how it can be used."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from playwright.sync_api import Page, expect

from llamalane.api import ServerConfig, create_app, lifespan_of
from llamalane.scheduler import KVConfig, LaneConfig, ModelConfig, SchedulerConfig, StreamsConfig
from tests.api.serving import served
from tests.browser.conftest import OpenPage
from tests.browser.watching import fits_its_width, is_drawn, obstacles

pytestmark = pytest.mark.browser

CANARY = "Rumpelstiltskin"
PLACES = 3
ENDLESS = 1_000_000
PHONE = {"viewport": {"width": 360, "height": 740}, "device_scale_factor": 2, "is_mobile": True, "has_touch": True}
KEEP_WHAT_IS_DECODED = """
const decode = TextDecoder.prototype.decode;
window.received = "";
TextDecoder.prototype.decode = function (...rest) {
  const text = decode.apply(this, rest);
  window.received += text;
  return text;
};
"""
WRONG_BY_YEARS = "Date.now = () => 1e12; Date = class extends Date { constructor() { super(1e12); } };"


def app_of(model: Path) -> FastAPI:
    config = ServerConfig(
        models=[ModelConfig(path=model, name="tiny")],
        streams=StreamsConfig(
            lanes=[LaneConfig(name="main", places=2, threads=1), LaneConfig(name="side", places=1, threads=1)]
        ),
        kv=KVConfig(context_shift=True),
        scheduler=SchedulerConfig(drain_timeout=0),
    )
    return create_app(config)


@pytest.fixture(scope="module")
def url(tiny_model: Path) -> Iterator[str]:
    """A server at a prefix of another app, as soon as it is ready."""
    llm = app_of(tiny_model)
    host = FastAPI(lifespan=lifespan_of(llm))
    host.mount("/llm", llm)
    with served(host, patience=1) as address:
        transport = httpx.HTTPTransport(retries=3)
        with httpx.Client(transport=transport, trust_env=False) as client:
            while client.get(f"{address}/llm/health").status_code != 200:
                pass
        yield f"{address}/llm"


@contextlib.contextmanager
def burst(url: str, levels: list[int]) -> Iterator[None]:
    """Ask at once, for more than anybody waits for; the clients go away at the end of the block."""
    with httpx.Client(trust_env=False, timeout=60) as client, contextlib.ExitStack() as stack:
        gone = threading.Event()

        def ask(level: int) -> None:
            body = {"prompt": CANARY, "max_tokens": ENDLESS, "priority": level, "ignore_eos": True, "stream": True}
            with client.stream("POST", f"{url}/v1/completions", json=body) as answer:
                for _ in answer.iter_bytes():
                    if gone.is_set():
                        return

        for level in levels:
            thread = threading.Thread(target=ask, args=(level,))
            stack.callback(thread.join)
            thread.start()
        stack.callback(gone.set)
        yield


@pytest.fixture
def busy(url: str) -> Iterator[str]:
    """The same server, with all places taken and some requests waiting, for as long as the test lasts."""
    with burst(url, [3, 3, 3, 5, 5, 4]):
        yield url


def dashboard(open_page: OpenPage, url: str, **options: Any) -> Page:
    page = open_page(f"{url}/dashboard", **options)
    expect(page.locator("#connection-text")).to_have_text("Live")
    return page


def test_a_burst_is_shown_as_it_happens(open_page: OpenPage, url: str) -> None:
    page = dashboard(open_page, url)
    expect(page.locator("#running-count")).to_have_text("0")
    expect(page.locator("#running-empty")).to_be_visible()
    with burst(url, [5, 5, 5, 5, 5, 5, 1]):
        expect(page.locator("#running-count")).to_have_text(str(PLACES))
        expect(page.locator("#places")).to_have_text(f"of {PLACES} places")
        expect(page.locator("#running-rows tr")).not_to_have_count(0)
        expect(page.locator("#running-rows")).to_contain_text("decode")
        expect(page.locator("#running-rows")).to_contain_text("interactive")
        expect(page.locator("#waiting-count")).to_have_text("4")
        expect(page.locator("#waiting-rows tr")).to_have_count(4)
        ages = page.locator("#levels canvas").nth(4)
        expect(ages).to_have_attribute(
            "aria-label", re.compile("^Ages at level 5: 4 requests waiting, the oldest for ")
        )
        assert page.title().startswith("3 running, 4 waiting")
        for canvas in ("#lane-list canvas", "#regions canvas", "#rate-line", "#levels li:nth-child(5) canvas"):
            assert is_drawn(page, canvas), canvas
        label = page.locator("#lane-list canvas").first.get_attribute("aria-label") or ""
        assert label.startswith("Lane main, of the last 30 seconds: decode ")
    expect(page.locator("#running-count")).to_have_text("0")
    expect(page.locator("#ended-rows tr")).to_have_count(7)
    expect(page.locator("#ended-rows")).to_contain_text("cancelled")


def test_no_text_of_a_prompt_is_shown_or_sent(open_page: OpenPage, busy: str) -> None:
    page = dashboard(open_page, busy, before=lambda page: page.add_init_script(KEEP_WHAT_IS_DECODED))
    expect(page.locator("#running-rows tr")).not_to_have_count(0)
    page.locator("#running-rows button").first.click()
    expect(page.locator("#life-events li")).not_to_have_count(0)
    received = page.evaluate("window.received")
    assert "dashboard.snapshot" in received
    assert CANARY not in received + page.content()


def test_a_life_is_shown_and_goes_on(open_page: OpenPage, busy: str) -> None:
    page = dashboard(open_page, busy)
    page.locator("#running-rows button").first.click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    expect(dialog.locator("#life-state")).to_have_text("it is running.")
    expect(dialog.locator("#life-events")).to_contain_text("admitted")
    expect(dialog.locator("#life-events")).to_contain_text("first token")
    assert is_drawn(page, "#life-bar")
    before = dialog.locator("#life-facts").inner_text()
    expect(dialog.locator("#life-facts")).not_to_have_text(before)
    page.get_by_role("button", name="Close").click()
    expect(dialog).to_be_hidden()
    page.locator("#waiting-rows button").first.click()
    expect(dialog.locator("#life-state")).to_contain_text("It waits: ")
    expect(dialog.locator("#life-state")).to_contain_text("likely to start in")


def test_a_bar_of_the_drawing_opens_its_request(open_page: OpenPage, busy: str) -> None:
    page = dashboard(open_page, busy)
    expect(page.locator("#running-rows tr")).to_have_count(PLACES)
    canvas = page.locator("#lane-list canvas").first
    width = canvas.evaluate("canvas => canvas.clientWidth")
    canvas.click(position={"x": width - 3, "y": 44 + 6 + 4})
    expect(page.get_by_role("dialog")).to_be_visible()


def test_everything_can_be_reached_and_used_by_keyboard(open_page: OpenPage, busy: str) -> None:
    page = dashboard(open_page, busy)
    expect(page.locator("#waiting-rows tr")).to_have_count(3)
    reached = []
    for _ in range(40):
        page.keyboard.press("Tab")
        focused: dict[str, str] = page.evaluate(
            """() => {
              const at = document.activeElement;
              const shown = at.matches('input[name=span]') ? at.parentElement : at;
              const style = getComputedStyle(shown);
              return { tag: at.tagName, name: at.id || at.name || at.className || at.textContent,
                       outline: style.outlineStyle, width: style.outlineWidth };
            }"""
        )
        if focused["tag"] == "BODY":
            break
        reached.append(focused["name"])
        assert focused["outline"] == "solid", focused
        assert focused["width"] != "0px", focused
    assert reached[0] == "skip"
    assert {"span", "request", "By sequence"} <= set(reached)
    page.locator("#running-rows button").first.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    assert page.evaluate("document.getElementById('life').contains(document.activeElement)")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    assert page.evaluate("document.activeElement.className") == "request"
    page.locator("input[name=span][value='30']").focus()
    page.keyboard.press("ArrowRight")
    label = page.locator("#lane-list canvas").first
    expect(label).to_have_attribute("aria-label", re.compile("of the last 120 seconds"))


def test_axe_finds_no_obstacles(open_page: OpenPage, busy: str) -> None:
    page = dashboard(open_page, busy)
    expect(page.locator("#waiting-rows tr")).to_have_count(3)
    page.locator("summary").first.click()
    assert obstacles(page) == []
    page.emulate_media(color_scheme="dark")
    assert obstacles(page, rules=["color-contrast"]) == []
    page.locator("#running-rows button").first.click()
    expect(page.locator("#life-events li")).not_to_have_count(0)
    assert obstacles(page, "#life") == []


def test_a_phone_shows_it_without_sideways_scrolling(open_page: OpenPage, busy: str) -> None:
    page = dashboard(open_page, busy, **PHONE)
    expect(page.locator("#waiting-rows tr")).to_have_count(3)
    page.locator("summary").first.click()
    assert fits_its_width(page)
    page.locator("#running-rows button").first.click()
    expect(page.get_by_role("dialog")).to_be_visible()
    assert fits_its_width(page)


def test_a_browser_whose_clock_is_wrong_shows_right_ages(open_page: OpenPage, busy: str) -> None:
    page = dashboard(open_page, busy, before=lambda page: page.add_init_script(WRONG_BY_YEARS))
    ages = page.locator("#running-rows td:last-child")
    expect(ages).to_have_count(PLACES)
    for text in ages.all_inner_texts():
        number, unit = text.split()
        assert unit == "s"
        assert 0 <= float(number) < 60


def test_who_wants_little_motion_gets_none(open_page: OpenPage, busy: str) -> None:
    page = dashboard(open_page, busy, reduced_motion="reduce")
    expect(page.locator("#running-rows tr")).to_have_count(PLACES)
    assert page.evaluate("getComputedStyle(document.getElementById('board')).transitionDuration") == "0s"


def test_a_hidden_page_asks_for_nothing_until_it_is_seen_again(open_page: OpenPage, url: str) -> None:
    page = dashboard(open_page, url)
    show = "hidden => { Object.defineProperty(document, 'hidden', { value: hidden, configurable: true });"
    show += "document.dispatchEvent(new Event('visibilitychange')); }"
    with page.expect_event("requestfailed", lambda request: request.url.endswith("/events")):
        page.evaluate(show, True)
    with page.expect_request(lambda request: request.url.endswith("/events")):
        page.evaluate(show, False)
    expect(page.locator("#connection-text")).to_have_text("Live")

"""A real browser, and pages in it that must not complain."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.browser.watching import Watched

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

PATIENCE = 60_000
"""In milliseconds; nothing that works takes so long, even on a machine that is busy with something else."""
expect.set_options(timeout=PATIENCE)

OpenPage = Callable[..., Page]
"""Opens an address in a context of its own; takes what `Browser.new_context` takes, and what `Watched` may ignore."""


# Not for the whole session: while the driver runs, it holds the thread's event loop, which other tests want.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium, without a window; none is fetched."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip(f"needs Chromium: none of {', '.join(NAMES)} is installed")
    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=path)
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """Opens pages. After the test, none of them may have had an error, or have asked another server for anything."""
    watched: list[Watched] = []

    def open_one(url: str, *, ignore: str = "", before: Callable[[Page], None] | None = None, **options: Any) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        context.set_default_timeout(PATIENCE)
        page = context.new_page()
        watched.append(Watched(page, url, ignore))
        if before is not None:
            before(page)
        page.goto(url)
        return page

    yield open_one
    problems = [problem for one in watched for problem in one.problems]
    for one in watched:
        one.page.context.close()
    assert problems == []

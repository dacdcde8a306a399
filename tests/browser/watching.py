"""What a page does that it should not, and what it takes of the browser."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import ConsoleMessage, Error, Page, Request

RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")


class Watched:
    """A page's errors, and whatever it asked of others than its own server; `ignore` matches what may be."""

    def __init__(self, page: Page, url: str, ignore: str = "") -> None:
        self.page = page
        self.problems: list[str] = []
        self._home = urlsplit(url).netloc
        self._ignore = re.compile(ignore) if ignore else None
        page.on("console", self._on_console)
        page.on("pageerror", self._on_error)
        page.on("request", self._on_request)

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self._note(f"{message.type}: {message.text}")

    def _on_error(self, error: Error) -> None:
        self._note(f"uncaught: {error}")

    def _on_request(self, request: Request) -> None:
        if urlsplit(request.url).netloc != self._home:
            self._note(f"asked {request.url}")

    def _note(self, problem: str) -> None:
        if self._ignore is None or not self._ignore.search(problem):
            self.problems.append(problem)


@dataclass(frozen=True)
class Footprint:
    """What a page takes, after a garbage collection."""

    heap: float
    nodes: float
    listeners: float


def footprint(page: Page) -> Footprint:
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    for _ in range(3):
        session.send("HeapProfiler.collectGarbage")
    found = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    session.detach()
    return Footprint(found["JSHeapUsedSize"], found["Nodes"], found["JSEventListeners"])


def obstacles(page: Page, within: str | None = None, rules: Sequence[str] = RULES) -> list[str]:
    """What keeps people from using the page, or a part of it, by axe-core's rules, with where it is."""
    options = {"runOnly": list(rules), "resultTypes": ["violations"]}
    response = Axe().run(page, within, options).response
    assert response["passes"], "no rule had anything to look at"
    found = response["violations"]
    return [
        f"{one['id']}: {one['help']}: {node['target']} {node.get('failureSummary', '')}"
        for one in found
        for node in one["nodes"]
    ]


def fits_its_width(page: Page) -> bool:
    """Whether nothing has to be scrolled sideways."""
    inside: bool = page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    return inside


def is_drawn(page: Page, selector: str) -> bool:
    """Whether a canvas shows anything."""
    drawn: bool = page.locator(selector).first.evaluate(
        "canvas => canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.some(value => value)"
    )
    return drawn

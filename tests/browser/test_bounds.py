"""However much happens, and however much waits, the page stays as small as it was."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, Route, expect

from llamalane.api import create_app
from tests.api.fake_engine import ScriptedEngine, as_engine
from tests.api.serving import served
from tests.browser.conftest import OpenPage
from tests.browser.recording import Message, as_events, count_events, in_thread, last_ended, queue_up, record, repeat
from tests.browser.watching import footprint

pytestmark = pytest.mark.browser

EVENTS = 50_000
STREAMS = 5
"""They come in so many streams, one after the other, as they do from a server."""
QUEUED = 1000


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server for the page's files."""
    with served(create_app(as_engine(ScriptedEngine()))) as address:
        yield address


class Told:
    """Answers each request for events with the next of some streams, and then with silence."""

    def __init__(self, streams: Iterator[list[Message]]) -> None:
        self._streams = streams
        self.last: Message | None = None

    def install(self, page: Page) -> None:
        page.route("**/dashboard/events", self._answer)

    def _answer(self, route: Route) -> None:
        messages = next(self._streams, None)
        if messages is not None:
            self.last = messages[-1]
            route.fulfill(status=200, content_type="text/event-stream", body=as_events(messages))


def test_fifty_thousand_events_leave_nothing_behind(open_page: OpenPage, url: str) -> None:
    snapshot, updates = in_thread(lambda: record(120))
    turns = -(-EVENTS // (STREAMS * count_events(updates)))
    streams = [[snapshot, *repeat(updates, turns, start=turns * number)] for number in range(STREAMS)]
    assert sum(map(count_events, streams)) >= EVENTS
    told = Told(iter(streams))
    page = open_page(f"{url}/dashboard", before=told.install)
    newest = page.locator("#ended-rows button.request").first
    sizes = []
    for stream in streams:
        expect(newest).to_have_attribute("title", last_ended(stream))
        sizes.append(footprint(page))
    early, late = sizes[0], sizes[-1]
    assert late.listeners <= early.listeners + 20
    assert late.nodes <= early.nodes + 200
    assert late.heap <= early.heap + 1_500_000


def test_a_long_queue_is_shown_in_a_few_rows(open_page: OpenPage, url: str) -> None:
    told = Told(iter([[in_thread(lambda: queue_up(QUEUED))]]))
    page = open_page(f"{url}/dashboard", before=told.install, ignore="404")
    expect(page.locator("#waiting-count")).to_have_text("998")
    expect(page.locator("#waiting-rows tr")).to_have_count(25)
    assert page.evaluate("document.querySelectorAll('*').length") < 1500
    page.locator("#waiting-rows button").last.click()
    expect(page.get_by_role("dialog")).to_be_visible()

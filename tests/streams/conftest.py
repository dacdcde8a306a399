from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from llamalane.streams.lane import Lane
from llamalane.streams.llama import Model, ModelOptions
from tests.streams.lane_rig import Inbox, Script, open_lane


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> Iterator[Model]:
    with Model(ModelOptions(path=tiny_model)) as model:
        yield model


@pytest.fixture
def inbox() -> Inbox:
    return Inbox()


@pytest.fixture
def start(model: Model, inbox: Inbox) -> Iterator[Callable[..., Lane]]:
    """Starts lanes whose messages go to the inbox, and closes them, with every context, when the test is over."""
    lanes: list[tuple[Lane, Script]] = []

    def start_lane(script: Script | None = None, **options: object) -> Lane:
        script = script or Script()
        lane = open_lane(model, script, **options)  # type: ignore[arg-type]
        lanes.append((lane, script))
        lane.start(inbox)
        return lane

    yield start_lane
    for lane, script in lanes:
        lane.close()
        assert script.closed == script.opened - script.refused, "a context was not freed"


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Whatever a test starts has ended when it ends."""
    before = set(threading.enumerate())
    yield
    assert [thread.name for thread in threading.enumerate() if thread not in before] == []

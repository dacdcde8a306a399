from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from llamalane.streams.llama import Model, ModelOptions
from tests.streams.lane_rig import Inbox


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> Iterator[Model]:
    with Model(ModelOptions(path=tiny_model)) as model:
        yield model


@pytest.fixture
def inbox() -> Inbox:
    return Inbox()


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Whatever a test starts has ended when it ends."""
    before = set(threading.enumerate())
    yield
    assert [thread.name for thread in threading.enumerate() if thread not in before] == []

from __future__ import annotations

import contextlib
import threading

import pytest

from llamalane.streams.brake import Brake
from tests.streams.lane_rig import TIMEOUT


class Context:
    """Notes how it is interrupted."""

    def __init__(self) -> None:
        self.calls: list[bool] = []

    def interrupt(self, on: bool) -> None:
        self.calls.append(on)

    @property
    def interrupted(self) -> bool:
        return bool(self.calls) and self.calls[-1]


def test_the_step_under_way_is_stopped() -> None:
    brake, context = Brake(works=True), Context()
    with brake.armed(3, context):
        brake.pull(3)
        assert context.interrupted


@pytest.mark.parametrize("step", [2, 4])
def test_no_other_step_is_stopped(step: int) -> None:
    brake, context = Brake(works=True), Context()
    with brake.armed(3, context):
        brake.pull(step)
        assert not context.interrupted


def test_a_brake_pulled_too_late_stops_nothing() -> None:
    brake, context = Brake(works=True), Context()
    with brake.armed(3, context):
        pass
    brake.pull(3)
    assert not context.interrupted


def test_a_brake_pulled_too_early_stops_nothing() -> None:
    brake, context = Brake(works=True), Context()
    brake.pull(3)
    with brake.armed(3, context):
        assert not context.interrupted


def test_the_next_step_is_not_stopped_by_the_same_pull() -> None:
    brake, context = Brake(works=True), Context()
    with contextlib.suppress(ZeroDivisionError), brake.armed(3, context):
        brake.pull(3)
        raise ZeroDivisionError
    assert not context.interrupted
    with brake.armed(4, context):
        assert not context.interrupted


def test_a_brake_that_does_not_work_touches_nothing() -> None:
    brake, context = Brake(works=False), Context()
    with brake.armed(3, context):
        brake.pull(3)
    assert context.calls == []


def test_whenever_it_is_pulled_nothing_stays_interrupted() -> None:
    brake, context = Brake(works=True), Context()
    done = threading.Event()

    def pull() -> None:
        step = 0
        while not done.is_set():
            brake.pull(step % 200)
            step += 1

    thread = threading.Thread(target=pull)
    thread.start()
    try:
        for step in range(200):
            with brake.armed(step, context):
                pass
            assert not context.interrupted, f"after step {step}"
    finally:
        done.set()
        thread.join(TIMEOUT)

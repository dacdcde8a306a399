from __future__ import annotations

import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from llamalane.streams.gate import Gate

TIMEOUT = 60.0


class Room:
    """Notes who is inside, and complains at once about who may not be there together."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._steps = 0
        self._exclusive = 0
        self.most_steps = 0

    def step(self) -> None:
        self._change(steps=1)
        give_way()
        self._change(steps=-1)

    def exclusive(self) -> None:
        self._change(exclusive=1)
        give_way()
        self._change(exclusive=-1)

    def _change(self, *, steps: int = 0, exclusive: int = 0) -> None:
        with self._lock:
            self._steps += steps
            self._exclusive += exclusive
            self.most_steps = max(self.most_steps, self._steps)
            assert self._exclusive <= 1, "two are exclusive at once"
            assert not (self._exclusive and self._steps), "a step runs while another thread is exclusive"


def give_way() -> None:
    """Let the other threads run."""
    for _ in range(3):
        os.sched_yield()


def test_steps_run_side_by_side() -> None:
    gate = Gate()
    together = threading.Barrier(3)

    def step() -> None:
        with gate.shared():
            together.wait(TIMEOUT)  # breaks unless all three are inside

    with ThreadPoolExecutor(3) as executor:
        for done in [executor.submit(step) for _ in range(3)]:
            done.result(TIMEOUT)


def test_whoever_is_exclusive_waits_for_the_steps_under_way_and_steps_wait_for_it() -> None:
    gate, room = Gate(), Room()
    start = threading.Barrier(6)

    def work(seed: int) -> None:
        dice = random.Random(seed)
        start.wait(TIMEOUT)
        for _ in range(300):
            if dice.random() < 0.2:
                with gate.exclusive():
                    room.exclusive()
            else:
                with gate.shared():
                    room.step()

    with ThreadPoolExecutor(6) as executor:
        for done in [executor.submit(work, seed) for seed in range(6)]:
            done.result(TIMEOUT)
    assert room.most_steps > 1, "no two steps ever ran together: nothing was tested"


def test_no_step_begins_while_somebody_waits_to_be_exclusive() -> None:
    gate = Gate()
    order: list[str] = []
    first_is_in, first_may_go = threading.Event(), threading.Event()

    def first_step() -> None:
        with gate.shared():
            first_is_in.set()
            assert first_may_go.wait(TIMEOUT)

    def be_exclusive() -> None:
        with gate.exclusive():
            order.append("exclusive")

    def second_step() -> None:
        with gate.shared():
            order.append("step")

    with ThreadPoolExecutor(3) as executor:
        done = [executor.submit(first_step)]
        assert first_is_in.wait(TIMEOUT)
        done.append(executor.submit(be_exclusive))
        while not gate._exclusive:
            os.sched_yield()
        done.append(executor.submit(second_step))
        for _ in range(100):
            give_way()  # a chance for the second step to begin too early
        first_may_go.set()
        for each in done:
            each.result(TIMEOUT)
    assert order == ["exclusive", "step"]


@pytest.mark.parametrize("name", ["shared", "exclusive"])
def test_the_gate_opens_again_after_an_error(name: str) -> None:
    gate = Gate()
    with pytest.raises(ZeroDivisionError), getattr(gate, name)():
        raise ZeroDivisionError
    with ThreadPoolExecutor(1) as executor:

        def enter_both() -> bool:
            with gate.exclusive():
                pass
            with gate.shared():
                return True

        assert executor.submit(enter_both).result(TIMEOUT)

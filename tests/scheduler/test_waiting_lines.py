"""Requests that wait for lanes of different kinds, in one queue."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from llamalane.errors import QueueFullError
from llamalane.ids import Level, RequestId
from llamalane.scheduler.admission import AdmissionPolicy
from llamalane.scheduler.fairness import Weights
from llamalane.scheduler.priority import LEVELS
from llamalane.scheduler.queue import QueueBounds, WaitingQueue


@dataclass(eq=False)
class Waiting:
    id: RequestId
    level: Level
    order: int
    line: str
    tenant: str = ""
    prompt_tokens: int = 10

    @property
    def key(self) -> tuple[int, float]:
        return self.level, 0.0


class Queue:
    """A queue whose requests stand in the line that they name."""

    def __init__(self, requests: int = 100, tokens: int = 1000, *, shed: bool = False) -> None:
        self.queue = WaitingQueue[Waiting](
            QueueBounds(requests, tokens, shed=shed),
            lambda *_: 1.0,
            Weights({"heavy": 2.0}),
            line_of=lambda request: request.line,
        )
        self._count = 0

    def add(self, line: str, level: int = 3, **options: object) -> Waiting:
        self._count += 1
        name = RequestId(f"{line or 'first'}-{self._count}")
        request = Waiting(name, Level(level), self._count, line, **options)  # type: ignore[arg-type]
        with self.queue.reserve_nowait(request.level) as slot:
            self.shed = slot.fill(request)
        return request

    def next_of(self, line: str) -> Waiting | None:
        choice = AdmissionPolicy(0, {}).choose(self.queue.line(line), 1, {})
        return None if choice is None else choice.request


def test_each_line_has_its_own_next() -> None:
    waiting = Queue()
    first, other, urgent = waiting.add(""), waiting.add("other"), waiting.add("other", 1)
    assert waiting.next_of("") is first
    assert waiting.next_of("other") is urgent
    assert waiting.next_of("empty") is None
    waiting.queue.remove(urgent)
    assert waiting.next_of("other") is other
    assert [head.next for head in waiting.queue.heads()] == [first]
    assert waiting.queue.in_order() == [first, other]


def test_the_bounds_hold_for_all_lines_together() -> None:
    waiting = Queue(requests=2)
    waiting.add("")
    waiting.add("other")
    for line in ("", "other"):
        with pytest.raises(QueueFullError):
            waiting.add(line)
    assert waiting.queue.sizes[Level(3)] == 2
    tokens = Queue(tokens=25)
    tokens.add("")
    tokens.add("other")
    with pytest.raises(QueueFullError) as caught:
        tokens.add("third")
    assert caught.value.reason == "tokens"


def test_whoever_came_last_is_turned_out_whatever_the_line() -> None:
    waiting = Queue(requests=2, shed=True)
    waiting.add("", 5)
    last = waiting.add("other", 5)
    waiting.add("", 1)
    assert waiting.shed == [last]


def test_a_tenants_turn_in_one_line_says_nothing_of_another_but_weights_are_the_same() -> None:
    waiting = Queue()
    queue = waiting.queue
    for line in ("", "other"):
        for tenant in ("light", "heavy"):
            waiting.add(line, tenant=tenant)
    queue.line("").fairness.charge(Level(3), "light", prompt_tokens=100)
    queue.line("other").fairness.charge(Level(3), "heavy", prompt_tokens=100)
    turns = [waiting.next_of(line) for line in ("", "other")]
    assert [one.tenant for one in turns if one] == ["heavy", "light"]
    assert queue.line("other").fairness.at(Level(3)).counter("heavy") == 50
    queue.fairness.weights.become(Weights({"light": 4.0}))
    queue.line("other").fairness.charge(Level(3), "light", prompt_tokens=100)
    assert queue.line("other").fairness.at(Level(3)).counter("light") == 25


def test_the_longest_line_is_the_one_in_which_most_wait() -> None:
    waiting = Queue()
    assert waiting.queue.longest_line == ""
    waiting.add("")
    one, _ = waiting.add("other"), waiting.add("other")
    assert waiting.queue.longest_line == "other"
    waiting.queue.remove(one)
    assert waiting.queue.longest_line == ""


def test_half_a_queue_is_left_to_those_who_have_to_ask() -> None:
    waiting = Queue(requests=8, tokens=1000)
    for _ in range(4):
        assert waiting.queue.has_spare(Level(3))
        waiting.add("other")
    assert not waiting.queue.has_spare(Level(3))
    large = Queue(tokens=30)
    large.add("", prompt_tokens=20)
    assert not large.queue.has_spare(LEVELS[0])

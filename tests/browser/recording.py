"""Streams of events of any length, made of what a feed has told of a real scheduler."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from llamalane.streams import Parking
from tests.api.dashboard.lookout import feed_of
from tests.scheduler.harness import Harness

T = TypeVar("T")
Message = dict[str, Any]
STEPS_TOLD_TOGETHER = 5


def in_thread(work: Callable[[], T]) -> T:
    """Return what `work` returns; where no browser's driver holds the event loop."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(work).result()


def record(requests: int) -> tuple[Message, list[Message]]:
    """Let so many requests of all levels pass, some of them parked; return a snapshot before, and the updates."""
    harness = Harness((3, 2), park=Parking.PAUSE)
    feed = feed_of(harness)
    snapshot, updates = feed.snapshot(), []
    unsent = 0
    while requests or not harness.scheduler.idle:
        if requests:
            harness.submit(1 + requests * 2 % 5, prompt="a prompt", max_tokens=6)
            requests -= 1
        harness.clock.advance(0.05)
        harness.step()
        unsent = (unsent + 1) % STEPS_TOLD_TOGETHER
        if not unsent:
            updates.append(feed.update())
    updates.append(feed.update())
    harness.close()
    return snapshot, updates


def queue_up(requests: int) -> Message:
    """Let so many requests of all levels wait, and two run; return a snapshot."""
    harness = Harness((2,), max_requests=requests + 10)
    for number in range(requests):
        harness.submit(1 + number % 5, prompt="ab", max_tokens=50)
    harness.step(3)
    snapshot = feed_of(harness).snapshot()
    harness.close()
    return snapshot


def repeat(updates: Sequence[Message], times: int, start: int = 0) -> Iterator[Message]:
    """Tell the same again and again, each time of other requests, and later."""
    seconds = updates[-1]["time"] - updates[0]["time"] + 0.05
    steps = max(step[0] for update in updates for lane in update["lanes"] for step in lane["new_steps"])
    for turn in range(start, start + times):
        for update in updates:
            yield _moved(update, f"turn-{turn}-", turn * seconds, turn * steps)


def as_events(messages: Sequence[Message]) -> str:
    """Return messages as a server sends them."""
    return "".join(f"data: {json.dumps(message)}\n\n" for message in messages)


def count_events(messages: Sequence[Message]) -> int:
    """Return how many things the messages tell: changes of requests, and steps."""
    return sum(
        len(message["requests"]) + sum(len(lane["new_steps"]) for lane in message["lanes"]) for message in messages
    )


def last_ended(messages: Sequence[Message]) -> str:
    """Return the id of the request that ended last."""
    ended = [entry["id"] for message in messages for entry in message["requests"] if entry["outcome"] is not None]
    last: str = ended[-1]
    return last


def _moved(update: Message, prefix: str, later: float, steps: int) -> Message:
    lanes = [
        {
            **lane,
            "new_steps": [[step[0] + steps, step[1] + later, *step[2:]] for step in lane["new_steps"]],
            "holdings": [[*one[:3], None if one[3] is None else prefix + one[3]] for one in lane["holdings"]],
        }
        for lane in update["lanes"]
    ]
    return {
        **update,
        "time": update["time"] + later,
        "lanes": lanes,
        "requests": [_moved_request(entry, prefix, later) for entry in update["requests"]],
        "gone": [prefix + request for request in update["gone"]],
        "progress": [[prefix + one[0], one[1], _plus(one[2], later)] for one in update["progress"]],
        "tokens": [[count[0] + round(later), *count[1:]] for count in update["tokens"]],
    }


def _moved_request(entry: Message, prefix: str, later: float) -> Message:
    return {
        **entry,
        "id": prefix + entry["id"],
        "arrival": entry["arrival"] + later,
        "first_token": _plus(entry["first_token"], later),
        "events": [[kind, time + later] for kind, time in entry["events"]],
    }


def _plus(time: float | None, later: float) -> float | None:
    return None if time is None else time + later

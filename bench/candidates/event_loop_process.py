"""What it costs to hand a step's events to an event loop in another process, not to one on another thread."""

from __future__ import annotations

import importlib.util
import json
import marshal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import anyio

from llamalane.bench.candidates.comparison import CandidatesPlan, Comparison, Experiment, take_turns
from llamalane.bench.candidates.event_reader import LENGTH, READY, Event
from llamalane.scheduler.doorbell import Doorbell

COUNTS = (8, 16, 64)
STEPS = 200
"""So many steps make a round."""
PAUSE = 0.003
"""Seconds between them, so that the event loop sleeps before each, as it does beside a lane."""


@dataclass(frozen=True, slots=True)
class HandOver:
    """CPU time for each step, in microseconds: of the thread that says what happened, and of the event loop's."""

    lane: float
    loop: float

    @property
    def total(self) -> float:
        """Both together."""
        return self.lane + self.loop


def compare_processes(plan: CandidatesPlan, counts: Sequence[int] = COUNTS, steps: int = STEPS) -> Iterator[Comparison]:
    """Measure both for steps of several numbers of rows."""
    for count in counts:
        yield _compare(count, plan.rounds, steps)


def _compare(count: int, rounds: int, steps: int) -> Comparison:
    found: dict[str, list[HandOver]] = {"thread": [], "process": []}

    def total(name: str, hand_over: HandOver) -> float:
        found[name].append(hand_over)
        return hand_over.total

    now, other = take_turns(
        lambda: total("thread", to_thread(count, steps)), lambda: total("process", to_process(count, steps)), rounds
    )
    remarks = {f"{name}: lane and loop": _split(times[1:]) for name, times in found.items()}
    return Comparison(situation=f"{count} events a step", now=now, other=other, remarks=remarks)


def to_thread(count: int, steps: int) -> HandOver:
    """Hand steps to this thread's event loop from another one, as a lane does."""
    return anyio.run(_to_thread, count, steps, backend_options={"use_uvloop": _has_uvloop()})


def to_process(count: int, steps: int) -> HandOver:
    """Hand steps to an event loop in another process, through a socket."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [sys.executable, "-m", "llamalane.bench.candidates.event_reader", str(theirs.fileno())]
        with subprocess.Popen(command, stdout=subprocess.PIPE, pass_fds=[theirs.fileno()], text=True) as reader:
            theirs.close()
            ours.recv(len(READY))
            with ThreadPoolExecutor(1) as lane:
                seconds = lane.submit(_run_lane, lambda events: _write(ours, events), count, steps).result()
            ours.shutdown(socket.SHUT_WR)
            assert reader.stdout is not None
            answer = json.loads(reader.stdout.read())
    assert answer["events"] == (steps + 1) * count, "every event has arrived"
    return HandOver(1e6 * seconds / steps, 1e6 * answer["seconds"] / steps)


async def _to_thread(count: int, steps: int) -> HandOver:
    messages: deque[list[Event]] = deque()
    doorbell = Doorbell()

    def say(events: list[Event]) -> None:
        messages.append(events)
        doorbell.ring_from_thread()

    taken = 0
    begin = 0.0
    with ThreadPoolExecutor(1) as lane:
        running = lane.submit(_run_lane, say, count, steps)
        while taken < (steps + 1) * count:
            await doorbell.wait(None)
            while messages:
                taken += sum(1 for _ in messages.popleft())
            begin = begin or time.thread_time()  # the first step has all that is done once
        loop = time.thread_time() - begin
    return HandOver(1e6 * running.result() / steps, 1e6 * loop / steps)


def _run_lane(say: Callable[[list[Event]], None], count: int, steps: int) -> float:
    """Say what happens in one step more than `steps`; returns the CPU seconds of all but the first."""
    pause = threading.Event()
    used = 0.0
    for step in range(steps + 1):
        events: list[Event] = [(1000 + row, step, 17 * row, " word", None) for row in range(count)]
        begin = time.thread_time()
        say(events)
        if step:
            used += time.thread_time() - begin
        pause.wait(PAUSE)
    return used


def _write(target: socket.socket, events: list[Event]) -> None:
    data = marshal.dumps(events)
    target.sendall(LENGTH.pack(len(data)) + data)


def _has_uvloop() -> bool:
    return importlib.util.find_spec("uvloop") is not None


def _split(times: Sequence[HandOver]) -> str:
    lane, loop = statistics.median(one.lane for one in times), statistics.median(one.loop for one in times)
    return f"{lane:.0f} + {loop:.0f}"


EVENT_LOOP_PROCESS = Experiment(
    title="a step's events handed to an event loop in another process",
    unit="CPU µs a step",
    now="to another thread",
    other="to another process",
    method=(
        f"Each step's events, small tuples with a token's text; {STEPS} steps a round, with pauses of {1e3 * PAUSE:g} "
        "ms in which the event loop falls asleep. To a thread as lanes do it; to a process as one message of `marshal` "
        "over a Unix socket, taken apart there. CPU time, wake-ups included, of the thread that hands over and of the "
        "event loop's."
    ),
    compare=compare_processes,
)

"""What a refusal over HTTP costs: the CPU time of the server's event loop, while it does nothing else.

The server's only lane is paused and its queue full, so that nothing is computed: what its threads take beyond what an
idle server takes, the refusals have cost.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil

from llamalane.bench.document import Table, table_lines
from llamalane.bench.latencies import Distribution
from llamalane.bench.peers.kinds import Setup
from llamalane.bench.peers.starting import llamalane_settings, serve_settings
from llamalane.bench.server import Server
from llamalane.errors import LlamalaneError

_LANE = "main"
_BODY = json.dumps({"prompt": "Once upon a time", "max_tokens": 16, "stream": True}).encode()
_FIRST_REFUSALS = 100
"""Refusals that do not count: the first ones load code and fill caches."""
_PATIENCE = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalPlan:
    """What is measured.

    Attributes:
        setup: the server; its `queue` says how many requests wait in it meanwhile.
        refusals: how many are measured in each way.
        idle_seconds: for how long it is watched before, when nobody asks anything.
    """

    setup: Setup
    refusals: int
    idle_seconds: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalCost:
    """What one of many refusals took, in microseconds, but for `seen`.

    Attributes:
        way: how the requests were sent.
        loop: CPU time of the thread that runs the event loop; None where threads cannot be told apart.
        process: CPU time of all of the server's threads.
        seen: what the client saw, from its request to the end of the answer, in seconds.
    """

    way: str
    loop: float | None
    process: float
    seen: Distribution


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """CPU seconds that a process has taken, and of them its event loop's thread; None where that is not known."""

    process: float
    loop: float | None

    @classmethod
    def of(cls, process: int) -> CpuTimes:
        """Look at a process. Its event loop is on its first thread, as in `llamalane serve`."""
        times = psutil.Process(process).cpu_times()
        return cls(times.user + times.system, thread_seconds(process, process))

    def since(self, start: CpuTimes) -> CpuTimes:
        """Return what was taken since `start`."""
        loop = None if self.loop is None or start.loop is None else self.loop - start.loop
        return CpuTimes(self.process - start.process, loop)


def thread_seconds(process: int, thread: int) -> float | None:
    """Return the CPU seconds that a thread has taken, to the nanosecond; None elsewhere than on Linux."""
    try:
        taken, *_ = Path(f"/proc/{process}/task/{thread}/schedstat").read_text().split()
    except OSError:
        return None
    return int(taken) / 1e9


def measure_refusals(plan: RefusalPlan, tell: Callable[[str], None]) -> list[RefusalCost]:
    """Measure refusals over a connection each, and over one that is kept.

    Raises `LlamalaneError` when a request is answered with anything but 429.
    """
    key = secrets.token_hex(32)
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    with serve_settings(_settings(plan.setup, key)) as server, _full_queue(plan.setup, server, headers):
        assert server.pid is not None
        refuser = _Refuser(server, headers)
        refuser.refuse(_FIRST_REFUSALS, keep=False)
        idle = _idle(server.pid, plan.idle_seconds)
        costs = []
        for way, keep in (("a connection each", False), ("one connection", True)):
            cost = _measure(server.pid, plan, refuser, idle, way, keep=keep)
            tell(f"{way}: {plan.refusals} refusals, median {cost.seen.median * 1e3:.2f} ms")
            costs.append(cost)
    return costs


def refusals_markdown(plan: RefusalPlan, costs: Sequence[RefusalCost]) -> str:
    """Return the costs as a table."""
    titles = ["requests over", "event loop's CPU, µs", "all threads' CPU, µs"]
    titles += [f"seen by the client, ms: {part}" for part in ("p50", "p90", "p99")]
    rows = [
        [
            cost.way,
            "n/a" if cost.loop is None else f"{cost.loop:.0f}",
            f"{cost.process:.0f}",
            *(f"{value * 1e3:.2f}" for value in (cost.seen.median, cost.seen.p90, cost.seen.p99)),
        ]
        for cost in costs
    ]
    facts = (
        f"{plan.refusals} refusals, one after the other, with {plan.setup.queue} requests waiting and the lane paused; "
        "CPU time for each, less what the idle server takes in as long."
    )
    return "\n".join([facts, "", *table_lines(Table.of(titles, rows))])


def _settings(setup: Setup, key: str) -> dict[str, object]:
    """Return a configuration with a key that may pause lanes, and a lane whose name is known."""
    keys = [{"name": "bench", "sha256": hashlib.sha256(key.encode()).hexdigest(), "admin": True}]
    lanes = [{"name": _LANE, "places": setup.places, "threads": setup.threads}]
    return {**llamalane_settings(setup), "streams": {"lanes": lanes}, "api": {"keys": keys}}


@contextmanager
def _full_queue(setup: Setup, server: Server, headers: dict[str, str]) -> Iterator[None]:
    """Pause the lane, and let as many requests wait as may, while the context is open."""
    count = setup.queue or 0
    address = _address(server)
    with ExitStack() as stack, httpx.Client(base_url=server.url, headers=headers, trust_env=False) as client:
        client.post(f"/admin/lanes/{_LANE}/pause").raise_for_status()
        for _ in range(count):
            connection = stack.enter_context(socket.create_connection(address, timeout=_PATIENCE))
            connection.sendall(_request(headers))
        deadline = time.monotonic() + _PATIENCE
        while (waiting := len(client.get("/v1/queue").raise_for_status().json()["data"])) < count:
            if time.monotonic() > deadline:
                raise LlamalaneError(f"only {waiting} of {count} requests came to wait within {_PATIENCE:g} s")
        yield


def _address(server: Server) -> tuple[str, int]:
    parts = urlsplit(server.url)
    return str(parts.hostname), int(parts.port or 80)


def _request(headers: dict[str, str]) -> bytes:
    lines = ["POST /v1/completions HTTP/1.1", "Host: bench", f"Content-Length: {len(_BODY)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + _BODY


class _Refuser:
    """Asks a server that has no room."""

    def __init__(self, server: Server, headers: dict[str, str]) -> None:
        self._address = _address(server)
        self._headers = headers

    def refuse(self, count: int, *, keep: bool) -> list[float]:
        """Return how many seconds each of so many refusals took, over one connection or over one each."""
        times = []
        connection = http.client.HTTPConnection(*self._address, timeout=_PATIENCE)
        for _ in range(count):
            begin = time.monotonic()
            connection.request("POST", "/v1/completions", _BODY, self._headers)
            answer = connection.getresponse()
            answer.read()
            if not keep:
                connection.close()
            times.append(time.monotonic() - begin)
            if answer.status != http.HTTPStatus.TOO_MANY_REQUESTS:
                raise LlamalaneError(f"a request was to be refused with 429, and was answered with {answer.status}")
        connection.close()
        return times


def _idle(process: int, seconds: float) -> CpuTimes:
    """Return what the idle server takes in a second."""
    start = CpuTimes.of(process)
    time.sleep(seconds)
    taken = CpuTimes.of(process).since(start)
    return CpuTimes(taken.process / seconds, None if taken.loop is None else taken.loop / seconds)


def _measure(
    process: int, plan: RefusalPlan, refuser: _Refuser, idle: CpuTimes, way: str, *, keep: bool
) -> RefusalCost:
    start, begin = CpuTimes.of(process), time.monotonic()
    times = refuser.refuse(plan.refusals, keep=keep)
    seconds = time.monotonic() - begin
    taken = CpuTimes.of(process).since(start)
    seen = Distribution.of(times)
    assert seen is not None
    loop = None
    if taken.loop is not None and idle.loop is not None:
        loop = (taken.loop - idle.loop * seconds) / plan.refusals * 1e6
    return RefusalCost(
        way=way, loop=loop, process=(taken.process - idle.process * seconds) / plan.refusals * 1e6, seen=seen
    )

"""Soaks a server in a process of its own: overload and vanishing clients for minutes, then a look at what is left."""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import httpx

from llamalane.bench.server import HOST, Server, free_port, run_server
from llamalane.bench.soak.asking import Asker
from llamalane.bench.soak.clients import Client, Tally
from llamalane.bench.soak.watching import Holding, Sample, Watcher, slope

Tell = Callable[[str], None]

PLACES = 8
WAITING = 96
"""So many requests may wait: with the places fewer than there are connections, so that some are refused."""
SEQUENCE_CELLS = 256
SWAP = 16 << 20
"""Host memory for saved cells: full before the warm-up is over."""
OVERLOAD = 6
"""How many times as many requests come as are served when nobody has to wait."""
WARM_UP = 0.25
"""The share of the time after which memory is expected to stay flat."""
MOST_GROWTH = 1_000_000 / 1000
"""Bytes for each request that is served: memory may grow by less than 1 MB in 1,000 of them."""
_SAMPLES = 200
_TOLD = 10.0
_NAME, _EMBEDDER = "main", "embedder"


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakPlan:
    """What is done: `connections` clients at once, of which `vanishing` is the share that leaves, for `seconds`.

    The rate at which requests are served when nobody waits is measured before, for `usual_seconds`.
    """

    model: Path
    embedder: Path | None
    threads: int
    seconds: float
    connections: int
    vanishing: float
    seed: int
    usual_seconds: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakReport:
    """What came of it.

    Attributes:
        rate: requests a second that came; `usual` when nobody had to wait.
        growth, growth_served: bytes of memory for each request, and for each that got a place, after the warm-up.
        whole: whether a prompt as long as all KV cells together was served at the end.
    """

    plan: SoakPlan
    usual: float
    rate: float
    tally: Tally
    samples: tuple[Sample, ...]
    growth: float
    growth_served: float
    before: Holding
    after: Holding
    whole: bool

    @property
    def problems(self) -> list[str]:
        """What should not be."""
        found = [f"{count} × {fault}" for fault, count in self.tally.faults.most_common(20)]
        if self.growth_served >= MOST_GROWTH:
            found.append(f"memory grows by {self.growth_served / 1000:.2f} MB in 1,000 requests that are served")
        if not self.after.idle:
            found.append(f"something is still held: {self.after}")
        if not self.whole:
            found.append("a prompt as long as all KV cells could not be served at the end")
        for name in ("files", "threads"):
            before, after = getattr(self.before, name), getattr(self.after, name)
            if after > before:
                found.append(f"there are {after} {name}, and were {before}")
        return found


async def soak(plan: SoakPlan, tell: Tell) -> SoakReport:
    """Carry the plan out."""
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        file = Path(folder) / "soak.yaml"
        file.write_text(json.dumps(_config(plan, port)))  # JSON is YAML
        with run_server(["-m", "llamalane", "serve", "--config", str(file)], port) as server:
            return await _Soak(plan, server, tell).run()


class _Soak:
    def __init__(self, plan: SoakPlan, server: Server, tell: Tell) -> None:
        self._plan = plan
        self._url = server.url
        self._tell = tell
        assert server.pid is not None
        self._watcher = Watcher(server.pid, server.url)
        self._tally = Tally()
        parts = urlsplit(server.url)
        self._address = (parts.hostname or HOST, parts.port or 80)
        model = httpx.get(f"{server.url}/v1/models/{_NAME}", timeout=60, trust_env=False).raise_for_status().json()
        self._limit: int = model["max_model_len"]
        asker = Asker(plan.seed, limit=self._limit, embedder=_EMBEDDER if plan.embedder is not None else None)
        self._client = Client(self._address, asker, self._tally, plan.seed)
        self._samples: list[Sample] = []

    async def run(self) -> SoakReport:
        usual = await self._usual_rate()
        before = await anyio.to_thread.run_sync(self._watcher.hold)
        self._tell(f"{usual:.0f} requests/s while nobody waits; now {OVERLOAD} times as many come")
        begin, count = time.monotonic(), self._tally.requests
        await self._overload(OVERLOAD * usual)
        rate = (self._tally.requests - count) / (time.monotonic() - begin)
        after = await anyio.to_thread.run_sync(self._watcher.settle, before)
        whole = await anyio.to_thread.run_sync(self._fill_all_cells)
        flat = self._samples[int(WARM_UP * len(self._samples)) :]
        return SoakReport(
            plan=self._plan,
            usual=usual,
            rate=rate,
            tally=self._tally,
            samples=tuple(self._samples),
            growth=slope(flat),
            growth_served=slope(flat, served=True),
            before=before,
            after=after,
            whole=whole,
        )

    async def _usual_rate(self) -> float:
        """Return how many requests a second are served when there are as many clients as places, and all stay."""
        begin, count = time.monotonic(), self._tally.requests

        async def ask_on() -> None:
            while time.monotonic() - begin < self._plan.usual_seconds:
                await self._client.ask(vanishing=0.0)

        async with anyio.create_task_group() as tasks:
            for _ in range(PLACES):
                tasks.start_soon(ask_on)
        return (self._tally.requests - count) / (time.monotonic() - begin)

    async def _overload(self, rate: float) -> None:
        """Let requests come at random, so many a second, over at most so many connections as there may be."""
        draw = random.Random(self._plan.seed)
        connections = anyio.Semaphore(self._plan.connections)
        end = time.monotonic() + self._plan.seconds

        async def ask() -> None:
            try:
                await self._client.ask(vanishing=self._plan.vanishing)
            finally:
                connections.release()

        async with anyio.create_task_group() as tasks:
            watching = anyio.CancelScope()
            tasks.start_soon(self._watch, watching)
            async with anyio.create_task_group() as clients:
                while time.monotonic() < end:
                    await connections.acquire()
                    clients.start_soon(ask)
                    await anyio.sleep(draw.expovariate(rate))
            watching.cancel()

    async def _watch(self, scope: anyio.CancelScope) -> None:
        interval = self._plan.seconds / _SAMPLES
        told = time.monotonic()
        with scope:
            while True:
                await anyio.sleep(interval)
                sample = await anyio.to_thread.run_sync(self._watcher.sample, self._tally.requests)
                self._samples.append(sample)
                if time.monotonic() - told > _TOLD:
                    told = time.monotonic()
                    self._tell(f"{sample.requests} requests, {sample.served} served, {sample.memory / 1e6:.1f} MB")

    def _fill_all_cells(self) -> bool:
        """Return whether a prompt is served that leaves room for one token: it needs every cell that there is."""
        body = {"model": _NAME, "prompt": [5] * (self._limit - 1), "max_tokens": 1}
        return httpx.post(f"{self._url}/v1/completions", json=body, timeout=120, trust_env=False).status_code == 200


def _config(plan: SoakPlan, port: int) -> dict[str, object]:
    models: list[dict[str, object]] = [{"path": str(plan.model), "name": _NAME}]
    lanes: list[dict[str, object]] = [{"name": _NAME, "places": PLACES, "threads": plan.threads}]
    if plan.embedder is not None:
        models.append({"path": str(plan.embedder), "name": _EMBEDDER, "task": "embed"})
        lanes.append({"name": _EMBEDDER, "model": _EMBEDDER, "places": PLACES, "threads": 1})
    return {
        "models": models,
        "streams": {"lanes": lanes},
        "kv": {"budget": PLACES * SEQUENCE_CELLS, "layout": "paged", "swap": SWAP},
        "scheduler": {"queue": {"max_requests": WAITING}, "reserve": {"interactive": 1}},
        "api": {"host": HOST, "port": port, "tenant_from_user": True, "ping_after": 0.5},
    }


def soak_markdown(report: SoakReport) -> str:
    """Return the report as Markdown."""
    plan, tally, before, after = report.plan, report.tally, report.before, report.after
    statuses = ", ".join(f"{count} × {status}" for status, count in sorted(tally.statuses.items()))
    manners = ", ".join(f"{count} {manner.value}" for manner, count in tally.manners.items())
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(tally.kinds.items()))
    lines = [
        f"- {plan.model.name}{f' and {plan.embedder.name}' if plan.embedder else ''}; {PLACES} places; "
        f"{plan.connections} connections for {plan.seconds:g} s; seed {plan.seed}.",
        f"- {tally.requests} requests, {report.rate:.0f} a second, where {report.usual:.0f} are usual: {kinds}.",
        f"- Clients: {manners}.",
        f"- Answers to those that read them: {statuses}; {after.served} requests got a place.",
        "",
        "| | before | after |",
        "| --- | --- | --- |",
        f"| file descriptors | {before.files} | {after.files} |",
        f"| threads | {before.threads} | {after.threads} |",
        f"| free places | {before.free} of {before.places} | {after.free} of {after.places} |",
        f"| KV cells promised | {before.promised} | {after.promised} |",
        f"| memory, MB | {report.samples[0].memory / 1e6:.1f} | {report.samples[-1].memory / 1e6:.1f} |",
        "",
        f"After the warm-up memory grew by {report.growth / 1000:.3f} MB in 1,000 requests, and by "
        f"{report.growth_served / 1000:.3f} MB in 1,000 that got a place.",
    ]
    problems = [f"- **{problem}**" for problem in report.problems]
    return "\n".join([*lines, "", *(problems or ["Nothing is lost."])])

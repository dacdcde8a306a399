"""What a server holds: its memory, files and threads as the system sees them, places and cells as it tells itself."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import httpx
import numpy as np
import psutil
from prometheus_client.parser import text_string_to_metric_families

_PARTS = 5
_SETTLING = 30.0
_PAUSE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The resident memory in bytes after so many requests, of which so many were served."""

    requests: int
    served: int
    memory: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What a server holds at one moment.

    Attributes:
        files, threads: file descriptors and threads of its process.
        places, free: all places, and those that can be taken.
        waiting, running: requests that wait, and that hold a place.
        promised: KV cells of running and of parked requests.
        host: host memory of parked requests, in bytes.
        served: requests that got a place so far.
    """

    files: int
    threads: int
    places: int
    free: int
    waiting: int
    running: int
    promised: int
    host: int
    served: int

    @property
    def idle(self) -> bool:
        """Whether nothing is held for any request."""
        return self.free == self.places and not (self.waiting or self.running or self.promised or self.host)


class Watcher:
    """Watches the server whose process id is `pid` at `url`."""

    def __init__(self, pid: int, url: str) -> None:
        self._process = psutil.Process(pid)
        self._client = httpx.Client(base_url=url, timeout=60, trust_env=False)

    def sample(self, requests: int) -> Sample:
        """Return what memory it has after so many requests."""
        served = self._metric(self._values(), "requests_admitted_total")
        return Sample(requests=requests, served=served, memory=self._process.memory_info().rss)

    def hold(self) -> Holding:
        """Return what it holds, without this connection."""
        values = self._values()
        self._client.close()
        self._client = httpx.Client(base_url=self._client.base_url, timeout=60, trust_env=False)
        time.sleep(_PAUSE)  # until it has noticed
        return Holding(
            files=self._process.num_fds(),
            threads=self._process.num_threads(),
            places=self._metric(values, "places"),
            free=self._metric(values, "places_free"),
            waiting=self._metric(values, "num_requests_waiting"),
            running=self._metric(values, "num_requests_running"),
            promised=self._metric(values, "lane_kv_cells_reserved") + self._metric(values, "lane_kv_cells_paused"),
            host=self._metric(values, "host_bytes_parked"),
            served=self._metric(values, "requests_admitted_total"),
        )

    def settle(self, before: Holding) -> Holding:
        """Wait until it holds no more than it did `before`, though not for ever; returns what it holds then."""
        end = time.monotonic() + _SETTLING
        while True:
            now = self.hold()
            settled = now.idle and now.files <= before.files and now.threads <= before.threads
            if settled or time.monotonic() > end:
                return now

    def _values(self) -> dict[str, float]:
        """Return all metrics, each summed over its labels."""
        text = self._client.get("/metrics").raise_for_status().text
        values: dict[str, float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                values[sample.name] = values.get(sample.name, 0.0) + sample.value
        return values

    @staticmethod
    def _metric(values: dict[str, float], name: str) -> int:
        return int(values.get(f"llamalane_{name}", 0.0))


def slope(samples: Sequence[Sample], *, served: bool = False) -> float:
    """Return by how many bytes memory grows with each request, or each that is served.

    The median of several stretches: a leak is there in all of them, and memory that is touched late, but once, is not.
    """
    points = np.array([(one.served if served else one.requests, one.memory) for one in samples], dtype=float)
    stretches = [part for part in np.array_split(points, _PARTS) if len(part) > 1 and part[0, 0] < part[-1, 0]]
    return float(np.median([np.polyfit(part[:, 0], part[:, 1], 1)[0] for part in stretches])) if stretches else 0.0

"""The server of `bench floor`, whose probes tell CPU time, and which counts its writes: for `bench streaming`.

`GET /bench/writes` tells how often connections were written to, and how many bytes.
"""

from __future__ import annotations

import dataclasses
import sys
import time

from fastapi import FastAPI

from llamalane.api import ApiConfig
from llamalane.bench.floor.server import ProbedServer
from llamalane.bench.streaming.writes import WriteCounter
from llamalane.scheduler import Engine

WRITES = "/bench/writes"


class CountingServer(ProbedServer):
    """Stands in for what `llamalane serve` makes its engine and its app with."""

    def __init__(self, counter: WriteCounter) -> None:
        super().__init__(time.thread_time)
        self._counter = counter

    def make_app(self, engine: Engine, *, api: ApiConfig) -> FastAPI:
        """Return the app, with the endpoints of the probes and of the counter."""
        app = super().make_app(engine, api=api)

        @app.get(WRITES)
        async def writes() -> dict[str, int]:
            return dataclasses.asdict(self._counter)

        return app


if __name__ == "__main__":
    counter = WriteCounter()
    with counter.watching():
        CountingServer(counter).serve(sys.argv[1:])

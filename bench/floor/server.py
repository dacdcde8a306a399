"""`llamalane serve` in a process of its own, with probes inside, and two more endpoints: for `bench floor`.

`GET /bench/split` tells what was spent so far, and `PUT /bench/probes/on` or `/off` switches the probes. Its arguments
are those of `llamalane serve`. Nothing of the server is another one while they are off.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from fastapi import FastAPI

import llamalane.cli.serve as serving
from llamalane.api import ApiConfig, create_app
from llamalane.bench.floor.probes import Probes
from llamalane.cli import main
from llamalane.scheduler import Engine, EngineConfig

SPLIT = "/bench/split"
PROBES = "/bench/probes"


class ProbedServer:
    """Stands in for what `llamalane serve` makes its engine and its app with."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._probes: Probes | None = None
        self._on = contextlib.ExitStack()

    def make_engine(self, config: EngineConfig) -> Engine:
        """Return the engine; called on the event loop."""
        self._probes = Probes(self._clock)
        return Engine(config, open_context=self._probes.open_context)

    def make_app(self, engine: Engine, *, api: ApiConfig) -> FastAPI:
        """Return the app, with the endpoints of the probes."""
        app = create_app(engine, api=api)
        probes = self._probes
        assert probes is not None

        @app.get(SPLIT)
        async def split() -> dict[str, Any]:
            return dataclasses.asdict(probes.read(engine))

        @app.put(PROBES + "/{state}")
        async def switch(state: str) -> None:
            self._on.close()
            self._on.enter_context(probes.switched(on=state == "on"))

        return app

    def serve(self, arguments: Sequence[str]) -> None:
        """Run `llamalane serve` with these arguments."""
        vars(serving).update(Engine=self.make_engine, create_app=self.make_app)
        main(["serve", *arguments])


if __name__ == "__main__":
    ProbedServer().serve(sys.argv[1:])

"""Measures inside a process that serves what its threads spend their time on, while it is switched on."""

from __future__ import annotations

import functools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from llamalane.api import bodies
from llamalane.api.sse import ChunkEncoder, TextFrame
from llamalane.bench.floor.stopwatch import DecodeWatch
from llamalane.bench.floor.times import LaneTimes
from llamalane.scheduler import Engine
from llamalane.scheduler.output import OutputText
from llamalane.scheduler.scheduler import Scheduler
from llamalane.streams.llama import Context, ContextOptions, Model, Vocabulary

PARTS: dict[str, tuple[tuple[Any, str], ...]] = {
    "scheduling": ((Scheduler, "tick"),),
    "tokens to text": ((OutputText, "add"), (OutputText, "finish")),
    "JSON": ((bodies, "parse_body"), (TextFrame, "encode"), (ChunkEncoder, "chunk")),
    "tokenizing": ((Vocabulary, "tokenize"),),
}
"""The work of the event loop that is told apart, each by the functions that do it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Where the time went, in seconds.

    Attributes:
        lane: the lane's work.
        interpreter: what of `lane.decode` was spent waiting for the interpreter, after llama.cpp had finished; None
            where it cannot be told.
        loop: CPU time of the event loop's thread.
        parts: time of it for each of `PARTS`, by the clock of the probes.
    """

    lane: LaneTimes
    interpreter: float | None
    loop: float
    parts: dict[str, float]

    def since(self, earlier: Split) -> Split:
        """Return what was done after `earlier`."""
        known = self.interpreter is not None and earlier.interpreter is not None
        return Split(
            lane=self.lane.since(earlier.lane),
            interpreter=(self.interpreter or 0.0) - (earlier.interpreter or 0.0) if known else None,
            loop=self.loop - earlier.loop,
            parts={name: seconds - earlier.parts[name] for name, seconds in self.parts.items()},
        )


class Probes:
    """The probes of one process. Made on the event loop's thread; `open_context` is for its engine.

    `clock` times the parts: by default with what the loop's thread waited meanwhile, for the interpreter as for a core.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._decode = DecodeWatch()
        self._seconds: Counter[str] = Counter()
        self._inner = threading.local()
        self._loop_clock = time.pthread_getcpuclockid(threading.get_ident())

    def open_context(self, model: Model, options: ContextOptions) -> Context:
        """Open a context that is measured while the probes are on."""
        return WatchedContext(model, options, self._decode)

    def read(self, engine: Engine) -> Split:
        """Return what was spent so far."""
        return Split(
            lane=LaneTimes.of(engine.stats(), time.monotonic()),
            interpreter=self._decode.waited,
            loop=time.clock_gettime(self._loop_clock),
            parts={name: self._seconds[name] for name in PARTS},
        )

    @contextmanager
    def switched(self, *, on: bool) -> Iterator[None]:
        """Measure during the block if they are `on`, which costs a little; else tell no more than the engine does."""
        if not on:
            yield
            return
        before = [(owner, name, getattr(owner, name)) for functions in PARTS.values() for owner, name in functions]
        for part, functions in PARTS.items():
            for owner, name in functions:
                setattr(owner, name, self._timed(part, getattr(owner, name)))
        self._decode.on = True
        try:
            yield
        finally:
            self._decode.on = False
            for owner, name, function in before:
                setattr(owner, name, function)

    def _timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function` with its time noted, but for that of others of its kind that it calls."""
        inner = self._inner.__dict__

        @functools.wraps(function)
        def timed(*arguments: Any, **options: Any) -> Any:
            begin, outer = self._clock(), inner.get("seconds", 0.0)
            inner["seconds"] = 0.0
            try:
                return function(*arguments, **options)
            finally:
                seconds = self._clock() - begin
                self._seconds[part] += seconds - inner["seconds"]
                inner["seconds"] = outer + seconds

        return timed


class WatchedContext(Context):
    """A context whose steps are watched."""

    def __init__(self, model: Model, options: ContextOptions, watch: DecodeWatch) -> None:
        super().__init__(model, options)
        self._api = watch.around(self._api)

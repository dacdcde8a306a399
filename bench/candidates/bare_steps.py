"""Steps of a bare loop, alone and beside a thread that runs Python; run as a module, by whatever interpreter.

It uses llama.cpp and NumPy, and nothing else that is compiled: an interpreter without a GIL needs no more.
"""

from __future__ import annotations

import json
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from llamalane.ids import SequenceId
from llamalane.streams.llama.batch import Batch
from llamalane.streams.llama.library import library

ROWS = 8
CELLS = 256
"""For each row."""
FIRST_TOKEN, TOKENS = 5, 200
"""The tokens that are computed; every vocabulary has them."""


class BareSteps:
    """Steps of `ROWS` decoding rows with so many threads of llama.cpp's, with no error expected."""

    def __init__(self, model: str, threads: int) -> None:
        self._api = api = library().api
        parameters = api.llama_context_default_params()
        parameters.n_ctx = ROWS * CELLS
        parameters.n_batch = parameters.n_ubatch = CELLS
        parameters.n_seq_max = ROWS
        parameters.n_threads = parameters.n_threads_batch = threads
        self._model = api.llama_model_load_from_file(model.encode(), api.llama_model_default_params())
        self._context: Any = api.llama_init_from_model(self._model, parameters)
        self._batch = Batch(ROWS)
        self._position = 0

    def step(self) -> float:
        """Compute one step; returns the seconds that it took, until Python went on."""
        if self._position == CELLS:
            self._api.llama_memory_clear(self._api.llama_get_memory(self._context), False)
            self._position = 0
        self._batch.clear()
        for row in range(ROWS):
            token = FIRST_TOKEN + (31 * self._position + row) % TOKENS
            self._batch.add(SequenceId(row), [token], self._position, output=True)
        begin = time.perf_counter()
        code = self._api.llama_decode(self._context, self._batch.struct)
        self._api.llama_synchronize(self._context)
        seconds = time.perf_counter() - begin
        assert code == 0
        self._position += 1
        return seconds

    def close(self) -> None:
        """Free everything."""
        self._api.llama_free(self._context)
        self._api.llama_model_free(self._model)


class PythonThread:
    """A thread that runs Python and nothing else; `turns` counts what it has done."""

    def __init__(self) -> None:
        self.turns = 0
        self._ends = False
        self._thread = threading.Thread(target=self._run)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let it run meanwhile."""
        self._thread.start()
        try:
            yield
        finally:
            self._ends = True
            self._thread.join()

    def _run(self) -> None:
        while not self._ends:
            sum(range(100))
            self.turns += 1


def measure(model: str, threads: int, seconds: float) -> dict[str, Any]:
    """Return the median step alone and beside, in seconds, and the thread's turns a second, alone and beside."""
    steps = BareSteps(model, threads)
    _steps_for(steps.step, 0.2 * seconds)
    alone = _steps_for(steps.step, seconds)
    busy, idle = PythonThread(), PythonThread()
    begin = time.perf_counter()
    with busy.running():
        beside = _steps_for(steps.step, seconds)
        turns = busy.turns / (time.perf_counter() - begin)
    begin = time.perf_counter()
    with idle.running():
        time.sleep(0.5 * seconds)
        most = idle.turns / (time.perf_counter() - begin)
    steps.close()
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    return {"alone": alone, "beside": beside, "turns": turns, "most_turns": most, "gil": gil}


def _steps_for(step: Callable[[], float], seconds: float) -> float:
    """Return the median of all steps that begin within so many seconds."""
    times = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        times.append(step())
    return statistics.median(times)


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))))

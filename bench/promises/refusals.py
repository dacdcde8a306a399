"""What it costs to turn somebody away."""

from __future__ import annotations

import contextlib
import time

import anyio
import anyio.lowlevel

from llamalane.errors import QueueFullError
from llamalane.scheduler import Engine, SamplingParameters


async def measure_refusals(engine: Engine, tries: int) -> list[float]:
    """Fill the engine's queue, and return how many seconds each of `tries` refusals took, while its lane computes."""
    sampling = SamplingParameters(max_tokens=200, ignore_eos=True)
    handles = []
    with contextlib.suppress(QueueFullError):
        while True:
            handles.append(engine.submit_tokens_nowait([5, 6, 7], sampling=sampling))
            await anyio.lowlevel.checkpoint()  # the scheduler admits the first ones meanwhile
    times = []
    for number in range(tries):
        if number % 20 == 0:
            await anyio.sleep(0.002)
            while True:  # a place may have come free
                try:
                    handles.append(engine.submit_tokens_nowait([5, 6, 7], sampling=sampling))
                except QueueFullError:
                    break
        begin = time.perf_counter()
        try:
            handles.append(engine.submit_tokens_nowait([5, 6, 7], sampling=sampling))
        except QueueFullError:
            times.append(time.perf_counter() - begin)
    for handle in handles:
        handle.cancel()
    return times

"""What it costs to make a stream or a context, beside taking a place of a pool where both are there already."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import anyio

from llamalane.bench.gpu.streams import opened, streams
from llamalane.errors import ConfigError
from llamalane.scheduler import (
    Engine,
    EngineConfig,
    KVConfig,
    LaneConfig,
    ModelConfig,
    SamplingParameters,
    StreamsConfig,
)
from llamalane.scheduler.assembly import assemble
from llamalane.streams import DeviceChoice, StreamPool
from llamalane.streams.cores import available_cores
from llamalane.streams.cuda import StreamClass
from llamalane.streams.llama import Context

POOL_SIZES = (1, 2, 3, 4, 5, 6, 7, 8)
PLACES = 8
"""In a pool, divided among its lanes."""
_CELLS = 512
"""For each place."""


@dataclass(frozen=True, slots=True)
class Cost:
    """How long something took, in seconds: the median and the slowest of `count` tries."""

    what: str
    median: float
    slowest: float
    count: int


@dataclass(frozen=True, slots=True)
class PoolSize:
    """A pool of so many lanes.

    Attributes:
        opening: seconds until all lanes were there, the model loaded.
        acquiring: seconds for taking a place and giving it back.
        tokens_per_second: of as many sequences as there are places, on all lanes together.
    """

    lanes: int
    places: int
    opening: float
    acquiring: Cost
    tokens_per_second: float


@dataclass(frozen=True, slots=True)
class Costs:
    """All that was measured; `left_out` says which pool sizes were not, and why."""

    device: str
    making: tuple[Cost, ...]
    pools: tuple[PoolSize, ...]
    left_out: str


def measure_costs(path: Path, *, on_gpu: bool, sizes: Sequence[int] = POOL_SIZES, tries: int = 50) -> Costs:
    """Measure on one model; on a CPU, pools have no more lanes than there are cores."""
    making = _measure_making(path, on_gpu=on_gpu, tries=tries)
    cores = len(available_cores())
    possible = [size for size in sizes if on_gpu or size <= cores]
    pools = [anyio.run(_measure_pool, path, on_gpu, size, tries) for size in possible]
    left_out = "" if len(possible) == len(sizes) else f"a lane needs a core of its own, and there are {cores}"
    return Costs("GPU" if on_gpu else "CPU", tuple(making), tuple(pools), left_out)


def _measure_making(path: Path, *, on_gpu: bool, tries: int) -> list[Cost]:
    costs = []
    with opened(path, on_gpu=on_gpu) as bench:
        kind = [StreamClass(name="one")]

        def make_stream() -> None:
            with streams(bench, kind):
                pass

        options = bench.options(1, _CELLS, _CELLS)
        costs.append(_cost("make and destroy a pool of one stream", make_stream, tries))
        with streams(bench, kind) as (stream,):

            def make_context() -> None:
                with stream.lend():
                    context = Context(bench.model, options)
                context.close()

            costs.append(_cost(f"make and free a context of {_CELLS} cells", make_context, tries))
    return costs


async def _measure_pool(path: Path, on_gpu: bool, lanes: int, tries: int) -> PoolSize:
    config = _config(path, lanes, on_gpu=on_gpu)
    start = time.perf_counter()
    machinery = assemble(config)
    opening = time.perf_counter() - start
    try:
        acquiring = _cost("take a place and give it back", lambda: _take(machinery.pool), 100 * tries)
    finally:
        machinery.close()
    return PoolSize(lanes, PLACES // lanes * lanes, opening, acquiring, await _throughput(config))


def _take(pool: StreamPool) -> None:
    pool.acquire_nowait(cells=1).release()


async def _throughput(config: EngineConfig, tokens: int = 64) -> float:
    """Return tokens per second while every place decodes."""
    sampling = SamplingParameters(temperature=0, max_tokens=tokens, ignore_eos=True)
    async with Engine(config) as engine:
        await engine.generate("warm up", sampling=sampling)
        start = time.perf_counter()
        handles = [await engine.submit(f"request {number}", sampling=sampling) for number in range(2 * PLACES)]
        made = sum([len((await handle.result()).tokens) for handle in handles])
        return made / (time.perf_counter() - start)


def _config(path: Path, lanes: int, *, on_gpu: bool) -> EngineConfig:
    if not 1 <= lanes <= PLACES:
        raise ConfigError(f"a pool of this benchmark has from 1 to {PLACES} lanes; got {lanes}")
    each = [LaneConfig(name=f"lane-{number}", places=PLACES // lanes) for number in range(1, lanes + 1)]
    return EngineConfig(
        models=[ModelConfig(path=path)],
        streams=StreamsConfig(device=DeviceChoice.CUDA if on_gpu else DeviceChoice.CPU, lanes=each),
        kv=KVConfig(budget=PLACES * _CELLS),
    )


def _cost(what: str, do: Callable[[], None], count: int) -> Cost:
    do()
    seconds = []
    for _ in range(count):
        start = time.perf_counter()
        do()
        seconds.append(time.perf_counter() - start)
    return Cost(what, median(seconds), max(seconds), count)


def costs_markdown(costs: Costs) -> str:
    """Write what was measured as tables."""
    rows = [f"On a {costs.device}.", "", "| what | median | slowest | tries |", "| --- | --- | --- | --- |"]
    rows += [
        f"| {cost.what} | {_microseconds(cost.median)} | {_microseconds(cost.slowest)} | {cost.count} |"
        for cost in (*costs.making, *(costs.pools[0].acquiring,) * bool(costs.pools))
    ]
    rows += ["", "| lanes | places | opened in | taking a place | tokens/s |", "| --- | --- | --- | --- | --- |"]
    rows += [
        f"| {pool.lanes} | {pool.places} | {pool.opening:.2f} s | {_microseconds(pool.acquiring.median)} | "
        f"{pool.tokens_per_second:.0f} |"
        for pool in costs.pools
    ]
    if costs.left_out:
        rows += ["", f"Larger pools were left out: {costs.left_out}."]
    return "\n".join(rows)


def _microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:,.1f} µs" if seconds < 1e-3 else f"{seconds * 1e3:,.1f} ms"

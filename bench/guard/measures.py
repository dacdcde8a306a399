"""What is measured: what the code costs, apart from llama.cpp, in times and in ratios."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio

from llamalane.api.sse import ChunkEncoder
from llamalane.bench.floor.measuring import measure_floor
from llamalane.bench.floor.plan import ENGINE, FloorPlan
from llamalane.bench.guard.result import Series
from llamalane.bench.import_costs import NOTHING, measure_imports
from llamalane.bench.prefix_costs import measure_prefixes
from llamalane.bench.promises.asking import engine_for
from llamalane.bench.promises.refusals import measure_refusals
from llamalane.bench.queue_costs import measure_queue
from llamalane.bench.real_logits import Rows, real_rows
from llamalane.bench.sampling_costs import ROWS, Case, measure_case
from llamalane.bench.simulator.itself import measure_itself
from llamalane.bench.workload import Workload
from llamalane.streams.cores import available_cores
from llamalane.streams.llama import Model, ModelOptions

Tell = Callable[[str], None]
Numbers = Mapping[str, float]
"""What was measured at once, by name."""

MICRO, MILLI = 1e6, 1e3
REFUSALS = 200
CHUNKS = 20_000
QUEUE = (10_000, 3_000)
"""Requests that wait, and how often each operation is timed."""
PREFIXES = (1_000, 1_500)
"""Runs in the tree, and requests."""
WARM_UP = 500
"""Requests to the tree that come before."""
SIMULATED = (1_500, 20)
"""Requests, and lanes."""
IMPORT_ROUNDS = 2
FLOOR_SECONDS = (4.0, 1.5)
"""How long the engine and its floor are measured, and under load before."""
CASES = (
    Case("greedy", {"temperature": 0.0}),
    Case("default", {}),
    Case("penalties", {"repeat_penalty": 1.1, "presence_penalty": 0.2, "frequency_penalty": 0.1}),
    Case("min_p", {"temperature": 0.8, "top_k": 0, "top_p": 1.0, "min_p": 0.05}),
)
_ENVELOPE = {"id": "cmpl-0123456789abcdef", "object": "text_completion", "created": 1_700_000_000, "model": "smollm2"}


@dataclass(frozen=True, slots=True)
class Measure:
    """A measurement that gives times, in `unit`."""

    unit: str
    take: Callable[[], Numbers]


def measure_all(model: Path, repeats: int, tell: Tell) -> dict[str, Series]:
    """Measure everything `repeats` times: each in turn, so that a machine that drifts spreads the values of all."""
    taken: dict[tuple[str, str], list[tuple[float, float]]] = {}
    with measures_of(model) as measures:
        for number in range(1, repeats + 1):
            tell(f"round {number} of {repeats}")
            for measure in measures:
                stick = yardstick()
                for name, value in measure.take().items():
                    taken.setdefault((name, measure.unit), []).append((value, stick))
    series = {name: _series(unit, pairs) for (name, unit), pairs in taken.items()}
    return series | _shares_of_the_floor(model, repeats, tell)


@contextmanager
def measures_of(model: Path) -> Iterator[list[Measure]]:
    """Give what is measured round by round; what is needed in all rounds is made once."""
    rows = real_rows(model, ROWS, 1)
    with Model(ModelOptions(path=model, weights=False)) as loaded:
        yield [
            Measure("µs", _queue),
            Measure("µs", _prefixes),
            Measure("µs", _encoding),
            Measure("ms", _imports),
            Measure("µs", _simulator),
            Measure("µs", lambda: _refusals(model)),
            Measure("µs", lambda: _sampling(loaded, rows)),
        ]


def yardstick() -> float:
    """Return the seconds that a fixed piece of Python takes, which changes with the machine and with nothing else."""
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        counts: dict[str, int] = {}
        for number in range(30_000):
            key = str(number % 997)
            counts[key] = counts.get(key, 0) + len(key)
        json.loads(json.dumps(counts))
        times.append(time.perf_counter() - begin)
    return min(times)


def _queue() -> Numbers:
    size, operations = QUEUE
    (costs,) = measure_queue((size,), (1,), operations=operations)
    parts = {"push": costs.push, "pop": costs.pop, "remove": costs.remove}
    return {f"waiting queue, {name}": MICRO * part.median for name, part in parts.items()}


def _prefixes() -> Numbers:
    size, requests = PREFIXES
    (costs,) = measure_prefixes((size,), requests=requests, warm_up=WARM_UP)
    return {"prefix tree, a request": MICRO * costs.request.median}


def _encoding() -> Numbers:
    frame = ChunkEncoder(_ENVELOPE, usage=False).text_frame('{"index":0,"text":', ',"finish_reason":null}')
    begin = time.perf_counter()
    for _ in range(CHUNKS):
        frame.encode(" the")
    return {"encoding a token's event": MICRO * (time.perf_counter() - begin) / CHUNKS}


def _imports() -> Numbers:
    nothing, *rest = measure_imports(rounds=IMPORT_ROUNDS)
    assert nothing.statement == NOTHING
    return {one.statement: MILLI * (one.seconds.median - nothing.seconds.median) for one in rest}


def _simulator() -> Numbers:
    return {"simulator, a request": measure_itself(*SIMULATED).microseconds_each}


def _refusals(model: Path) -> Numbers:
    async def measure() -> list[float]:
        async with engine_for(model, places=4, threads=1, cells=2048, max_requests=64) as engine:
            return await measure_refusals(engine, REFUSALS)

    return {"a refusal": MICRO * statistics.median(anyio.run(measure))}


def _sampling(model: Model, rows: Rows) -> Numbers:
    costs = [measure_case(model, case, rows, 1) for case in CASES]
    return {f"choosing a token, {cost.case}": MICRO * statistics.median(cost.ours) for cost in costs}


def _series(unit: str, pairs: Sequence[tuple[float, float]]) -> Series:
    values, sticks = zip(*pairs, strict=True)
    return Series(unit=unit, more_is_better=False, values=values, yardstick=sticks)


def _shares_of_the_floor(model: Path, rounds: int, tell: Tell) -> dict[str, Series]:
    """Measure the engine beside llama.cpp in a bare loop, whose rounds are its own."""
    seconds, warm_up = FLOOR_SECONDS
    plan = FloorPlan(
        model=model,
        threads=len(available_cores()),
        workload=Workload(),
        sequences=(8,),
        chunks=(64,),
        http=False,
        split=False,
        rounds=rounds,
        seconds=seconds,
        warm_up=warm_up,
        seed=1,
    )
    (result,) = anyio.run(measure_floor, plan, tell)
    ratios = tuple(result.ratios(ENGINE))
    between = tuple(MILLI * run.lane.idle_step for run in result.counting(ENGINE))
    sticks = (yardstick(),) * len(ratios)
    return {
        "engine, share of the floor": Series(unit="", more_is_better=True, values=ratios, yardstick=sticks),
        "engine, between two steps": Series(unit="ms", more_is_better=False, values=between, yardstick=sticks),
    }

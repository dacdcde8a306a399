"""The command `llamalane bench promises`: carries the measurements out, and prints what came of them."""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median

import anyio

from llamalane.bench.machine import describe_machine
from llamalane.bench.model import find_model
from llamalane.bench.promises import Promise
from llamalane.bench.promises.asking import engine_for, percentile
from llamalane.bench.promises.overload import FIRST_TOKEN, PER_TOKEN, TOP_SHARE, Overload, measure_overload
from llamalane.bench.promises.refusals import measure_refusals
from llamalane.bench.promises.urgency import Urgency, measure_urgency
from llamalane.streams.cores import available_cores

PLACES = 8
CELLS = 4096
QUEUE = 64


def run(model: Path | None, promises: list[Promise], *, tries: int, seconds: float, seed: int) -> None:
    """Measure each of `promises` on an engine of its own, and print a table for each."""
    machine = describe_machine()
    print(f"{machine.processor}, {machine.cores} cores; {PLACES} places, {CELLS} KV cells, nothing reserved.\n")
    for promise in promises:
        print("\n".join(anyio.run(_measure, find_model(model), promise, tries, seconds, seed)), flush=True)


async def _measure(model: Path, promise: Promise, tries: int, seconds: float, seed: int) -> list[str]:
    threads = len(available_cores())
    async with engine_for(model, places=PLACES, threads=threads, cells=CELLS, max_requests=QUEUE) as engine:
        match promise:
            case Promise.URGENCY:
                urgency = await measure_urgency(engine, tries=tries, clients=2 * PLACES, seed=seed, tell=_tell)
                return urgency_lines(urgency)
            case Promise.REFUSALS:
                return refusal_lines(await measure_refusals(engine, tries=20 * tries))
            case Promise.OVERLOAD:
                return overload_lines(await measure_overload(engine, seconds=seconds, seed=seed))


def urgency_lines(result: Urgency) -> list[str]:
    """Return the table of the urgent requests."""
    return [
        "| urgent request of 12 words | tries | median, ms | p99, ms |",
        "| --- | --- | --- | --- |",
        *(
            f"| {name} | {len(times)} | {1e3 * median(times):.0f} | {1e3 * percentile(times, 0.99):.0f} |"
            for name, times in (("idle", result.idle), ("every place taken by level 5", result.loaded))
        ),
        "",
        f"Under load {result.median_ratio:.2f}× in the median, {result.ratio:.2f}× at the 99th percentile. One urgent "
        f"request a second costs {100 * result.cost:.1f} % of all tokens computed, its own not counted as lost.",
        "",
    ]


def refusal_lines(times: list[float]) -> list[str]:
    """Return what refusals took."""
    return [
        f"{len(times)} refusals by `submit_tokens_nowait` took {1e6 * median(times):.0f} µs in the median, "
        f"{1e6 * percentile(times, 0.99):.0f} µs at the 99th percentile.",
        "",
    ]


def overload_lines(result: Overload) -> list[str]:
    """Return the table of the overload."""
    rows = [("level 1 alone", result.unloaded), ("level 1 in the overload", result.top), ("level 5", result.low)]
    return [
        f"Capacity: {result.capacity:.2f} requests a second. Offered: 3 times as many, {100 * TOP_SHARE:.0f} % of the "
        f"capacity at level 1. Objective: first token within {FIRST_TOKEN} s, {PER_TOKEN} s for each further one.",
        "",
        "| class | asked | refused | answered | within the objective, of those asked |",
        "| --- | --- | --- | --- | --- |",
        *(
            f"| {name} | {one.asked} | {one.refused} | {one.answered} | {100 * one.good / max(1, one.asked):.1f} % |"
            for name, one in rows
        ),
        "",
        f"In the overload {result.computed:.0f} tokens a second were computed, prompts included, and {result.peak:.0f} "
        f"before it: {result.computed / result.peak:.2f} times as many. Resident memory grew by "
        f"{result.growth / 1e6:.1f} MB in its second half.",
        "",
    ]


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)

"""Comparisons that were made up, so that every number in them is known."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from llamalane.bench.latencies import Distribution, Latencies
from llamalane.bench.machine import CpuShares
from llamalane.bench.peers.contestants import Contestant, LocalServer, RemoteServer
from llamalane.bench.peers.kinds import Arrivals, Peer
from llamalane.bench.peers.plan import Comparison, ComparisonPlan, Load, Measurement, Memory
from llamalane.bench.summary import LoadSummary, Objective
from llamalane.bench.workload import Workload
from tests.bench.test_report import MACHINE, SETUP, summary

NONE = Latencies(
    time_to_first_token=(),
    time_per_output_token=(),
    inter_token=(),
    end_to_end=(),
    with_retries=(),
    time_to_refusal=(),
)


def clients(count: int) -> Load:
    return Load(Arrivals.CLOSED, count)


def arriving(rate: float) -> Load:
    return Load(Arrivals.POISSON, rate)


def measurement(
    name: str,
    load: Load,
    number: int,
    of: LoadSummary,
    latencies: Latencies = NONE,
    classes: Mapping[str, LoadSummary] | None = None,
    others: float = 0.02,
    remote: bool = False,
) -> Measurement:
    return Measurement(
        contestant=name,
        load=load,
        round=number,
        summary=of,
        latencies=latencies,
        cpu=CpuShares(None if remote else 1.9, others, 0.01),
        classes=dict(classes or {}),
        memory=None if remote else Memory(100 << 20, 110 << 20, 120 << 20),
    )


def comparison(
    measurements: Sequence[Measurement], builds: dict[str, str] | None = None, objective: Objective | None = None
) -> Comparison:
    names = dict.fromkeys(one.contestant for one in measurements)
    known = {peer.value: peer for peer in Peer}
    contestants: list[Contestant] = [
        LocalServer(known[name], SETUP) if name in known else RemoteServer(name, "http://127.0.0.1:1") for name in names
    ]
    plan = ComparisonPlan(
        setup=SETUP,
        contestants=tuple(contestants),
        source=Workload(),
        chat=False,
        loads=tuple(dict.fromkeys(one.load for one in measurements)),
        rounds=max(one.round for one in measurements),
        seconds=30,
        warm_up=10,
        seed=7,
        objective=objective,
    )
    return Comparison(plan=plan, machine=MACHINE, builds=builds or {}, measurements=tuple(measurements))


def rates(by_load: Mapping[int, Sequence[tuple[float | None, ...]]], **options: float) -> list[Measurement]:
    """Return measurements of llamalane and llama-server with these tokens per second, round by round."""
    return [
        measurement(peer.value, clients(count), number, summary(rate), **options)  # type: ignore[arg-type]
        for count, rounds in by_load.items()
        for number, pair in enumerate(rounds, 1)
        for peer, rate in zip((Peer.LLAMALANE, Peer.XLLAMACPP), pair, strict=True)
    ]


def with_times(rate: float, first: Sequence[float]) -> tuple[LoadSummary, Latencies]:
    """Return a run in which these were the times to first token."""
    latencies = dataclasses.replace(NONE, time_to_first_token=tuple(first), end_to_end=tuple(10 * one for one in first))
    return dataclasses.replace(summary(rate), time_to_first_token=Distribution.of(first)), latencies

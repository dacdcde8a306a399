"""A study's results as Markdown for people and as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from statistics import median

from llamalane.bench.simulator.itself import OwnCost
from llamalane.bench.simulator.measures import LevelMeasures, Measures, Percentiles
from llamalane.bench.simulator.speed import Speed
from llamalane.bench.simulator.study import POLICIES, Run, Study
from llamalane.bench.simulator.verdicts import TOLERANCE, Verdict


def markdown(study: Study, workload: str, runs: Sequence[Run]) -> str:
    """Return what was simulated, and for each load a table by level and one of totals."""
    parts = [_about(study, workload)]
    for rate in study.rates:
        under_rate = [run for run in runs if run.rate == rate]
        parts.append(f"## {rate:.4g} requests/s, {_load(study, rate):.2f} of the estimated capacity")
        parts.append(
            _table(_LEVEL_TITLES, (_level_row(run, level) for run in under_rate for level in run.measures.levels))
        )
        parts.append(_table(_TOTAL_TITLES, (_total_row(run.policy, run.measures) for run in under_rate)))
    meanings = "; ".join(f"**{name}**: {POLICIES[name].meaning}" for name in study.policies)
    parts.append(f"Times in seconds. {meanings}.")
    return "\n\n".join(parts)


def to_json(study: Study, workload: str, runs: Sequence[Run]) -> str:
    """Return every number of the tables."""
    machine = study.machine
    document = {
        "workload": workload,
        "seed": study.seed,
        "requests": study.count,
        "places": list(machine.places),
        "objective": asdict(study.objective),
        "runs": [
            {"policy": run.policy, "rate": run.rate, "load": _load(study, run.rate), **asdict(run.measures)}
            for run in runs
        ],
    }
    return json.dumps(document, indent=2) + "\n"


def comparison_markdown(study: Study, workload: str, verdicts: Sequence[Verdict], slowness: Sequence[float]) -> str:
    """Return the times to first token, simulated and real, and whether they agree.

    `slowness` tells how many times as long as calibrated the steps of each real run took.
    """
    count = len(slowness)
    titles = ["level", "TTFT", "simulated", *(f"real {number}" for number in range(1, count + 1))]
    titles += ["simulated / median", "spread", "within"]
    rows = [
        (
            verdict.level,
            verdict.percentile,
            f"{verdict.simulated:.3f}",
            *(f"{value:.3f}" for value in verdict.real),
            f"{verdict.simulated / verdict.middle:.2f}",
            f"{verdict.spread / verdict.middle:.0%}",
            "yes" if verdict.within else "no",
        )
        for verdict in verdicts
    ]
    within = sum(verdict.within for verdict in verdicts)
    factors = ", ".join(f"{factor:.2f}" for factor in slowness)
    return "\n\n".join(
        [
            f"{_about(study, workload)}\n- {study.rates[0]:.4g} requests/s.\n"
            f"- The machine took {factors} times as long as calibrated for the steps of the real runs; "
            f"the simulated one takes {median(slowness):.2f} times.",
            _table(titles, rows),
            f"Times to first token in seconds. {within} of {len(rows)} are within the larger of {TOLERANCE:.0%} and "
            "the spread of the real runs.",
        ]
    )


def speed_markdown(speed: Speed) -> str:
    """Return measured passes as a table."""
    rows = [(point.sequences, point.tokens, point.cells, f"{point.seconds:.4f}") for point in speed.points]
    table = _table(("sequences", "tokens", "cells", "seconds"), rows)
    return f"{table}\n\nBetween two steps {speed.between:.5f} s, for choosing a token {speed.output:.6f} s."


def own_cost_markdown(cost: OwnCost) -> str:
    """Return what the simulator took, in a sentence."""
    return (
        f"{cost.requests} requests on {cost.lanes} lanes under {cost.policy} at {cost.load:g} of the capacity: "
        f"{cost.seconds:.1f} s, {cost.microseconds_each:.0f} µs for each request, {cost.steps} steps, "
        f"{cost.memory / 2**20:.0f} MiB. A million requests would take {cost.microseconds_each / 60:.1f} minutes."
    )


_LEVEL_TITLES = (
    "policy",
    "level",
    "requests",
    "TTFT p50",
    "TTFT p90",
    "TTFT p99",
    "wait p50",
    "wait p90",
    "wait p99",
    "SLO met",
    "parks",
    "refused",
)
_TOTAL_TITLES = ("policy", "tokens/s", "requests/s", "goodput/s", "SLO met", "parks", "cached", "Jain", "refused")


def _about(study: Study, workload: str) -> str:
    machine = study.machine
    lanes, places = len(machine.places), sum(machine.places)
    objective = study.objective
    return "\n".join(
        [
            f"- {lanes} {'lane' if lanes == 1 else 'lanes'} with {places} places; at most {machine.max_step_tokens} "
            "tokens in a step.",
            f"- Workload {workload}: about {study.count} requests, seed {study.seed}.",
            f"- SLO: first token within {objective.first_token:g} s, and {objective.inter_token:g} s between tokens in "
            "the mean.",
        ]
    )


def _load(study: Study, rate: float) -> float:
    return rate / study.machine.capacity(*study.source.mean_lengths())


def _level_row(run: Run, level: LevelMeasures) -> Iterable[object]:
    return (
        run.policy,
        level.level,
        level.requests,
        *_percentiles(level.first_token),
        *_percentiles(level.wait),
        f"{level.met:.1%}",
        level.parks,
        level.refused,
    )


def _total_row(policy: str, measures: Measures) -> Iterable[object]:
    return (
        policy,
        f"{measures.tokens_per_second:.1f}",
        f"{measures.requests_per_second:.3f}",
        f"{measures.goodput:.3f}",
        f"{measures.met:.1%}",
        measures.parks,
        f"{measures.cached_share:.1%}",
        f"{measures.jain:.3f}",
        measures.refused,
    )


def _percentiles(percentiles: Percentiles) -> Iterable[str]:
    return (f"{value:.3f}" for value in (percentiles.p50, percentiles.p90, percentiles.p99))


def _table(titles: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    return "\n".join(
        [
            "| " + " | ".join(titles) + " |",
            "| " + " | ".join("---" for _ in titles) + " |",
            *("| " + " | ".join(map(str, row)) + " |" for row in rows),
        ]
    )

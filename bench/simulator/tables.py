"""A study's results as Markdown for people and as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from llamalane.bench.simulator.comparison import Comparison
from llamalane.bench.simulator.itself import OwnCost
from llamalane.bench.simulator.measures import LevelMeasures, Measures, Percentiles
from llamalane.bench.simulator.speed import Speed
from llamalane.bench.simulator.study import POLICIES, Run, Study


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


def comparison_markdown(study: Study, workload: str, comparison: Comparison) -> str:
    """Return the times to first token of a real run and of its simulation, and their ratios."""
    titles = ["level", "requests"]
    titles += [f"{name} {what}" for name in ("p50", "p90") for what in ("real", "simulated", "ratio")]
    rows = []
    for real, simulated in comparison.pairs:
        pairs = [
            (real.first_token.p50, simulated.first_token.p50),
            (real.first_token.p90, simulated.first_token.p90),
        ]
        cells = [text for ours, theirs in pairs for text in (f"{ours:.3f}", f"{theirs:.3f}", f"{theirs / ours:.2f}")]
        rows.append([real.level, real.requests, *cells])
    return "\n\n".join([_about(study, workload), _table(titles, rows), "Times to first token in seconds."])


def speed_markdown(speed: Speed) -> str:
    """Return measured steps as a table."""
    rows = [(point.decode_rows, point.prompt_tokens, f"{point.seconds:.4f}") for point in speed.points]
    return _table(("decode rows", "prompt tokens", "seconds"), rows)


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

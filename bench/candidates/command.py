"""The command `llamalane bench candidates`: carries the experiments out, and prints what came of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from llamalane.bench import runs
from llamalane.bench.candidates import Candidate
from llamalane.bench.candidates.comparison import CandidatesPlan, Comparison, Experiment
from llamalane.bench.candidates.experiments import EXPERIMENTS
from llamalane.bench.candidates.tables import CandidatesReport, Findings, candidates_markdown, comparison_line
from llamalane.bench.model import find_model
from llamalane.bench.report import to_json
from llamalane.streams.cores import available_cores

__all__ = ["chosen_candidates", "measure", "measure_candidates", "plan_for"]


def measure(plan: CandidatesPlan, candidates: Sequence[Candidate], json_file: Path | None, *, busy_ok: bool) -> None:
    """Measure, and print the tables."""
    machine = runs.quiet_machine(busy_ok)
    findings = measure_candidates(plan, {one: EXPERIMENTS[one] for one in candidates}, runs.tell)
    report = CandidatesReport(plan=plan, machine=machine, findings=findings)
    print(candidates_markdown(report))
    if json_file is not None:
        json_file.write_text(to_json(report))


def measure_candidates(
    plan: CandidatesPlan, experiments: Mapping[Candidate, Experiment], tell: Callable[[str], None]
) -> tuple[Findings, ...]:
    """Carry the experiments out one after the other, telling of each situation as soon as it was measured."""

    def told(candidate: Candidate, comparison: Comparison) -> Comparison:
        tell(comparison_line(candidate, comparison))
        return comparison

    return tuple(
        Findings.of(candidate, experiment, tuple(told(candidate, one) for one in experiment.compare(plan)))
        for candidate, experiment in experiments.items()
    )


def plan_for(model: Path | None, *, threads: int | None, rounds: int, seed: int, python: Path | None) -> CandidatesPlan:
    """Return the plan that a command line asks for; without `threads` there is one for each core."""
    count = threads or len(available_cores())
    return CandidatesPlan(model=find_model(model), threads=count, rounds=rounds, seed=seed, python=python)


def chosen_candidates(only: Sequence[Candidate] | None, python: Path | None) -> list[Candidate]:
    """Return what to measure: what was asked for, else all, with other interpreters if one was named."""
    if only:
        return list(dict.fromkeys(only))
    return [one for one in Candidate if one is not Candidate.FREE_THREADING or python is not None]

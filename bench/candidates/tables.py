"""What the experiments found, as Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from llamalane.bench.candidates import Candidate
from llamalane.bench.candidates.comparison import CandidatesPlan, Comparison, Experiment
from llamalane.bench.document import Heading, Paragraph, Part, Table, spread, to_markdown
from llamalane.bench.machine import Machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What one experiment found; the other fields are those of `Experiment`."""

    candidate: Candidate
    title: str
    unit: str
    now: str
    other: str
    method: str
    comparisons: tuple[Comparison, ...]

    @classmethod
    def of(cls, candidate: Candidate, experiment: Experiment, comparisons: tuple[Comparison, ...]) -> Findings:
        """Put together what was measured, and how."""
        return cls(
            candidate=candidate,
            title=experiment.title,
            unit=experiment.unit,
            now=experiment.now,
            other=experiment.other,
            method=experiment.method,
            comparisons=comparisons,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidatesReport:
    """The findings, and what they are of."""

    plan: CandidatesPlan
    machine: Machine
    findings: tuple[Findings, ...]


def candidates_markdown(report: CandidatesReport) -> str:
    """Return all tables."""
    return to_markdown(list(_parts(report)))


def comparison_line(candidate: Candidate, one: Comparison) -> str:
    """Return one comparison in a line, for progress."""
    form = _form(one)
    remarks = "".join(f"; {title}: {text}" for title, text in one.remarks.items())
    return (
        f"{candidate.value}, {one.situation}: {spread(one.now, form)}, {spread(one.other, form)}, "
        f"ratio {spread(one.ratios, ',.2f')}{remarks}"
    )


def _parts(report: CandidatesReport) -> Iterator[Part]:
    plan, machine = report.plan, report.machine
    yield Paragraph(
        f"{machine.processor}, {machine.cores} cores, {machine.busy:.2f} of them busy before the start; "
        f"{plan.model.name}, {plan.threads} threads; {plan.rounds} rounds; seed {plan.seed}. Each number: median "
        "(least to most) over the rounds. A ratio is the second number as a multiple of the first, within a round."
    )
    for findings in report.findings:
        yield Heading(f"{findings.candidate.value}: {findings.title}")
        yield Paragraph(findings.method)
        yield _table(findings)


def _table(findings: Findings) -> Table:
    titles = list(dict.fromkeys(title for one in findings.comparisons for title in one.remarks))
    rows = [
        [
            one.situation,
            spread(one.now, _form(one)),
            spread(one.other, _form(one)),
            spread(one.ratios, ",.2f"),
            *(one.remarks.get(title, "") for title in titles),
        ]
        for one in findings.comparisons
    ]
    heads = ["situation", f"{findings.now}, {findings.unit}", f"{findings.other}, {findings.unit}", "ratio"]
    return Table.of([*heads, *titles], rows)


def _form(one: Comparison) -> str:
    """Return the form that leaves the smaller number with three digits or so that say something."""
    smaller = min(statistics.median(one.now), statistics.median(one.other))
    return ",.0f" if smaller >= 100 else ",.1f" if smaller >= 10 else ",.2f"

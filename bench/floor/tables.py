"""The floor, and what stands on it, as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import median

from llamalane.bench.document import spread
from llamalane.bench.floor.plan import FloorReport, FloorResult, Run
from llamalane.bench.floor.probes import PARTS, Split
from llamalane.bench.machine import BUSY_CORES


def run_line(sequences: int, run: Run) -> str:
    """Return one measurement in a line, for progress."""
    lane = run.lane
    return (
        f"{sequences} sequences, round {run.round}, {run.what}: {run.tokens_per_second:.1f} tokens/s, "
        f"{lane.steps} steps, {1e3 * lane.idle_step:.2f} ms between them; others used {run.others:.2f} cores"
    )


def floor_markdown(report: FloorReport) -> str:
    """Return all tables."""
    plan, machine = report.plan, report.machine
    lines = [
        f"- {machine.processor}, {machine.cores} cores; {plan.model.name}, {plan.threads} threads.",
        f"- Prompts of {plan.workload.words} words, answers of {plan.workload.output_tokens} tokens; {plan.rounds} "
        f"rounds of {plan.seconds:g} s after {plan.warm_up:g} s of warm-up each, in turn; seed {plan.seed}.",
        "",
        "| sequences | what | tokens/s | of the best floor | idle | between steps, ms | sampling, ms | step, ms |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        *(_row(result, name) for result in report.results for name in result.names),
        "",
        "Medians over the rounds (least to most). Shares of the floor are of the quickest one in the same round. Idle "
        "is the part of a lane's time between steps, without sampling, while it had work.",
    ]
    for result in report.results:
        lines += _split_lines(result)
    return "\n".join([*lines, *_disturbed_lines(report.results)])


def _row(result: FloorResult, name: str) -> str:
    runs = result.counting(name)

    def spread_of(value: Callable[[Run], float], form: str) -> str:
        return spread([value(run) for run in runs], form)

    cells = [
        str(result.sequences),
        name,
        spread_of(lambda run: run.tokens_per_second, ".1f"),
        spread(result.ratios(name), ".3f"),
        f"{100 * median(run.lane.idle_share for run in runs):.1f}%",
        spread_of(lambda run: 1e3 * run.lane.idle_step, ".2f"),
        f"{1e3 * median(run.lane.sample / run.lane.steps for run in runs):.2f}",
        f"{1e3 * median(run.lane.seconds / run.lane.steps for run in runs):.1f}",
    ]
    return "| " + " | ".join(cells) + " |"


def _split_lines(result: FloorResult) -> Iterator[str]:
    if not result.splits:
        return
    names = list(result.splits)
    shares = [dict(_shares(split)) for split in result.splits.values()]
    yield from ("", f"Where the time of {result.sequences} sequences goes, as a share of it, with probes:", "")
    yield "| | " + " | ".join(names) + " |"
    yield "| --- |" + " --- |" * len(names)
    for what in shares[0]:
        yield f"| {what} | " + " | ".join(_percent(share[what]) for share in shares) + " |"


def _shares(split: Split) -> Iterator[tuple[str, float | None]]:
    """Return what a lane's thread and the event loop's thread did, as shares of the time."""
    lane, waited = split.lane, split.interpreter
    yield "lane: in llama.cpp", (lane.decode - (waited or 0.0)) / lane.seconds
    yield "lane: waiting for the interpreter after it", None if waited is None else waited / lane.seconds
    yield "lane: choosing tokens", lane.sample / lane.seconds
    yield "lane: between steps", lane.idle / lane.seconds
    yield "event loop, CPU", split.loop / lane.seconds
    for part in PARTS:
        yield f"event loop: {part}", split.parts.get(part, 0.0) / lane.seconds
    yield "event loop: sockets, framework, all else", (split.loop - sum(split.parts.values())) / lane.seconds


def _disturbed_lines(results: Sequence[FloorResult]) -> Iterator[str]:
    for result in results:
        quiet, rounds = len(result.quiet), len(result.rounds)
        if quiet < rounds:
            yield ""
            yield (
                f"**Disturbed: in {rounds - quiet} of {rounds} rounds of {result.sequences} sequences, other work took "
                f"more than {BUSY_CORES:g} cores. {'They do not count.' if quiet else 'The numbers say little.'}**"
            )


def _percent(share: float | None) -> str:
    return "not known" if share is None else f"{100 * share:.2f}%"

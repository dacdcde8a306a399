"""Measurements as Markdown for people and as JSON for programs."""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

from llamalane.bench.comparison import ORDER, Comparison, Measurement
from llamalane.bench.machine import BUSY_CORES, Machine
from llamalane.bench.peers import Peer, Setup
from llamalane.bench.summary import Distribution
from llamalane.bench.urgent import UrgentResult
from llamalane.bench.workload import Workload


def to_json(result: object) -> str:
    """Return everything that was measured: dataclasses, and what holds them."""
    return json.dumps(result, indent=2, default=_plain)


def comparison_markdown(comparison: Comparison) -> str:
    """Return the comparison as tables: medians over the rounds, then every round."""
    plan = comparison.plan
    ours, theirs = (peer.value for peer in ORDER)
    loads = [_load_row(comparison, clients) for clients in plan.clients]
    rounds = [row for clients in plan.clients for row in _round_rows(comparison, clients)]
    return "\n".join(
        [
            *machine_lines(comparison.machine, comparison.builds),
            setup_line(plan.setup),
            workload_line("Each client", plan.workload, "chat" if plan.chat else "completion"),
            f"- {plan.rounds} rounds in alternating order, each server freshly started; {plan.seconds:g} s "
            f"measured after {plan.warm_up:g} s of warm-up; seed {plan.seed}.",
            "",
            *table(
                ["clients", f"{ours}, tokens/s", f"{theirs}, tokens/s", "ratio, median", "ratio, range"]
                + [f"{name}, {what}" for what in ("TTFT s", "ITL ms") for name in (ours, theirs)],
                loads,
            ),
            "",
            "Medians over the rounds; TTFT and ITL are the medians of each round's median.",
            "",
            *table(
                [
                    "clients",
                    "round",
                    ours,
                    theirs,
                    "ratio",
                    "others' CPU",
                    "stolen CPU",
                    "clients' CPU",
                    "errors",
                ],
                rounds,
            ),
            "",
            "Tokens/s of each round; CPU in cores, the higher of the two servers' runs.",
            *_disturbed_lines(comparison),
        ]
    )


def urgent_markdown(result: UrgentResult) -> str:
    """Return the urgent requests' times as a table."""
    plan = result.plan
    reserve = f", {plan.reserve} of them reserved" if plan.peer is Peer.LLAMALANE else ""
    rows = [
        [name, len(times), f"{median(times):.3f}", f"{max(times):.3f}"]
        for name, times in (("idle", result.idle), ("loaded", result.loaded))
    ]
    load = result.background
    return "\n".join(
        [
            *machine_lines(result.machine, {plan.peer.value: result.build}),
            setup_line(plan.setup) + f" Server: {plan.peer.value}{reserve}.",
            workload_line(f"Each of {plan.clients} clients at level 5", plan.background, "completion"),
            workload_line("An urgent request at level 1", plan.urgent, "completion"),
            "",
            *table(["server", "tries", "TTFT median, s", "TTFT worst, s"], rows),
            "",
            f"Under load, of the idle median: {result.median_ratio:.2f}× in the median, "
            f"{result.worst_ratio:.2f}× at worst. The load got {load.tokens_per_second or 0:.1f} tokens/s "
            f"with {sum(load.errors.values())} errors.",
        ]
    )


def measurement_line(measurement: Measurement) -> str:
    """Return one measurement in a line, for progress."""
    load = measurement.load
    first = load.time_to_first_token
    parts = [
        f"{measurement.clients} clients, round {measurement.round}, {measurement.peer.value}: "
        f"{measurement.tokens_per_second:.1f} tokens/s",
        f"TTFT {first.median:.2f} s" if first else "no TTFT",
        f"{load.requests} requests, {load.cut} cut, {sum(load.errors.values())} errors",
        f"CPU {measurement.cpu.server:.2f} server, {load.generator_cpu:.2f} clients, "
        f"{measurement.cpu.others:.2f} others, {measurement.cpu.stolen:.2f} stolen",
    ]
    if load.wrong_length:
        parts.append(f"{load.wrong_length} answers of another length than asked for")
    return "; ".join(parts)


def _load_row(comparison: Comparison, clients: int) -> list[object]:
    ratios = comparison.ratios(clients)
    measured = [comparison.of(peer, clients) for peer in ORDER]
    return [
        clients,
        *(f"{comparison.median_rate(peer, clients):.1f}" for peer in ORDER),
        f"{median(ratios):.3f}" if ratios else "n/a",
        f"{min(ratios):.3f} to {max(ratios):.3f}" if ratios else "n/a",
        *(_median_of((one.load.time_to_first_token for one in of), 1, 2) for of in measured),
        *(_median_of((one.load.inter_token for one in of), 1000, 0) for of in measured),
    ]


def _round_rows(comparison: Comparison, clients: int) -> list[list[object]]:
    rows: list[list[object]] = []
    for pair in zip(*(comparison.of(peer, clients) for peer in ORDER), strict=True):
        ours, theirs = pair
        theirs_rate = theirs.tokens_per_second
        rows.append(
            [
                clients,
                ours.round,
                f"{ours.tokens_per_second:.1f}",
                f"{theirs_rate:.1f}",
                f"{ours.tokens_per_second / theirs_rate:.3f}" if theirs_rate else "n/a",
                f"{max(one.cpu.others for one in pair):.2f}",
                f"{max(one.cpu.stolen for one in pair):.2f}",
                f"{max(one.load.generator_cpu for one in pair):.3f}",
                sum(sum(one.load.errors.values()) for one in pair),
            ]
        )
    return rows


def _disturbed_lines(comparison: Comparison) -> list[str]:
    measurements = comparison.measurements
    disturbed = sum(one.cpu.others + one.cpu.stolen > BUSY_CORES for one in measurements)
    if not disturbed:
        return []
    return [
        "",
        f"**Disturbed: in {disturbed} of {len(measurements)} runs other work took more than {BUSY_CORES:g} cores.** "
        "Servers whose threads spin while they wait lose most by that, so these ratios say little.",
    ]


def _median_of(distributions: Iterable[Distribution | None], scale: float, digits: int) -> str:
    medians = [distribution.median * scale for distribution in distributions if distribution is not None]
    return f"{median(medians):.{digits}f}" if medians else "n/a"


def machine_lines(machine: Machine, builds: dict[str, str]) -> list[str]:
    """Return what a report says of the machine, and of each side's build of llama.cpp."""
    load = "unknown" if machine.load_average is None else " ".join(f"{one:.2f}" for one in machine.load_average)
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    lines = [
        f"- {machine.processor}, {machine.cores} cores, {machine.memory_gib:g} GiB; {machine.system}; "
        f"{machine.python}.",
        f"- {versions}.",
        f"- Before the start: load average {load}; {machine.busy:.2f} cores busy.",
        *(f"- llama.cpp in {name}: {build}." for name, build in builds.items()),
    ]
    if machine.settings:
        lines.append(f"- Environment: {', '.join(f'{name}={value}' for name, value in machine.settings.items())}.")
    if len(set(builds.values())) > 1:
        lines.append(
            "- **The builds of llama.cpp differ**: where one uses instruction sets that the other lacks, the "
            "ratio compares these as well as the servers."
        )
    return lines


def setup_line(setup: Setup) -> str:
    """Return what a report says of what all servers have in common."""
    return (
        f"- {setup.model.name}, {setup.places} places, {setup.threads} threads, {setup.cells} KV cells, "
        "over HTTP on 127.0.0.1."
    )


def workload_line(who: str, workload: Workload, kind: str) -> str:
    """Return what a report says of what `who` asks for; `kind` is a completion or a chat."""
    sampling = ", ".join(f"{name} {value:g}" for name, value in workload.sampling.items())
    return (
        f"- {who}: a {kind} for a fresh prompt of {workload.words} words, answered with "
        f"{workload.output_tokens} tokens; {sampling}."
    )


def table(titles: list[str], rows: Iterable[Iterable[object]]) -> list[str]:
    """Return the lines of a table in Markdown."""
    return [
        "| " + " | ".join(titles) + " |",
        "| " + " | ".join("---" for _ in titles) + " |",
        *("| " + " | ".join(map(str, row)) + " |" for row in rows),
    ]


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")

"""A comparison as a report: tables of medians, ratios, latencies and rounds, with the words that explain them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from llamalane.bench.document import Heading, Items, Paragraph, Part, Table
from llamalane.bench.latencies import Distribution, Latencies
from llamalane.bench.machine import BUSY_CORES
from llamalane.bench.peers.kinds import Arrivals
from llamalane.bench.peers.plan import Comparison, Load, Measurement, Spread, median_of
from llamalane.bench.report import machine_lines, setup_line, source_line
from llamalane.bench.summary import LoadSummary, Objective

_NONE = "n/a"
_MIB = 2**20

Value = Callable[[Measurement], float | None]


def report_parts(comparison: Comparison) -> list[Part]:
    """Return the whole report."""
    parts: list[Part] = [Items(tuple(_facts(comparison))), *_warnings(comparison)]
    parts += [
        Heading("Throughput"),
        _throughput(comparison),
        Paragraph("Medians over the rounds; goodput counts answers that met the objective."),
    ]
    if len(comparison.names) > 1:
        parts += [
            Heading("Ratios"),
            _ratios(comparison),
            Paragraph(
                f"Each round's value of {comparison.names[0]} as a multiple of the other's in the same round; of "
                "times, less than 1 is better."
            ),
        ]
    parts += [
        Heading("Latency"),
        _latencies(comparison),
        Paragraph(
            "Requests of all rounds together; TTFT, E2E in seconds, TPOT, ITL in milliseconds. TTFT: to the first "
            "token. TPOT: a request's mean per further token. ITL: from a piece of text to the next. E2E: to the last "
            "byte."
        ),
    ]
    if comparison.classes:
        parts += [Heading("Classes"), _classes(comparison), Paragraph("Medians over the rounds of each percentile.")]
    if any(one.summary.rejections for one in comparison.measurements):
        parts += [
            Heading("Refusals"),
            _refusals(comparison),
            Paragraph(
                "Refused requests came again when `Retry-After` said so. Time to refusal in milliseconds; E2E with "
                "retries in seconds, of requests that had been refused before."
            ),
        ]
    parts += [
        Heading("Rounds"),
        _rounds(comparison),
        Paragraph(
            "CPU in cores; the clients are in the process of the benchmark. Memory: resident, in MiB, when the window "
            "started, in its middle, and at the end. Wrong length: answers with more or fewer tokens than asked for; "
            "uncounted: the server did not say how many."
        ),
    ]
    return parts


def _facts(comparison: Comparison) -> Iterator[str]:
    plan = comparison.plan
    yield from machine_lines(comparison.machine, comparison.builds)
    yield setup_line(plan.setup)
    if plan.setup.queue is not None:
        yield f"At most {plan.setup.queue} requests wait at llamalane."
    yield source_line("Each request", plan.source, "chat" if plan.chat else "completion")
    yield (
        f"{plan.rounds} rounds, the servers in turn, each freshly started if it is started here; {plan.seconds:g} s "
        f"measured after {plan.warm_up:g} s of warm-up; seed {plan.seed}."
    )
    if plan.objective is not None:
        yield f"Objective: {_objective(plan.objective)}."
    remote = [one.name for one in plan.contestants if not one.is_local]
    if remote:
        yield f"Running before, and set up by others: {', '.join(remote)}."


def _objective(objective: Objective) -> str:
    asked = []
    if objective.first_token is not None:
        asked.append(f"the first token within {objective.first_token:g} s")
    if objective.inter_token is not None:
        asked.append(f"{objective.inter_token:g} s for each further one in the mean")
    return ", ".join(asked)


def _warnings(comparison: Comparison) -> Iterator[Part]:
    local = {one.name for one in comparison.plan.contestants if one.is_local}
    if len({build for name, build in comparison.builds.items() if name in local}) > 1:
        yield Paragraph(
            "The builds of llama.cpp differ: where one uses instruction sets that the other lacks, the ratio compares "
            "these as well as the servers.",
            strong=True,
        )
    disturbed = sum(one.disturbed for one in comparison.measurements)
    if disturbed:
        yield Paragraph(
            f"Disturbed: in {disturbed} of {len(comparison.measurements)} runs other work took more than "
            f"{BUSY_CORES:g} cores. Servers whose threads spin while they wait lose most by that, so these ratios say "
            "little.",
            strong=True,
        )


def _pairs(comparison: Comparison) -> Iterator[tuple[Load, str, list[Measurement]]]:
    for load in comparison.loads:
        for name in comparison.names:
            yield load, name, comparison.of(name, load)


def _throughput(comparison: Comparison) -> Table:
    titles = ["load", "server", "output tokens/s", "requests/s", "goodput, requests/s", "refused", "errors"]
    rows = []
    for load, name, rounds in _pairs(comparison):
        summaries = [one.summary for one in rounds]
        rows.append(
            [
                load,
                name,
                number(median_of(one.tokens_per_second for one in rounds), 1),
                number(median_of(one.requests_per_second for one in summaries), 2),
                number(median_of(one.goodput for one in summaries), 2),
                sum(one.rejections for one in summaries),
                sum(sum(one.errors.values()) for one in summaries),
            ]
        )
    return Table.of(titles, rows)


def _ratios(comparison: Comparison) -> Table:
    titles = ["load", "compared with", "of", "median", "quartiles", "range"]
    rows = []
    for load in comparison.loads:
        for other in comparison.names[1:]:
            for what, value in _compared(load):
                spread = Spread.of(comparison.ratios(other, load, value))
                if spread is not None:
                    rows.append([load, other, what, *_spread_cells(spread)])
    return Table.of(titles, rows)


def _compared(load: Load) -> Iterator[tuple[str, Value]]:
    yield "output tokens/s", lambda one: one.tokens_per_second
    if load.arrivals is Arrivals.POISSON:
        yield "goodput", lambda one: one.summary.goodput
    yield "TTFT p50", lambda one: _of(one.summary.time_to_first_token, "median")
    yield "TTFT p99", lambda one: _of(one.summary.time_to_first_token, "p99")
    yield "TPOT p50", lambda one: _of(one.summary.time_per_output_token, "median")
    yield "ITL p99", lambda one: _of(one.summary.inter_token, "p99")
    yield "E2E p50", lambda one: _of(one.summary.end_to_end, "median")
    yield "E2E p99", lambda one: _of(one.summary.end_to_end, "p99")


def _of(distribution: Distribution | None, percentile: str) -> float | None:
    return None if distribution is None else float(getattr(distribution, percentile))


def _spread_cells(spread: Spread) -> list[str]:
    return [
        f"{spread.median:.3f}",
        f"{spread.low:.3f} to {spread.high:.3f}",
        f"{spread.least:.3f} to {spread.most:.3f}",
    ]


def _latencies(comparison: Comparison) -> Table:
    names = ["TTFT", "TPOT", "ITL", "E2E"]
    titles = ["load", "server", "requests", *(f"{name} {part}" for name in names for part in ("p50", "p90", "p99"))]
    rows = []
    for load, name, _ in _pairs(comparison):
        times = comparison.latencies(name, load)
        rows.append([load, name, len(times.end_to_end), *_latency_cells(times)])
    return Table.of(titles, rows)


def _latency_cells(times: Latencies) -> Iterator[str]:
    yield from _percentiles(times.time_to_first_token, 1, 3)
    yield from _percentiles(times.time_per_output_token, 1000, 1)
    yield from _percentiles(times.inter_token, 1000, 1)
    yield from _percentiles(times.end_to_end, 1, 3)


def _percentiles(values: Iterable[float], scale: float, digits: int) -> list[str]:
    distribution = Distribution.of(values)
    if distribution is None:
        return [_NONE] * 3
    return [number(value * scale, digits) for value in (distribution.median, distribution.p90, distribution.p99)]


def _classes(comparison: Comparison) -> Table:
    titles = ["load", "server", "class", "requests", "requests/s", "TTFT p50", "TTFT p99", "TPOT p50, ms", "E2E p99"]
    rows = []
    for load, name, rounds in _pairs(comparison):
        for kind in comparison.classes:
            summaries = [one.classes[kind] for one in rounds if kind in one.classes]
            rows.append([load, name, kind, *_class_cells(summaries)])
    return Table.of(titles, rows)


def _class_cells(summaries: Sequence[LoadSummary]) -> list[str]:
    first = [one.time_to_first_token for one in summaries]
    further = median_of(_of(one.time_per_output_token, "median") for one in summaries)
    return [
        str(sum(one.requests for one in summaries)),
        number(median_of(one.requests_per_second for one in summaries), 2),
        number(median_of(_of(one, "median") for one in first), 3),
        number(median_of(_of(one, "p99") for one in first), 3),
        number(None if further is None else 1000 * further, 1),
        number(median_of(_of(one.end_to_end, "p99") for one in summaries), 3),
    ]


def _refusals(comparison: Comparison) -> Table:
    titles = ["load", "server", "refused", "answered", "time to refusal p50", "p90", "p99"]
    titles += [f"E2E with retries {part}" for part in ("p50", "p90", "p99")]
    rows = []
    for load, name, rounds in _pairs(comparison):
        times = comparison.latencies(name, load)
        rows.append(
            [
                load,
                name,
                sum(one.summary.rejections for one in rounds),
                sum(one.summary.requests for one in rounds),
                *_percentiles(times.time_to_refusal, 1000, 1),
                *_percentiles(times.with_retries, 1, 2),
            ]
        )
    return Table.of(titles, rows)


def _rounds(comparison: Comparison) -> Table:
    titles = ["load", "server", "round", "tokens/s", "cached", "wrong length", "uncounted", "cut", "errors"]
    titles += ["server CPU", "clients' CPU", "others' CPU", "stolen CPU", "memory"]
    rows = [_round_cells(one) for _, _, rounds in _pairs(comparison) for one in rounds]
    return Table.of(titles, rows)


def _round_cells(one: Measurement) -> list[object]:
    summary, cpu, memory = one.summary, one.cpu, one.memory
    resident = (memory.start, memory.middle, memory.end) if memory is not None else ()
    cached = summary.cached_share
    return [
        one.load,
        one.contestant,
        one.round,
        number(one.tokens_per_second, 1),
        _NONE if cached is None else f"{100 * cached:.0f} %",
        summary.wrong_length,
        summary.uncounted,
        summary.cut,
        sum(summary.errors.values()),
        number(cpu.server, 2),
        number(summary.generator_cpu, 3),
        number(cpu.others, 2),
        number(cpu.stolen, 2),
        ", ".join(f"{size / _MIB:.0f}" for size in resident) or _NONE,
    ]


def number(value: float | None, digits: int) -> str:
    """Write a number with so many digits after the point, or that there is none."""
    return _NONE if value is None else f"{value:.{digits}f}"

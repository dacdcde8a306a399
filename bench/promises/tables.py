"""The tables of what was measured, in Markdown."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import mean, median

from llamalane.bench.promises.asking import percentile
from llamalane.bench.promises.endless import BACKLOG, Endless
from llamalane.bench.promises.overload import FIRST_TOKEN, PER_TOKEN, TOP_SHARE, Overload
from llamalane.bench.promises.parking import EACH, Parking
from llamalane.bench.promises.tenants import FAIR, FEW, MANY, TIMES, Shares
from llamalane.bench.promises.urgency import Urgency


def urgency_lines(result: Urgency) -> list[str]:
    """Return the table of the urgent requests."""
    return [
        *_first_token_lines({"idle": result.idle, "every place taken by level 5": result.loaded}),
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


def parking_lines(results: Iterable[tuple[int, str, Parking]]) -> list[str]:
    """Return the table of what parking adds, for each oversubscription and way of parking."""
    return [
        f"Requests of {EACH} tokens; what parking and resuming add to the usual time between two steps, in ms.",
        "",
        "| cells | `park` | finished | paused, swapped, recomputed | usual, median and worst "
        "| added, median | p99 | worst | allowed | promise |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        *(_parking_row(times, park, one) for times, park, one in results),
        "",
    ]


def _parking_row(times: int, park: str, one: Parking) -> str:
    ways = ", ".join(str(one.parks[way]) for way in ("pause", "swap", "recompute"))
    usual = f"{1e3 * median(one.usual):.2f}, {1e3 * max(one.usual):.1f}"
    added = " | ".join(
        f"{1e3 * value:.2f}" for value in (median(one.added), percentile(one.added, 0.99), max(one.added))
    )
    allowed = f"{1e3 * one.allowed:.0f} (steps of {1e3 * mean(one.steps):.0f})"
    finished = f"{one.finished} of {one.asked}"
    return f"| 1/{times} | {park} | {finished} | {ways} | {usual} | {added} | {allowed} | {_verdict(kept=one.kept)} |"


def endless_lines(result: Endless) -> list[str]:
    """Return how long the least urgent waited, and the table of urgent requests before a backlog."""
    waits = result.waits
    admissions = [wait.admissions for wait in waits]
    worst = max(wait.admissions / wait.bound for wait in waits)
    return [
        f"Level 5 behind urgent work without end, of which {result.fewest} requests or more always waited: "
        f"{result.finished} of {result.asked} finished. They waited for {median(admissions):.0f} admissions in the "
        f"median and {max(admissions)} at most, or {median(wait.seconds for wait in waits):.1f} s and "
        f"{max(wait.seconds for wait in waits):.1f} s; bounds were from {min(wait.bound for wait in waits)} to "
        f"{max(wait.bound for wait in waits)} admissions, of which at most {100 * worst:.0f} % were needed: "
        f"{_verdict(kept=result.kept)}.",
        "",
        *_first_token_lines({"idle": result.idle, f"{BACKLOG} of level 5 waiting, for an hour": result.behind}),
        "",
        f"With the backlog {result.ratio:.2f}× at the 99th percentile.",
        "",
    ]


def tenant_lines(result: Shares) -> list[str]:
    """Return the table of what each tenant got."""
    return [
        "| tenant | service (prompt tokens + 2 × output tokens) | a second |",
        "| --- | --- | --- |",
        *(
            f"| {name} | {result.service[tenant]} | {result.service[tenant] / max(1e-9, result.seconds):.1f} |"
            for name, tenant in ((f"asks {TIMES} times as much", MANY), ("asks little", FEW))
        ),
        "",
        f"In {result.seconds:.0f} s in which both had requests waiting Jain's index was {result.index:.4f} (at least "
        f"{FAIR}: {_verdict(kept=result.index >= FAIR)}), and they never differed by more than {result.largest}, where "
        f"{result.bound:.0f} are allowed.",
        "",
    ]


def _first_token_lines(times: dict[str, list[float]]) -> list[str]:
    return [
        "| urgent request of 12 words | tries | median, ms | p99, ms |",
        "| --- | --- | --- | --- |",
        *(
            f"| {name} | {len(times)} | {1e3 * median(times):.0f} | {1e3 * percentile(times, 0.99):.0f} |"
            for name, times in times.items()
        ),
    ]


def _verdict(*, kept: bool) -> str:
    return "kept" if kept else "**not kept**"

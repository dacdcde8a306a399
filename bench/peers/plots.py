"""A comparison as pictures: PNG files, made with matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from llamalane.bench.document import Picture
from llamalane.bench.latencies import Distribution
from llamalane.bench.peers.kinds import Arrivals
from llamalane.bench.peers.plan import Comparison, Load, Measurement, median_of

Draw = Callable[[Any, Comparison], None]


def draw(comparison: Comparison, folder: Path, pyplot: Any) -> list[Picture]:
    """Draw all pictures into `folder`."""
    pictures: dict[str, tuple[str, Draw]] = {
        "throughput": ("Output tokens per second; points are rounds, bars their medians.", _draw_throughput),
        "first-token": ("Time to first token (TTFT), requests of all rounds together.", _draw_first_tokens),
        "end-to-end": ("Time to the last byte (E2E): median, and p99 as a dashed line.", _draw_end_to_end),
    }
    if len(comparison.names) > 1:
        caption = f"Output tokens/s of {comparison.names[0]} as a multiple of the others', round by round."
        pictures["ratios"] = (caption, _draw_ratios)
    if comparison.plan.objective is not None:
        pictures["goodput"] = ("Goodput: answers per second that met the objective.", _draw_goodput)
    drawn = []
    for name, (caption, picture) in pictures.items():
        picture(pyplot, comparison)
        file = folder / f"{name}.png"
        pyplot.savefig(file, dpi=120, bbox_inches="tight")
        pyplot.close("all")
        drawn.append(Picture(file, caption))
    return drawn


def _draw_throughput(pyplot: Any, comparison: Comparison) -> None:
    _, panel = pyplot.subplots(figsize=(8, 4))
    loads, names = comparison.loads, comparison.names
    width = 0.8 / len(names)
    for index, name in enumerate(names):
        rates = [[one.tokens_per_second for one in comparison.of(name, load)] for load in loads]
        places = [number + (index - (len(names) - 1) / 2) * width for number in range(len(loads))]
        panel.bar(places, [median_of(each) or 0.0 for each in rates], width * 0.95, label=name, alpha=0.7)
        for place, each in zip(places, rates, strict=True):
            panel.plot([place] * len(each), each, ".", color="black", markersize=4)
    panel.set_xticks(range(len(loads)), [str(load) for load in loads])
    panel.set_ylabel("output tokens/s")
    panel.legend()


def _draw_first_tokens(pyplot: Any, comparison: Comparison) -> None:
    loads = comparison.loads
    _, panels = pyplot.subplots(1, len(loads), figsize=(4.5 * len(loads), 4), squeeze=False, sharey=True)
    for panel, load in zip(panels[0], loads, strict=True):
        for name in comparison.names:
            times = np.sort(comparison.latencies(name, load).time_to_first_token)
            panel.plot(times, np.arange(1, len(times) + 1) / max(1, len(times)), label=name)
        panel.set_title(str(load))
        panel.set_xlabel("TTFT, s")
        panel.set_xscale("symlog", linthresh=0.1)
        panel.grid(alpha=0.3)
    panels[0][0].set_ylabel("share of requests")
    panels[0][-1].legend()


def _draw_end_to_end(pyplot: Any, comparison: Comparison) -> None:
    _, panel = pyplot.subplots(figsize=(6, 4))
    for name in comparison.names:
        found = [(load.amount, _end_to_end(comparison, name, load)) for load in comparison.loads]
        known = [(amount, spread) for amount, spread in found if spread is not None]
        amounts = [amount for amount, _ in known]
        (line,) = panel.plot(amounts, [spread.median for _, spread in known], marker="o", label=name)
        panel.plot(amounts, [spread.p99 for _, spread in known], marker=".", linestyle="--", color=line.get_color())
    _label_loads(panel, comparison.loads)
    panel.set_ylabel("E2E, s")
    panel.grid(alpha=0.3)
    panel.legend()


def _end_to_end(comparison: Comparison, name: str, load: Load) -> Distribution | None:
    return Distribution.of(comparison.latencies(name, load).end_to_end)


def _draw_ratios(pyplot: Any, comparison: Comparison) -> None:
    _, panel = pyplot.subplots(figsize=(8, 4))
    loads, others = comparison.loads, comparison.names[1:]
    for index, other in enumerate(others):
        ratios = [comparison.ratios(other, load, _tokens_per_second) for load in loads]
        points = [
            (number + (index - (len(others) - 1) / 2) * 0.15, ratio)
            for number, each in enumerate(ratios)
            for ratio in each
        ]
        panel.plot([place for place, _ in points], [ratio for _, ratio in points], "o", alpha=0.7, label=other)
    panel.axhline(1.0, color="grey", linestyle=":")
    panel.set_xticks(range(len(loads)), [str(load) for load in loads])
    panel.set_ylabel(f"{comparison.names[0]}, multiple")
    panel.legend()


def _tokens_per_second(measurement: Measurement) -> float:
    return measurement.tokens_per_second


def _draw_goodput(pyplot: Any, comparison: Comparison) -> None:
    _, panel = pyplot.subplots(figsize=(6, 4))
    for name in comparison.names:
        rates = [median_of(one.summary.goodput for one in comparison.of(name, load)) for load in comparison.loads]
        panel.plot([load.amount for load in comparison.loads], rates, marker="o", label=name)
    _label_loads(panel, comparison.loads)
    panel.set_ylabel("requests/s that met the objective")
    panel.grid(alpha=0.3)
    panel.legend()


def _label_loads(panel: Any, loads: Sequence[Load]) -> None:
    arriving = any(load.arrivals is Arrivals.POISSON for load in loads)
    panel.set_xlabel("requests/s that arrive" if arriving else "clients")

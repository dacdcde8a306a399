"""A study's results as pictures: PNG files, made with matplotlib."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from llamalane.bench.simulator.measures import jain_index, service_shares
from llamalane.bench.simulator.outcomes import Floats, Outcomes
from llamalane.bench.simulator.study import Run, Study
from llamalane.bench.simulator.timeline import Stay, Timeline
from llamalane.errors import LlamalaneError

_MOMENTS = 200
"""Points of a curve over time."""
_LEVEL_COLOURS = {1: "#c0392b", 2: "#e67e22", 3: "#2980b9", 4: "#7f8c8d", 5: "#2c3e50"}


def load_pyplot() -> Any:
    """Return matplotlib's pyplot, set up to draw into files; raises `LlamalaneError` when it is not installed."""
    try:
        importlib.import_module("matplotlib").use("Agg")
        return importlib.import_module("matplotlib.pyplot")
    except ModuleNotFoundError as error:
        raise LlamalaneError(f"pictures need {error.name}: pip install matplotlib") from error


def draw(study: Study, runs: Sequence[Run], folder: Path, pyplot: Any) -> list[Path]:
    """Draw all pictures into `folder`, and return their files. Those of a single load show the highest one."""
    highest = [run for run in runs if run.rate == max(study.rates)]
    pictures: dict[str, Callable[[Any], None]] = {
        "first-token.png": lambda plt: _draw_by_level(plt, highest, "Time to first token", _first_token),
        "wait.png": lambda plt: _draw_by_level(plt, highest, "Wait for a place", _wait),
        "fairness.png": lambda plt: _draw_fairness(plt, highest),
        "lane.png": lambda plt: _draw_lane(plt, highest[0].policy, highest[0].timeline),
    }
    if len(study.rates) > 1:
        pictures["goodput.png"] = lambda plt: _draw_goodput(plt, study, runs)
    files = []
    for name, picture in pictures.items():
        picture(pyplot)
        pyplot.savefig(folder / name, dpi=120, bbox_inches="tight")
        pyplot.close("all")
        files.append(folder / name)
    return files


def _draw_by_level(pyplot: Any, runs: Sequence[Run], title: str, values: Callable[[Outcomes], Floats]) -> None:
    """Draw how a time is distributed, one panel for each level, one curve for each policy."""
    levels = sorted({level.level for run in runs for level in run.measures.levels})
    _, panels = pyplot.subplots(1, len(levels), figsize=(5 * len(levels), 4), squeeze=False, sharey=True)
    for panel, level in zip(panels[0], levels, strict=True):
        for run in runs:
            times = np.sort(values(run.outcomes)[run.outcomes.level == level])
            if len(times):
                panel.plot(times, np.arange(1, len(times) + 1) / len(times), label=run.policy)
        panel.set_title(f"level {level}")
        panel.set_xlabel(f"{title}, s")
        panel.set_xscale("symlog", linthresh=0.1)
        panel.grid(alpha=0.3)
    panels[0][0].set_ylabel("share of requests")
    panels[0][-1].legend()


def _first_token(outcomes: Outcomes) -> Floats:
    return outcomes.time_to_first_token


def _wait(outcomes: Outcomes) -> Floats:
    return outcomes.wait


def _draw_goodput(pyplot: Any, study: Study, runs: Sequence[Run]) -> None:
    _, panel = pyplot.subplots(figsize=(6, 4))
    for name in study.policies:
        own = [run for run in runs if run.policy == name]
        panel.plot([run.rate for run in own], [run.measures.goodput for run in own], marker="o", label=name)
    panel.plot(study.rates, study.rates, color="grey", linestyle=":", label="all")
    panel.set_xlabel("requests/s that arrive")
    panel.set_ylabel("requests/s that meet the SLO")
    panel.grid(alpha=0.3)
    panel.legend()


def _draw_fairness(pyplot: Any, runs: Sequence[Run]) -> None:
    _, panel = pyplot.subplots(figsize=(6, 4))
    for run in runs:
        times = np.linspace(float(run.outcomes.arrival.min()), float(run.outcomes.ended.max()), _MOMENTS + 1)[1:]
        panel.plot(times, [jain_index(service_shares(run.outcomes, time)) for time in times], label=run.policy)
    panel.set_xlabel("time, s")
    panel.set_ylabel("Jain index of the tenants' shares")
    panel.grid(alpha=0.3)
    panel.legend()


def _draw_lane(pyplot: Any, policy: str, timeline: Timeline) -> None:
    """Draw who had the places of a lane: a bar for each stay, pale until its first token."""
    _, panel = pyplot.subplots(figsize=(12, 4))
    for line, stays in enumerate(_lines(timeline.stays)):
        for stay in stays:
            colour = _LEVEL_COLOURS[stay.level]
            begin = stay.begin
            if stay.first_token is not None:
                panel.barh(line, stay.first_token - begin, left=begin, color=colour, alpha=0.35)
                begin = stay.first_token
            panel.barh(line, stay.end - begin, left=begin, color=colour)
    for level in sorted({stay.level for stay in timeline.stays}):
        panel.barh(0, 0, color=_LEVEL_COLOURS[level], label=f"level {level}")
    panel.set_title(f"The places of the first lane under {policy}; pale: before the first token")
    panel.set_xlabel("time, s")
    panel.set_ylabel("place")
    panel.legend(loc="upper right")


def _lines(stays: Sequence[Stay]) -> list[list[Stay]]:
    """Lay stays out on as few lines as possible, so that none overlap."""
    lines: list[list[Stay]] = []
    for stay in sorted(stays, key=lambda stay: stay.begin):
        free = next((line for line in lines if line[-1].end <= stay.begin), None)
        if free is None:
            lines.append([stay])
        else:
            free.append(stay)
    return lines

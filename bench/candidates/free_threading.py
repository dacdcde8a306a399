"""Whether an interpreter without a GIL lets a lane go on sooner beside a thread that runs Python."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from llamalane.bench.candidates.comparison import CandidatesPlan, Comparison, Experiment, take_turns
from llamalane.errors import ConfigError, LlamalaneError

SECONDS = 1.0
"""Each is measured for so long, alone and beside the thread."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Median seconds of a step, alone and beside a thread that runs Python; that thread's turns a second, and alone."""

    alone: float
    beside: float
    turns: float
    most_turns: float
    gil: bool


def compare_interpreters(plan: CandidatesPlan, seconds: float = SECONDS) -> Iterator[Comparison]:
    """Measure this interpreter and the other one with one thread of llama.cpp's and with all, in new processes."""
    if plan.python is None:
        raise ConfigError("free-threading compares interpreters: name another one with --python")
    for threads in sorted({1, plan.threads}):
        yield from _compare(plan, plan.python, threads, seconds)


def _compare(plan: CandidatesPlan, python: Path, threads: int, seconds: float) -> Iterator[Comparison]:
    ours: list[Steps] = []
    theirs: list[Steps] = []

    def run(python: Path, found: list[Steps]) -> float:
        found.append(run_steps(python, plan.model, threads, seconds))
        return found[-1].alone

    take_turns(lambda: run(Path(sys.executable), ours), lambda: run(python, theirs), plan.rounds)
    ours, theirs = ours[1:], theirs[1:]
    count = "1 thread" if threads == 1 else f"{threads} threads"
    gil = {"GIL of the other": "on" if theirs[0].gil else "off"}
    yield Comparison(
        situation=f"{count}, alone",
        now=tuple(1e3 * one.alone for one in ours),
        other=tuple(1e3 * one.alone for one in theirs),
        remarks=gil,
    )
    yield Comparison(
        situation=f"{count}, beside a thread that runs Python",
        now=tuple(1e3 * one.beside for one in ours),
        other=tuple(1e3 * one.beside for one in theirs),
        remarks={**gil, "that thread got, of what it does alone": f"{_share(ours)} and {_share(theirs)}"},
    )


def run_steps(python: Path, model: Path, threads: int, seconds: float) -> Steps:
    """Let an interpreter compute steps in a new process; raises `LlamalaneError` with what it said when it fails."""
    arguments = [str(python), "-m", "llamalane.bench.candidates.bare_steps", str(model), str(threads), str(seconds)]
    try:
        done = subprocess.run(arguments, capture_output=True, check=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        said = error.stderr[-1000:] if isinstance(error, subprocess.CalledProcessError) else error
        raise LlamalaneError(f"{python} could not compute steps: {said}") from error
    return Steps(**json.loads(done.stdout))


def _share(steps: list[Steps]) -> str:
    return f"{100 * statistics.median(one.turns / one.most_turns for one in steps):.0f} %"


FREE_THREADING = Experiment(
    title="another interpreter, such as one without a GIL",
    unit="ms a step",
    now="this one",
    other="the other one",
    method=(
        f"8 decoding rows in a bare loop, for {SECONDS:g} s alone and for as long beside a thread that runs Python all "
        "the time, each time in a process of its own. A step ends when Python goes on."
    ),
    compare=compare_interpreters,
)

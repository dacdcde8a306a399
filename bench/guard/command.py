"""The command `llamalane bench guard`: measures, compares with what was saved last, and tells what moved."""

from __future__ import annotations

import sys
from pathlib import Path

from llamalane.bench.guard.measures import measure_all
from llamalane.bench.guard.result import GuardResult, last, now, save
from llamalane.bench.guard.verdict import Verdict, changes_markdown, compare
from llamalane.bench.machine import BUSY_CORES, Machine, describe_machine
from llamalane.bench.model import find_model
from llamalane.errors import LlamalaneError


def guard(model: Path | None, *, repeats: int, folder: Path, keep: bool, busy_ok: bool) -> int:
    """Measure, print what moved since the last result in `folder`, and return how many numbers became worse.

    With `keep` the result is saved there. Raises `LlamalaneError` when others use the machine, unless `busy_ok`.
    """
    path, machine = find_model(model), describe_machine()
    if machine.busy > BUSY_CORES and not busy_ok:
        raise LlamalaneError(
            f"other processes use {machine.busy:.2f} of {machine.cores} cores: end them, or measure all the same with "
            "--busy-ok"
        )
    series = measure_all(path, repeats, _tell)
    result = GuardResult(taken=now(), machine=machine, model=path.name, series=series)
    worse = tell_changes(last(folder, result), result)
    if keep:
        _tell(f"saved as {save(result, folder)}")
    return worse


def tell_changes(before: GuardResult | None, result: GuardResult) -> int:
    """Print what moved, and return how many numbers became worse; without an earlier result, print all numbers."""
    print(_machine_line(result.machine))
    if before is None:
        print("\nThere is no earlier result; --save makes one.\n")
        changes = compare(GuardResult(taken="", machine=result.machine, model=result.model, series={}), result)
    else:
        print("\n".join(_before_lines(before, result)))
        changes = compare(before, result)
    print(changes_markdown(changes))
    worse = sum(change.verdict is Verdict.WORSE for change in changes)
    if before is not None:
        better = sum(change.verdict is Verdict.BETTER for change in changes)
        print(f"\n{worse} worse, {better} better beyond the noise.")
    return worse


def _before_lines(before: GuardResult, result: GuardResult) -> list[str]:
    pace = result.yardstick / before.yardstick
    lines = [f"Compared with the result of {before.taken}; Python takes {pace:.2f} times as long as it did then."]
    if not result.of_same_machine(before):
        lines.append(f"That was another machine, so only large changes count: {_machine_line(before.machine)}")
    lines += [
        f"{name} was {version} then, and is {result.machine.versions.get(name, 'not there')} now."
        for name, version in before.machine.versions.items()
        if result.machine.versions.get(name) != version
    ]
    if before.model != result.model:
        lines.append(f"The model was {before.model} then, and is {result.model} now.")
    return [*lines, ""]


def _machine_line(machine: Machine) -> str:
    return f"{machine.processor}, {machine.cores} cores; {machine.python}; {machine.busy:.2f} cores busy at the start."


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)

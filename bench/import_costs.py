"""What an import costs, each time in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llamalane.bench.summary import Distribution

NOTHING = "pass"
"""An interpreter that imports nothing, which all others have to be compared with."""
STATEMENTS = (
    NOTHING,
    "import llamalane",
    "from llamalane import SamplingParameters",
    "from llamalane import Engine",
    "from llamalane.api import create_app",
)
_COUNT = "import sys; print(len(sys.modules))"


@dataclass(frozen=True, slots=True)
class ImportCosts:
    """Seconds from the start of an interpreter that runs `statement` to its end, and the modules that it then has."""

    statement: str
    seconds: Distribution
    modules: int


def measure_imports(
    statements: Sequence[str] = STATEMENTS, *, rounds: int = 10, tell: Callable[[str], None] = lambda line: None
) -> list[ImportCosts]:
    """Run each of `statements`, in turn, `rounds` times.

    Before that once, so that all bytecode is there, as it is of what was installed: in a folder for the measurement,
    whether or not the environment lets Python write any.
    """
    seconds: dict[str, list[float]] = {statement: [] for statement in statements}
    with tempfile.TemporaryDirectory() as bytecode:
        modules = {statement: int(_run(f"{statement}\n{_COUNT}", bytecode)) for statement in statements}
        for number in range(rounds):
            tell(f"round {number + 1} of {rounds}")
            for statement in statements:
                start = time.perf_counter()
                _run(statement, bytecode)
                seconds[statement].append(time.perf_counter() - start)
    return [ImportCosts(each, _distribution(seconds[each]), modules[each]) for each in statements]


def imports_markdown(costs: Sequence[ImportCosts]) -> str:
    """Return the costs as a table, in milliseconds."""
    lines = ["| import | median, ms | worst, ms | modules |", "| --- | --- | --- | --- |"]
    for cost in costs:
        name = "nothing" if cost.statement == NOTHING else f"`{cost.statement}`"
        median, worst = cost.seconds.median * 1000, cost.seconds.worst * 1000
        lines.append(f"| {name} | {median:.0f} | {worst:.0f} | {cost.modules} |")
    return "\n".join(lines)


def _run(code: str, bytecode: str) -> str:
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": bytecode, "PYTHONDONTWRITEBYTECODE": ""}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout


def _distribution(seconds: list[float]) -> Distribution:
    distribution = Distribution.of(seconds)
    assert distribution is not None, "there is at least one round"
    return distribution

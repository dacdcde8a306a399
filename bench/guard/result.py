"""What was measured, as it is saved and found again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from pydantic import TypeAdapter, ValidationError

from llamalane.bench.machine import Machine
from llamalane.bench.report import to_json
from llamalane.errors import ConfigError

RESULTS = Path(__file__).parent.parent / "results"
"""Where results are, in a checkout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One number, measured several times.

    Attributes:
        unit: of the values; empty for a ratio, which does not depend on the machine.
        more_is_better: whether it should be large.
        values: as they were measured, one after the other.
        yardstick: seconds that a fixed piece of Python took before each of them.
    """

    unit: str
    more_is_better: bool
    values: tuple[float, ...]
    yardstick: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.values or len(self.values) != len(self.yardstick):
            raise ValueError("a series has values, and as many times of the yardstick")


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardResult:
    """All series by their names, and what they are of; `taken` is when, in UTC."""

    taken: str
    machine: Machine
    model: str
    series: Mapping[str, Series]

    @property
    def yardstick(self) -> float:
        """Seconds that the yardstick took in the median; a single one may have been disturbed."""
        return median(stick for series in self.series.values() for stick in series.yardstick)

    def comparable(self, name: str) -> list[float]:
        """Return a series as a quicker or slower machine would have it too: times in yardsticks, ratios as they are."""
        series = self.series[name]
        return [value / self.yardstick if series.unit else value for value in series.values]

    def of_same_machine(self, other: GuardResult) -> bool:
        """Return whether another result is of the same kind of machine and Python."""
        own, its = self.machine, other.machine
        return (own.processor, own.cores, own.python) == (its.processor, its.cores, its.python)


_READER = TypeAdapter(GuardResult)


def now() -> str:
    """Return the time, as results have it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%SZ")


def save(result: GuardResult, folder: Path) -> Path:
    """Write `result` to a file of its own, and return where."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result.taken}.json"
    path.write_text(to_json(result) + "\n")
    return path


def load(path: Path) -> GuardResult:
    """Read a result; raises `ConfigError` when the file holds none."""
    try:
        return _READER.validate_python(json.loads(path.read_text()))
    except (OSError, ValueError, ValidationError) as error:
        raise ConfigError(f"{path} holds no result of llamalane bench guard: {error}") from error


def last(folder: Path, like: GuardResult) -> GuardResult | None:
    """Return the newest result in `folder`, of the same machine if there is one; None if there is none at all."""
    results = [load(path) for path in sorted(folder.glob("*.json"))]
    same = [result for result in results if result.of_same_machine(like)]
    return max(same or results, key=lambda result: result.taken, default=None)

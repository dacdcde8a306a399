"""How long a step takes, from measured passes."""

from __future__ import annotations

import bisect
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from llamalane.bench.simulator.passes import Pass
from llamalane.bench.simulator.request import Picoseconds, picoseconds, seconds
from llamalane.errors import ConfigError


@dataclass(frozen=True, slots=True)
class SpeedPoint:
    """A pass over the weights that was measured.

    Attributes:
        sequences: how many sequences had tokens in it.
        tokens: tokens of all of them.
        cells: KV cells that these attend to, each to those of its own sequence, summed over the tokens.
        seconds: how long it took.
    """

    sequences: int
    tokens: int
    cells: int
    seconds: float

    @property
    def decodes(self) -> bool:
        """Whether it had one token of each sequence."""
        return self.tokens == self.sequences


class Speed:
    """The time of every step: that of its passes, and what lies between two steps.

    A pass takes a time that depends on how many tokens it has, and on top an equal time for each cell that a token
    attends to. There are two such laws: for decoding rows, and for passes with a prompt's chunk, of which a single
    decoding row is the smallest. Between measured numbers of tokens, and beyond the last, the time goes on straight.

    `between` is what passes between two steps and `output` what choosing one token takes, in seconds. Raises
    `ConfigError` when no pass of decoding rows was measured.
    """

    def __init__(self, points: Iterable[SpeedPoint], *, between: float = 0.0, output: float = 0.0) -> None:
        self.points = sorted(points, key=lambda point: (not point.decodes, point.tokens, point.cells))
        self.between = between
        self.output = output
        decoding = [point for point in self.points if point.decodes]
        if not decoding:
            raise ConfigError("no decoding row was measured: the time of a step cannot be told")
        chunks = [point for point in self.points if not point.decodes]
        self._decoding = _Law(decoding)
        self._chunks = _Law(chunks, smallest=self._decoding.bare(1)) if chunks else self._decoding
        self._between = picoseconds(between)
        self._output = picoseconds(output)

    @property
    def growth(self) -> Picoseconds:
        """How much longer a step takes for each cell more that its decoding rows attend to."""
        return self._decoding.cell

    def step(self, passes: Iterable[Pass], outputs: int) -> Picoseconds:
        """Return how long a step of these passes takes in which so many rows get a token; at least 1 ps."""
        return max(1, self._between + outputs * self._output + self.time(passes))

    def scaled(self, factor: float) -> Speed:
        """Return the speed of a machine that takes so many times as long for everything."""
        points = [replace(point, seconds=point.seconds * factor) for point in self.points]
        return Speed(points, between=self.between * factor, output=self.output * factor)

    def time(self, passes: Iterable[Pass]) -> Picoseconds:
        """Return how long these passes take, without what lies between two steps."""
        decoding, chunks = self._decoding, self._chunks
        return sum(
            [(decoding if tokens == sequences else chunks).time(tokens, cells) for sequences, tokens, cells in passes]
        )

    def seconds(self, sequences: int, tokens: int, cells: int) -> float:
        """Return how long one pass takes, in seconds."""
        return seconds(self.time([Pass(sequences, tokens, cells)]))


class _Law:
    """The time of passes of one kind. `cell` is what each cell adds that a token attends to.

    `smallest` is the time of a single token without cells, where none was measured.
    """

    def __init__(self, points: Sequence[SpeedPoint], *, smallest: float | None = None) -> None:
        by_tokens: dict[int, list[SpeedPoint]] = defaultdict(list)
        for point in points:
            by_tokens[point.tokens].append(point)
        self.cell: Picoseconds = picoseconds(_slope(by_tokens))
        cell = seconds(self.cell)
        bare = {
            tokens: median([point.seconds - cell * point.cells for point in same]) for tokens, same in by_tokens.items()
        }
        if smallest is not None:
            bare[1] = smallest
        self._tokens = sorted(bare)
        self._bare = [bare[tokens] for tokens in self._tokens]
        self._known: dict[int, Picoseconds] = {}

    def bare(self, tokens: int) -> float:
        """Return how long a pass of so many tokens would take without cells, in seconds."""
        return _line(self._tokens, self._bare, tokens)

    def time(self, tokens: int, cells: int) -> Picoseconds:
        """Return how long a pass takes of so many tokens that attend to so many cells; never less than nothing."""
        bare = self._known.get(tokens)
        if bare is None:
            bare = self._known[tokens] = max(0, picoseconds(self.bare(tokens)))
        return bare + self.cell * cells


def _slope(by_tokens: Mapping[int, Sequence[SpeedPoint]]) -> float:
    """Return the seconds that each cell adds: the mean over passes equal but for their cells, by how far these differ.

    Never less than 0; 0 where all passes of a kind had equally many cells.
    """
    above = below = 0.0
    for points in by_tokens.values():
        cells = sum(point.cells for point in points) / len(points)
        mean = sum(point.seconds for point in points) / len(points)
        # What a pass is off by grows with the time that it takes.
        above += sum((point.cells - cells) * (point.seconds - mean) for point in points) / mean**2
        below += sum((point.cells - cells) ** 2 for point in points) / mean**2
    return max(0.0, above / below) if below else 0.0


def _line(places: Sequence[int], values: Sequence[float], at: int) -> float:
    """Return the value at a place, on the straight line through the two nearest ones that are known.

    Where only one is known, all have its value.
    """
    if len(places) == 1:
        return values[0]
    right = min(max(bisect.bisect_left(places, at), 1), len(places) - 1)
    left = right - 1
    share = (at - places[left]) / (places[right] - places[left])
    return values[left] + share * (values[right] - values[left])


def load_speed(path: Path) -> Speed:
    """Read a JSON or YAML file as `save_speed` writes it; raises `ConfigError` for anything else."""
    try:
        document = yaml.safe_load(path.read_text())  # JSON is YAML, too
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"the measured passes cannot be read: {error}", source=str(path)) from error
    points = document.get("points") if isinstance(document, dict) else None
    if not isinstance(points, list):
        raise ConfigError("a list `points` is missing", source=str(path))
    if any(isinstance(entry, dict) and "decode_rows" in entry for entry in points):
        message = "the file is of an earlier version, which measured whole steps; measure anew with --calibrate"
        raise ConfigError(message, source=str(path))
    try:
        between, output = (_duration(document.get(name, 0.0)) for name in ("between", "output"))
        return Speed([_point(entry) for entry in points], between=between, output=output)
    except (KeyError, TypeError, ValueError) as error:
        message = f"each of `points` needs sequences, tokens, cells and seconds, none negative: {error}"
        raise ConfigError(message, source=str(path)) from error


def save_speed(speed: Speed, path: Path, about: str) -> None:
    """Write what was measured to a JSON file; `about` says what that was, for people."""
    document = {
        "about": about,
        "between": speed.between,
        "output": speed.output,
        "points": [asdict(point) for point in speed.points],
    }
    path.write_text(json.dumps(document, indent=2) + "\n")


def _point(entry: Any) -> SpeedPoint:
    point = SpeedPoint(int(entry["sequences"]), int(entry["tokens"]), int(entry["cells"]), _duration(entry["seconds"]))
    if not 1 <= point.sequences <= point.tokens or point.cells < 0 or not point.seconds:
        raise ValueError(f"{point} is no pass")
    return point


def _duration(value: Any) -> float:
    duration = float(value)
    if not 0 <= duration < float("inf"):
        raise ValueError(f"{value!r} is no time in seconds")
    return duration

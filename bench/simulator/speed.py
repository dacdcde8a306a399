"""How long a step takes, from measured points."""

from __future__ import annotations

import bisect
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from llamalane.bench.simulator.request import Nanoseconds, nanoseconds
from llamalane.errors import ConfigError


@dataclass(frozen=True, slots=True)
class SpeedPoint:
    """A step that was measured.

    Attributes:
        decode_rows: rows that computed one generated token.
        prompt_tokens: prompt tokens computed beside them.
        seconds: how long it took, from the end of the step before: decoding, sampling, and what lay between.
    """

    decode_rows: int
    prompt_tokens: int
    seconds: float


class Speed:
    """The time of every step, interpolated between measured points.

    Points with the same number of decode rows make a curve over the prompt tokens, which is linear between them and
    goes on straight beyond the last. Between two curves it is linear in the rows, and beyond the last curve as well.
    A curve of a single point is as steep as the nearest one that has more.
    """

    def __init__(self, points: Iterable[SpeedPoint]) -> None:
        self.points = sorted(points, key=lambda point: (point.decode_rows, point.prompt_tokens))
        if not self.points:
            raise ConfigError("no step was measured: the time of a step cannot be told")
        curves: dict[int, list[SpeedPoint]] = defaultdict(list)
        for point in self.points:
            curves[point.decode_rows].append(point)
        self._rows = list(curves)
        self._curves = [_Curve(curve) for curve in curves.values()]
        self._straighten_single_points()
        self._known: dict[tuple[int, int], Nanoseconds] = {}

    def step(self, decode_rows: int, prompt_tokens: int) -> Nanoseconds:
        """Return how long a step takes; never less than 1 ns."""
        shape = (decode_rows, prompt_tokens)
        known = self._known.get(shape)
        if known is None:
            known = self._known[shape] = max(1, nanoseconds(self.seconds(decode_rows, prompt_tokens)))
        return known

    def seconds(self, decode_rows: int, prompt_tokens: int) -> float:
        """Return how long a step takes, in seconds."""
        times = [curve.at(prompt_tokens) for curve in self._curves]
        return _line(self._rows, times, decode_rows)

    def token_seconds(self, decode_rows: int, prompt_tokens: int) -> float:
        """Return what each of `prompt_tokens` adds to a step with so many decode rows."""
        return (self.seconds(decode_rows, prompt_tokens) - self.seconds(decode_rows, 0)) / prompt_tokens

    def _straighten_single_points(self) -> None:
        steep = [(rows, curve) for rows, curve in zip(self._rows, self._curves, strict=True) if curve.slope is not None]
        for rows, curve in zip(self._rows, self._curves, strict=True):
            if curve.slope is None:
                nearest = min(steep, key=lambda entry: abs(entry[0] - rows), default=None)
                curve.slope = nearest[1].slope if nearest else 0.0


class _Curve:
    """The time of a step over its prompt tokens. `slope` is that of a single point; None while nobody has told it."""

    def __init__(self, points: Sequence[SpeedPoint]) -> None:
        self._tokens = [point.prompt_tokens for point in points]
        self._seconds = [point.seconds for point in points]
        if len(set(self._tokens)) < len(points):
            raise ConfigError(f"a step with {points[0].decode_rows} decode rows is given twice")
        several = len(points) > 1
        # Prompt tokens beside no decode row start at more than 0, where the first ones cost most.
        self.slope = (self._seconds[-1] - self._seconds[0]) / (self._tokens[-1] - self._tokens[0]) if several else None

    def at(self, tokens: int) -> float:
        if len(self._tokens) == 1:
            return self._seconds[0] + (self.slope or 0.0) * (tokens - self._tokens[0])
        return _line(self._tokens, self._seconds, tokens)


def _line(places: Sequence[int], values: Sequence[float], at: int) -> float:
    """Return the value at a place, on the straight line through the two nearest ones that are known."""
    if len(places) == 1:
        return values[0]
    right = min(max(bisect.bisect_left(places, at), 1), len(places) - 1)
    left = right - 1
    share = (at - places[left]) / (places[right] - places[left])
    return values[left] + share * (values[right] - values[left])


def load_speed(path: Path) -> Speed:
    """Read points from a JSON or YAML file as `save_speed` writes it; raises `ConfigError` for anything else."""
    try:
        document = yaml.safe_load(path.read_text())  # JSON is YAML, too
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"the measured steps cannot be read: {error}", source=str(path)) from error
    points = document.get("points") if isinstance(document, dict) else None
    if not isinstance(points, list):
        raise ConfigError("a list `points` is missing", source=str(path))
    try:
        return Speed([_point(entry) for entry in points])
    except (KeyError, TypeError, ValueError) as error:
        message = f"each of `points` needs decode_rows, prompt_tokens and seconds, none negative: {error}"
        raise ConfigError(message, source=str(path)) from error


def save_speed(speed: Speed, path: Path, about: str) -> None:
    """Write the points to a JSON file; `about` says what was measured, for people."""
    document = {"about": about, "points": [asdict(point) for point in speed.points]}
    path.write_text(json.dumps(document, indent=2) + "\n")


def _point(entry: Any) -> SpeedPoint:
    point = SpeedPoint(int(entry["decode_rows"]), int(entry["prompt_tokens"]), float(entry["seconds"]))
    if point.decode_rows < 0 or point.prompt_tokens < 0 or not 0 < point.seconds < float("inf"):
        raise ValueError(f"{point} is no step")
    return point

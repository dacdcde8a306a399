"""A recorded log, replayed: JSON Lines with arrival, level, tenant, prompt_tokens and output_tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from llamalane.bench.simulator.request import SECOND, SimulatedRequest, picoseconds
from llamalane.errors import ConfigError
from llamalane.ids import LEAST_URGENT, MOST_URGENT, Level, RequestId


class Replay:
    """The requests of a log, with the gaps between them stretched or shrunk to a wanted rate.

    Each line holds `arrival` (seconds from any start), `prompt_tokens` and `output_tokens`, and may hold `level`
    (default 3), `tenant` and `session`. Lines may be in any order. Raises `ConfigError`, with the line, for others.
    """

    def __init__(self, path: Path, *, limit: int) -> None:
        self._entries = sorted(_read(path, limit), key=lambda entry: entry.arrival)
        if not self._entries:
            raise ConfigError("there is no request in the log", source=str(path))
        first = self._entries[0].arrival
        for entry in self._entries:
            entry.arrival -= first

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def rate(self) -> float | None:
        """Requests in each second as they were recorded; None when all came at once."""
        span = self._entries[-1].arrival
        return (len(self._entries) - 1) * SECOND / span if span else None

    def requests(self, rate: float, seed: int, count: int) -> Iterator[SimulatedRequest]:
        """Return the first `count` of the recorded requests; the seed makes no difference."""
        stretch = self.rate / rate if self.rate is not None else 1.0
        for entry in self._entries[:count]:
            yield SimulatedRequest(
                id=entry.id,
                arrival=round(entry.arrival * stretch),
                level=entry.level,
                prompt_tokens=entry.prompt_tokens,
                output_tokens=entry.output_tokens,
                tenant=entry.tenant,
                session=entry.session,
            )

    def mean_lengths(self) -> tuple[float, float]:
        """Return the recorded means."""
        count = len(self._entries)
        return (
            sum(entry.prompt_tokens for entry in self._entries) / count,
            sum(entry.output_tokens for entry in self._entries) / count,
        )


LATEST = 1e11
"""No arrival is later, in seconds: enough for seconds since 1970."""


def _read(path: Path, limit: int) -> Iterator[SimulatedRequest]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the log cannot be read: {error}", source=str(path)) from error
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield _request(number, json.loads(line), limit)
            except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
                detail = f"{error} is missing" if isinstance(error, KeyError) else str(error)
                raise ConfigError(f"this is no request: {detail}", source=str(path), line=number) from error


def _request(number: int, entry: Any, limit: int) -> SimulatedRequest:
    if not isinstance(entry, dict):
        raise TypeError("a line must hold a JSON object")
    arrival = float(entry["arrival"])
    if not 0 <= arrival <= LATEST:
        raise ValueError(f"arrival must be from 0 to {LATEST:g} seconds; got {arrival:g}")
    request = SimulatedRequest(
        id=RequestId(f"line-{number}"),
        arrival=picoseconds(arrival),
        level=Level(int(entry.get("level", 3))),
        prompt_tokens=int(entry["prompt_tokens"]),
        output_tokens=int(entry["output_tokens"]),
        tenant=str(entry.get("tenant", "")),
        session=str(entry.get("session", "")),
    )
    if not MOST_URGENT <= request.level <= LEAST_URGENT:
        raise ValueError(f"level must be from {MOST_URGENT} to {LEAST_URGENT}; got {request.level}")
    if request.prompt_tokens < 1 or request.output_tokens < 1:
        raise ValueError("prompt_tokens and output_tokens must be at least 1")
    if request.prompt_tokens + request.output_tokens > limit:
        raise ValueError(f"prompt and output have more than {limit} tokens, which is all that a sequence holds")
    return request

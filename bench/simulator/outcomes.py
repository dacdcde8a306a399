"""What became of each request, as columns of numbers."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llamalane.bench.simulator.request import SECOND, SimulatedRequest

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Outcomes:
    """Every request that was served, one to a row; times are in seconds from the start.

    Attributes:
        first_token, ended: the ends of the steps that computed a request's first and last token.
        tenant: an index into `tenants`.
        refused: how many requests of each level found the queue full, or were turned out of it.
        steps: steps that all lanes computed.
    """

    arrival: Floats
    admitted: Floats
    first_token: Floats
    ended: Floats
    level: Integers
    tenant: Integers
    lane: Integers
    prompt_tokens: Integers
    cached_tokens: Integers
    output_tokens: Integers
    parks: Integers
    tenants: tuple[str, ...]
    refused: Mapping[int, int]
    steps: int

    def __len__(self) -> int:
        return len(self.arrival)

    @property
    def wait(self) -> Floats:
        """Seconds from arrival to the first admission."""
        return self.admitted - self.arrival

    @property
    def time_to_first_token(self) -> Floats:
        """Seconds from arrival to the first token."""
        return self.first_token - self.arrival

    @property
    def inter_token(self) -> Floats:
        """Mean seconds between a request's tokens; 0 for a single one."""
        return (self.ended - self.first_token) / np.maximum(self.output_tokens - 1, 1)


class OutcomeLog:
    """Takes requests down as they end, a few numbers each, so that millions fit into memory."""

    def __init__(self) -> None:
        self.refused: Counter[int] = Counter()
        self.steps = 0
        self._times = [array("q") for _ in range(4)]
        self._numbers = [array("q") for _ in range(7)]
        self._tenants: dict[str, int] = {}

    def add(self, request: SimulatedRequest) -> None:
        """Take down a request that has ended."""
        assert request.admitted is not None
        assert request.first_token is not None
        assert request.ended is not None
        times = (request.arrival, request.admitted, request.first_token, request.ended)
        for column, value in zip(self._times, times, strict=True):
            column.append(value)
        numbers = (
            request.level,
            self._tenants.setdefault(request.tenant, len(self._tenants)),
            request.lane,
            request.prompt_tokens,
            request.cached,
            request.output_tokens,
            request.parks,
        )
        for column, value in zip(self._numbers, numbers, strict=True):
            column.append(value)

    def outcomes(self) -> Outcomes:
        """Return all that was taken down."""
        arrival, admitted, first_token, ended = (np.array(column, np.int64) / SECOND for column in self._times)
        level, tenant, lane, prompt, cached, output, parks = (np.array(column, np.int64) for column in self._numbers)
        return Outcomes(
            arrival=arrival,
            admitted=admitted,
            first_token=first_token,
            ended=ended,
            level=level,
            tenant=tenant,
            lane=lane,
            prompt_tokens=prompt,
            cached_tokens=cached,
            output_tokens=output,
            parks=parks,
            tenants=tuple(self._tenants),
            refused=dict(self.refused),
            steps=self.steps,
        )

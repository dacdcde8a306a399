"""When requests come: processes of arrivals with a given mean rate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

_AT_ONCE = 1024
"""So many random numbers are drawn at once."""


class Process(Protocol):
    """A process of arrivals."""

    def times(self, generator: np.random.Generator, rate: float) -> Iterator[float]:
        """Return the times of arrivals in seconds, `rate` of them in each second on average, without end."""


@dataclass(frozen=True)
class Gamma:
    """Independent gaps with a Gamma distribution.

    `burstiness` is their coefficient of variation: 1 is a Poisson process, more makes bursts and lulls.
    """

    burstiness: float = 1.0

    def times(self, generator: np.random.Generator, rate: float) -> Iterator[float]:
        """Return the times of arrivals."""
        square = self.burstiness**2
        time = 0.0
        while True:
            for gap in generator.gamma(1 / square, square / rate, _AT_ONCE).tolist():
                time += gap
                yield time


POISSON = Gamma(1.0)


@dataclass(frozen=True)
class OnOff:
    """A Poisson process that is switched on and off, for exponentially distributed times of these means in seconds."""

    on: float
    off: float

    def times(self, generator: np.random.Generator, rate: float) -> Iterator[float]:
        """Return the times of arrivals."""
        # A process on a clock that only goes while it is on; `silence` is what the true clock is ahead.
        silence = 0.0
        switch = generator.exponential(self.on)
        for busy in POISSON.times(generator, rate * (self.on + self.off) / self.on):
            while busy >= switch:
                silence += generator.exponential(self.off)
                switch += generator.exponential(self.on)
            yield busy + silence

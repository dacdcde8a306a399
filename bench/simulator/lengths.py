"""How long prompts and outputs are: distributions of token counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]

_MEAN_OF = 50_000
"""So many draws tell a distribution's mean."""


class Lengths(Protocol):
    """A distribution of token counts, all at least 1."""

    def draw(self, generator: np.random.Generator, count: int) -> Integers:
        """Return `count` lengths."""


@dataclass(frozen=True)
class Between:
    """All lengths from `low` to `high`, both included, equally likely."""

    low: int
    high: int

    def draw(self, generator: np.random.Generator, count: int) -> Integers:
        """Return `count` lengths."""
        return generator.integers(self.low, self.high, count, endpoint=True)


@dataclass(frozen=True)
class LogNormal:
    """Lengths whose logarithm is normal: half of them below `median`; `sigma` is the logarithm's deviation."""

    median: float
    sigma: float
    most: int

    def draw(self, generator: np.random.Generator, count: int) -> Integers:
        """Return `count` lengths, none above `most`."""
        drawn = generator.lognormal(math.log(self.median), self.sigma, count)
        lengths: Integers = np.clip(np.rint(drawn), 1, self.most).astype(np.int64)
        return lengths


@dataclass(frozen=True)
class Zipf:
    """Lengths from 1 to `most`, each n in proportion to (n + shift) to the power of −`exponent`."""

    exponent: float
    shift: float
    most: int

    def draw(self, generator: np.random.Generator, count: int) -> Integers:
        """Return `count` lengths."""
        return np.searchsorted(self._cumulated, generator.random(count), side="right").astype(np.int64) + 1

    @cached_property
    def _cumulated(self) -> npt.NDArray[np.float64]:
        weights = (np.arange(1, self.most + 1) + self.shift) ** -self.exponent
        cumulated: npt.NDArray[np.float64] = np.cumsum(weights)[:-1] / weights.sum()
        return cumulated


@dataclass(frozen=True)
class Quantiles:
    """Lengths with known quantiles: `values` are those at `shares`, from 0 to 1; between them, in proportion."""

    shares: Sequence[float]
    values: Sequence[int]

    def draw(self, generator: np.random.Generator, count: int) -> Integers:
        """Return `count` lengths."""
        drawn = np.exp(np.interp(generator.random(count), self.shares, np.log(self.values)))
        lengths: Integers = np.maximum(np.rint(drawn), 1).astype(np.int64)
        return lengths


@dataclass(frozen=True)
class Scaled:
    """The lengths of another distribution, times `factor`, none above `most`."""

    lengths: Lengths
    factor: float
    most: int

    def draw(self, generator: np.random.Generator, count: int) -> Integers:
        """Return `count` lengths."""
        drawn = np.rint(self.lengths.draw(generator, count) * self.factor)
        lengths: Integers = np.clip(drawn, 1, self.most).astype(np.int64)
        return lengths


def mean_of(lengths: Lengths) -> float:
    """Return the mean of a distribution, as many draws tell it; always the same."""
    return float(lengths.draw(np.random.default_rng(0), _MEAN_OF).mean())

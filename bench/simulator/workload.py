"""What arrives: kinds of requests, and how they mix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from llamalane.bench.simulator.gaps import POISSON, Process
from llamalane.bench.simulator.lengths import Lengths, Scaled, mean_of
from llamalane.bench.simulator.request import SimulatedRequest, picoseconds
from llamalane.ids import Level, RequestId

_AT_ONCE = 1024
"""So many requests are drawn at once."""


class Source(Protocol):
    """Something that requests come from, the same ones again for the same seed."""

    def requests(self, rate: float, seed: int, count: int) -> Iterator[SimulatedRequest]:
        """Return about `count` requests in order of their arrival, `rate` of them in each second on average."""

    def mean_lengths(self) -> tuple[float, float]:
        """Return the mean numbers of prompt tokens and of output tokens in a request."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of request.

    Attributes:
        level: its priority.
        share: how many of all requests are of this kind, in proportion to the shares of the others.
        prompt, output: how long its prompts and outputs are.
    """

    level: Level
    share: float
    prompt: Lengths
    output: Lengths


@dataclass(frozen=True, kw_only=True)
class Mix:
    """Independent requests of several kinds.

    Attributes:
        kinds: what they are; each request's kind is drawn by itself.
        process: when they come.
        tenants: how many tenants there are; the n-th sends in proportion to 1/n.
        limit: the most tokens of one request, prompt and output together; longer prompts and outputs are cut.
        scale: what all lengths are multiplied with.
    """

    kinds: Sequence[Kind]
    process: Process = POISSON
    tenants: int = 1
    limit: int = 2048
    scale: float = 1.0

    def requests(self, rate: float, seed: int, count: int) -> Iterator[SimulatedRequest]:
        """Return exactly `count` requests."""
        times_seed, kinds_seed = np.random.SeedSequence(seed).spawn(2)
        times = self.process.times(np.random.default_rng(times_seed), rate)
        drawn = self._draw(np.random.default_rng(kinds_seed))
        for number, time, (level, prompt, output, tenant) in zip(range(1, count + 1), times, drawn, strict=False):
            yield SimulatedRequest(
                id=RequestId(f"request-{number}"),
                arrival=picoseconds(time),
                level=Level(level),
                prompt_tokens=prompt,
                output_tokens=output,
                tenant=f"tenant-{tenant}" if self.tenants > 1 else "",
            )

    def mean_lengths(self) -> tuple[float, float]:
        """Return the means over all kinds."""
        kinds = [self._fitted(kind) for kind in self.kinds]
        total = sum(kind.share for kind in kinds)
        prompt = sum(kind.share * mean_of(kind.prompt) for kind in kinds) / total
        output = sum(kind.share * mean_of(kind.output) for kind in kinds) / total
        return prompt, output

    def _fitted(self, kind: Kind) -> Kind:
        """Return a kind, its lengths scaled, whose requests fit the limit; outputs get a quarter of it at most."""
        most_output = max(1, self.limit // 4)
        return replace(
            kind,
            prompt=Scaled(kind.prompt, self.scale, max(1, self.limit - most_output)),
            output=Scaled(kind.output, self.scale, most_output),
        )

    def _draw(self, generator: np.random.Generator) -> Iterator[tuple[int, int, int, int]]:
        """Return level, prompt, output and tenant of one request after the other, without end."""
        kinds = [self._fitted(kind) for kind in self.kinds]
        levels = np.array([kind.level for kind in kinds])
        kind_shares = _shares([kind.share for kind in kinds])
        tenant_shares = _shares([1 / number for number in range(1, self.tenants + 1)])
        places = np.arange(_AT_ONCE)
        while True:
            chosen = generator.choice(len(kinds), _AT_ONCE, p=kind_shares)
            prompts = np.array([kind.prompt.draw(generator, _AT_ONCE) for kind in kinds])[chosen, places]
            outputs = np.array([kind.output.draw(generator, _AT_ONCE) for kind in kinds])[chosen, places]
            tenants = generator.choice(self.tenants, _AT_ONCE, p=tenant_shares) + 1
            columns = (levels[chosen], prompts, outputs, tenants)
            yield from zip(*(column.tolist() for column in columns), strict=True)


def _shares(weights: Sequence[float]) -> npt.NDArray[np.float64]:
    array = np.array(weights)
    shares: npt.NDArray[np.float64] = array / array.sum()
    return shares

"""What outcomes say: waits and first tokens by level, throughput, goodput, and how fairly tenants were served."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llamalane.bench.simulator.outcomes import Booleans, Floats, Outcomes


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Three percentiles of a time in seconds."""

    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, values: Floats) -> Percentiles:
        """Return the percentiles of `values`, of which there must be some; interpolated."""
        return cls(*(float(value) for value in np.percentile(values, [50, 90, 99])))


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """What a request should see at least: its service level objective, in seconds."""

    first_token: float
    inter_token: float

    def met(self, outcomes: Outcomes) -> Booleans:
        """Return for each request whether its first token came in time, and the others in the mean."""
        return (outcomes.time_to_first_token <= self.first_token) & (outcomes.inter_token <= self.inter_token)


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelMeasures:
    """The requests of one level.

    Attributes:
        met: the share of them that met the objective.
    """

    level: int
    requests: int
    refused: int
    wait: Percentiles
    first_token: Percentiles
    met: float
    parks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """A whole run.

    Attributes:
        seconds: from the first arrival to the end of the last request.
        tokens_per_second: generated tokens.
        requests_per_second: requests that ended.
        goodput: requests that ended and met the objective, in each second; `met` is their share.
        cached_share: the share of all prompt tokens that was in the cells already.
        jain: Jain's index of the tenants' shares of what they asked for, when the last request arrived: 1 when all had
            got the same share, 1/n when one of n had got everything.
    """

    levels: tuple[LevelMeasures, ...]
    requests: int
    refused: int
    seconds: float
    tokens_per_second: float
    requests_per_second: float
    goodput: float
    met: float
    parks: int
    cached_share: float
    jain: float


def measure(outcomes: Outcomes, objective: Objective) -> Measures:
    """Sum up a run, of which at least one request must have been served."""
    seconds = float(outcomes.ended.max() - outcomes.arrival.min())
    met = objective.met(outcomes)
    levels = sorted({int(level) for level in np.unique(outcomes.level)})
    return Measures(
        levels=tuple(_measure_level(outcomes, level, met) for level in levels),
        requests=len(outcomes),
        refused=sum(outcomes.refused.values()),
        seconds=seconds,
        tokens_per_second=float(outcomes.output_tokens.sum()) / seconds,
        requests_per_second=len(outcomes) / seconds,
        goodput=float(met.sum()) / seconds,
        met=float(met.mean()),
        parks=int(outcomes.parks.sum()),
        cached_share=float(outcomes.cached_tokens.sum() / outcomes.prompt_tokens.sum()),
        jain=jain_index(service_shares(outcomes, float(outcomes.arrival.max()))),
    )


def _measure_level(outcomes: Outcomes, level: int, met: Booleans) -> LevelMeasures:
    own = outcomes.level == level
    return LevelMeasures(
        level=level,
        requests=int(own.sum()),
        refused=outcomes.refused.get(level, 0),
        wait=Percentiles.of(outcomes.wait[own]),
        first_token=Percentiles.of(outcomes.time_to_first_token[own]),
        met=float(met[own].mean()),
        parks=int(outcomes.parks[own].sum()),
    )


def service_shares(outcomes: Outcomes, time: float) -> Floats:
    """Return for each tenant which share of the output tokens that it had asked for until `time` it had got by then.

    A request's tokens count as spread evenly from its first to its last. Tenants that had asked for nothing are left
    out.
    """
    span = np.maximum(outcomes.ended - outcomes.first_token, 1e-9)
    part = np.where(outcomes.ended <= time, 1.0, np.clip((time - outcomes.first_token) / span, 0.0, 1.0))
    come = outcomes.arrival <= time
    count = len(outcomes.tenants)
    asked = np.bincount(outcomes.tenant, weights=outcomes.output_tokens * come, minlength=count)
    got = np.bincount(outcomes.tenant, weights=outcomes.output_tokens * part * come, minlength=count)
    shares: Floats = got[asked > 0] / asked[asked > 0]
    return shares


def jain_index(shares: Floats) -> float:
    """Return Jain's fairness index of non-negative shares; 1 when there are none, or all are 0."""
    squares = len(shares) * float((shares**2).sum())
    return float(shares.sum()) ** 2 / squares if squares else 1.0

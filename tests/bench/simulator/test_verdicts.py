"""When a simulation counts as agreeing with real runs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from llamalane.bench.simulator.measures import LevelMeasures, Measures, Percentiles
from llamalane.bench.simulator.verdicts import Verdict, judge


@pytest.mark.parametrize(
    ("simulated", "real", "within"),
    [
        (1.15, (1.0, 1.01, 0.99), True),
        (1.16, (1.0, 1.01, 0.99), False),
        (0.86, (1.0, 1.01, 0.99), True),
        (0.84, (1.0, 1.01, 0.99), False),
        (1.39, (0.8, 1.0, 1.2), True),  # real runs differ by 0.4
        (1.41, (0.8, 1.0, 1.2), False),
        (1.1, (1.0,), True),
        (1.2, (1.0,), False),
    ],
)
def test_a_simulated_time_agrees_within_fifteen_percent_or_the_spread(
    simulated: float, real: tuple[float, ...], within: bool
) -> None:
    assert Verdict(1, "p50", simulated, real).within is within


def measures(times: dict[int, tuple[float, float]]) -> Measures:
    """Measures of levels of which only median and 90th percentile are told."""
    levels = [
        LevelMeasures(
            level=level,
            requests=1,
            refused=0,
            wait=Percentiles(0, 0, 0),
            first_token=Percentiles(p50, p90, p90),
            met=1.0,
            parks=0,
        )
        for level, (p50, p90) in times.items()
    ]
    return Measures(
        levels=tuple(levels),
        requests=len(levels),
        refused=0,
        seconds=1.0,
        tokens_per_second=1.0,
        requests_per_second=1.0,
        goodput=1.0,
        met=1.0,
        parks=0,
        cached_share=0.0,
        jain=1.0,
    )


def test_every_level_that_all_runs_have_is_judged() -> None:
    real: Sequence[Measures] = [measures({1: (0.2, 0.4), 3: (1, 2), 5: (3, 4)}), measures({1: (0.3, 0.5), 5: (5, 6)})]
    assert list(judge(measures({1: (0.25, 0.45), 3: (1, 2), 5: (4, 5)}), real)) == [
        Verdict(1, "p50", 0.25, (0.2, 0.3)),
        Verdict(1, "p90", 0.45, (0.4, 0.5)),
        Verdict(5, "p50", 4, (3, 5)),
        Verdict(5, "p90", 5, (4, 6)),
    ]

"""Numbers of outcomes that are small enough to be worked out by hand."""

from __future__ import annotations

from dataclasses import astuple

import numpy as np
import pytest

from llamalane.bench.simulator.measures import Objective, jain_index, measure, service_shares
from llamalane.bench.simulator.outcomes import OutcomeLog, Outcomes
from llamalane.bench.simulator.request import SimulatedRequest, picoseconds
from llamalane.ids import Level, RequestId


def outcomes(*served: tuple[float, float, float, float, int, str, int], refused: int = 0) -> Outcomes:
    """Outcomes of requests, each with arrival, admission, first token, end, level, tenant and output tokens."""
    log = OutcomeLog()
    for arrival, admitted, first, ended, level, tenant, output in served:
        request = SimulatedRequest(
            id=RequestId("request"),
            arrival=picoseconds(arrival),
            level=Level(level),
            prompt_tokens=10,
            output_tokens=output,
            tenant=tenant,
        )
        request.admitted, request.first_token, request.ended = map(picoseconds, (admitted, first, ended))
        request.cached = 2
        log.add(request)
    log.refused[1] = refused
    return log.outcomes()


def test_a_run_is_summed_up() -> None:
    run = outcomes(
        (0.0, 0.0, 1.0, 3.0, 1, "", 5),  # 0.5 s between tokens
        (1.0, 2.0, 4.0, 4.0, 1, "", 1),
        (2.0, 2.0, 2.5, 10.0, 5, "", 16),
        refused=3,
    )
    measures = measure(run, Objective(first_token=2.0, inter_token=0.5))
    assert measures.seconds == 10.0
    assert measures.requests == 3
    assert measures.refused == 3
    assert measures.tokens_per_second == pytest.approx(2.2)
    assert measures.requests_per_second == pytest.approx(0.3)
    assert measures.goodput == pytest.approx(0.2)  # the second's first token came after 3 s
    assert measures.met == pytest.approx(2 / 3)
    assert measures.cached_share == pytest.approx(0.2)
    urgent, batch = measures.levels
    assert (urgent.level, urgent.requests, urgent.refused, urgent.met) == (1, 2, 3, 0.5)
    assert astuple(urgent.wait) == pytest.approx((0.5, 0.9, 0.99))
    assert urgent.first_token.p50 == pytest.approx(2.0)
    assert batch.first_token.p99 == pytest.approx(0.5)


def test_shares_are_what_tenants_got_of_what_they_had_asked_for() -> None:
    run = outcomes(
        (0.0, 0.0, 1.0, 5.0, 1, "a", 10),
        (0.0, 0.0, 3.0, 3.0, 1, "b", 10),
        (4.0, 4.0, 5.0, 6.0, 1, "c", 10),
    )
    assert list(service_shares(run, 3.0)) == [pytest.approx(0.5), pytest.approx(1.0)]  # c has asked for nothing yet
    assert list(service_shares(run, 10.0)) == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("shares", "index"),
    [([1.0, 1.0, 1.0], 1.0), ([1.0, 0.0, 0.0, 0.0], 0.25), ([0.5, 1.0], 0.9), ([0.0, 0.0], 1.0), ([], 1.0)],
)
def test_jains_index(shares: list[float], index: float) -> None:
    assert jain_index(np.array(shares)) == pytest.approx(index)

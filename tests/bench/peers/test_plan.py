"""What comparisons say of measurements that were made up."""

from __future__ import annotations

import pytest

from llamalane.bench.peers.plan import Spread
from tests.bench.peers.made_up import arriving, clients, comparison, measurement, rates, with_times


def test_ratios_are_taken_within_rounds() -> None:
    result = comparison(rates({8: [(90.0, 100.0), (60.0, 50.0), (99.0, 100.0)]}))
    assert result.ratios("xllamacpp", clients(8), lambda one: one.tokens_per_second) == [0.9, 1.2, 0.99]


def test_rounds_in_which_one_has_no_value_give_no_ratio() -> None:
    result = comparison(rates({8: [(90.0, None), (50.0, 100.0)]}))
    assert result.ratios("xllamacpp", clients(8), lambda one: one.tokens_per_second) == [0.5]
    assert result.ratios("xllamacpp", clients(8), lambda one: one.summary.goodput) == []


def test_rounds_are_paired_by_their_number_whatever_came_first() -> None:
    in_order = rates({8: [(90.0, 100.0), (60.0, 50.0)]})
    result = comparison([in_order[0], in_order[1], in_order[3], in_order[2]])
    assert result.ratios("xllamacpp", clients(8), lambda one: one.tokens_per_second) == [0.9, 1.2]


def test_latencies_of_all_rounds_are_put_together() -> None:
    runs = [measurement("a", clients(1), number, *with_times(1.0, [number, 5.0])) for number in (1, 2)]
    latencies = comparison(runs).latencies("a", clients(1))
    assert latencies.time_to_first_token == (1, 5.0, 2, 5.0)
    assert latencies.end_to_end == (10, 50.0, 20, 50.0)
    assert latencies.inter_token == ()


def test_a_spread_has_quartiles_and_a_range() -> None:
    assert Spread.of([1.0, 5.0, 2.0, 4.0, 3.0]) == Spread(median=3.0, low=2.0, high=4.0, least=1.0, most=5.0)
    assert Spread.of([2.0]) == Spread(2.0, 2.0, 2.0, 2.0, 2.0)
    assert Spread.of([]) is None


@pytest.mark.parametrize(
    ("load", "text"), [(clients(1), "1 client"), (clients(200), "200 clients"), (arriving(2.125), "2.12 requests/s")]
)
def test_a_load_says_what_it_is(load: object, text: str) -> None:
    assert str(load) == text

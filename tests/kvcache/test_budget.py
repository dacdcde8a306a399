from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llamalane.errors import ConfigError
from llamalane.kvcache import CELLS_MULTIPLE, divide

PLACES = st.lists(st.integers(1, 8), min_size=1, max_size=5)


@settings(deadline=None)
@given(budget=st.integers(0, 100_000), places=PLACES, train_context=st.sampled_from([0, 100, 2048, 8192]))
def test_lanes_share_the_budget_by_their_places(budget: int, places: list[int], train_context: int) -> None:
    try:
        plans = divide(budget, places, train_context)
    except ConfigError:
        smallest = min(places)
        assert budget * smallest < CELLS_MULTIPLE * sum(places)
        return
    assert [plan.places for plan in plans] == places
    assert sum(plan.cells for plan in plans) <= budget
    for plan in plans:
        assert plan.cells % CELLS_MULTIPLE == 0
        assert 0 <= budget * plan.places / sum(places) - plan.cells < CELLS_MULTIPLE
        assert plan.places * plan.limit <= plan.cells
        assert plan.limit == min(plan.cells // plan.places, train_context or plan.cells)


def test_a_sequence_gets_its_equal_part() -> None:
    (plan,) = divide(8192, [8], 0)
    assert (plan.cells, plan.limit) == (8192, 1024)


def test_a_sequence_never_outgrows_what_the_model_was_trained_for() -> None:
    (plan,) = divide(8192, [2], 2048)
    assert (plan.cells, plan.limit) == (8192, 2048)


def test_an_unequal_rest_is_left_over_rather_than_rounded_up() -> None:
    assert [plan.cells for plan in divide(1000, [1, 2], 0)] == [256, 512]


@pytest.mark.parametrize(("budget", "places"), [(0, [1]), (255, [1]), (1023, [1, 3]), (256, [1, 1])])
def test_a_budget_too_small_for_a_lane_is_refused_with_both_numbers(budget: int, places: list[int]) -> None:
    with pytest.raises(ConfigError, match=rf"budget of {budget} tokens is too small for {sum(places)} places"):
        divide(budget, places, 0)


def test_places_that_could_not_hold_a_prompt_and_a_token_are_refused() -> None:
    assert divide(256, [128], 0)[0].limit == 2
    with pytest.raises(ConfigError, match="256 KV cells are too few for 129 places"):
        divide(256, [129], 0)

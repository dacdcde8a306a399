from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamalane.errors import ConfigError
from llamalane.kvcache import CELLS_MULTIPLE, Layout, divide

PLACES = st.lists(st.integers(1, 8), min_size=1, max_size=5)
LAYOUTS = st.sampled_from(list(Layout))
SPARE = st.none() | st.integers(0, 12)


@given(
    budget=st.integers(0, 200_000),
    places=PLACES,
    train_context=st.sampled_from([0, 100, 2048, 8192]),
    layout=LAYOUTS,
    spare=SPARE,
)
def test_lanes_share_the_budget_by_their_places(
    budget: int, places: list[int], train_context: int, layout: Layout, spare: int | None
) -> None:
    partitioned = layout is Layout.PARTITIONED
    if spare is None:
        sequences = places if partitioned else [2 * count for count in places]
    else:
        sequences = [count + spare for count in places]
    units = [CELLS_MULTIPLE * count if partitioned else CELLS_MULTIPLE for count in sequences]
    shares = [budget * count // sum(places) for count in places]
    try:
        plans = divide(budget, places, train_context, layout=layout, spare=spare)
    except ConfigError:
        assert any(share < unit for share, unit in zip(shares, units, strict=True))
        return
    assert sum(plan.cells for plan in plans) <= budget
    for plan, count, holders, unit, share in zip(plans, places, sequences, units, shares, strict=True):
        assert (plan.places, plan.sequences, plan.layout) == (count, holders, layout)
        assert plan.cells % unit == 0
        assert 0 <= share - plan.cells < unit
        part = plan.cells // holders if partitioned else plan.cells
        assert part % CELLS_MULTIPLE == 0
        assert plan.limit == min(part, train_context or part)


def test_a_paged_sequence_can_fill_the_whole_region() -> None:
    (plan,) = divide(8192, [8], 0)
    assert (plan.cells, plan.limit) == (8192, 8192)


def test_a_partitioned_sequence_gets_its_equal_part() -> None:
    (plan,) = divide(8192, [8], 0, layout=Layout.PARTITIONED)
    assert (plan.cells, plan.limit, plan.sequences) == (8192, 1024, 8)


def test_spare_sequences_cost_parts_of_a_partitioned_region_only() -> None:
    (paged,) = divide(4096, [4], 0, spare=4)
    (partitioned,) = divide(4096, [4], 0, layout=Layout.PARTITIONED, spare=4)
    assert (paged.sequences, paged.limit) == (8, 4096)
    assert (partitioned.sequences, partitioned.limit) == (8, 512)


def test_without_a_word_as_many_sequences_are_spare_as_run_where_they_cost_nothing() -> None:
    assert [plan.sequences for plan in divide(8192, [3, 5], 0)] == [6, 10]
    assert [plan.sequences for plan in divide(8192, [3, 5], 0, layout=Layout.PARTITIONED)] == [3, 5]


def test_no_lane_has_more_sequences_than_llama_cpp_can_tell_apart() -> None:
    (plan,) = divide(8192, [200], 0)
    assert (plan.places, plan.sequences) == (200, 256)


@pytest.mark.parametrize("layout", list(Layout))
def test_a_sequence_never_outgrows_what_the_model_was_trained_for(layout: Layout) -> None:
    (plan,) = divide(8192, [2], 2048, layout=layout)
    assert (plan.cells, plan.limit) == (8192, 2048)


def test_an_unequal_rest_is_left_over_rather_than_rounded_up() -> None:
    assert [plan.cells for plan in divide(1000, [1, 2], 0)] == [256, 512]
    assert [plan.cells for plan in divide(2000, [3], 0, layout=Layout.PARTITIONED)] == [1536]


@pytest.mark.parametrize(("budget", "places"), [(0, [1]), (255, [1]), (1023, [1, 3]), (256, [1, 1])])
def test_a_budget_too_small_for_a_lane_is_refused_with_both_numbers(budget: int, places: list[int]) -> None:
    with pytest.raises(ConfigError, match=rf"budget of {budget} tokens is too small for {sum(places)} places"):
        divide(budget, places, 0)


def test_a_budget_too_small_for_every_part_is_refused_with_the_number_of_parts() -> None:
    assert divide(1536, [4], 0, layout=Layout.PARTITIONED, spare=2)[0].limit == 256
    with pytest.raises(ConfigError, match="each of a lane's sequences, 6 here, needs 256 for itself"):
        divide(1535, [4], 0, layout=Layout.PARTITIONED, spare=2)


def test_places_that_could_not_hold_a_prompt_and_a_token_are_refused() -> None:
    assert divide(256, [128], 0)[0].cells == 256
    with pytest.raises(ConfigError, match="256 KV cells are too few for 129 places"):
        divide(256, [129], 0)

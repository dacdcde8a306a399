from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamalane.errors import ConfigError
from llamalane.kvcache import CELLS_MULTIPLE, Layout, divide
from llamalane.kvcache.budget import Bytes, Share, count_sequences, least_budget, parse_amount

PLACES = st.lists(st.integers(1, 8), min_size=1, max_size=5)
LAYOUTS = st.sampled_from(list(Layout))
SPARE = st.none() | st.integers(0, 12)
WEIGHTED = st.lists(st.tuples(st.integers(1, 8), st.floats(0.01, 100) | st.integers(1, 100)), min_size=1, max_size=4)
"""Lanes as their places and weights."""


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


@given(lanes=WEIGHTED, layout=LAYOUTS, spare=SPARE)
def test_the_least_budget_is_enough_and_one_token_less_is_not(
    lanes: list[tuple[int, float]], layout: Layout, spare: int | None
) -> None:
    places, weights = [list(column) for column in zip(*lanes, strict=True)]
    counts = [int(count) for count in places]
    least = least_budget(counts, layout=layout, spare=spare, weights=weights)
    plans = divide(least, counts, 0, layout=layout, spare=spare, weights=weights)
    assert [plan.sequences for plan in plans] == [count_sequences(count, layout, spare) for count in counts]
    with pytest.raises(ConfigError):
        divide(least - 1, counts, 0, layout=layout, spare=spare, weights=weights)


@given(budget=st.integers(10_000, 1_000_000), lanes=WEIGHTED)
def test_weights_decide_instead_of_places(budget: int, lanes: list[tuple[int, float]]) -> None:
    places, weights = [count for count, _ in lanes], [weight for _, weight in lanes]
    try:
        plans = divide(budget, places, 0, weights=weights)
    except ConfigError:
        assert budget < least_budget(places, weights=weights)
        return
    assert sum(plan.cells for plan in plans) <= budget
    for plan, weight in zip(plans, weights, strict=True):
        assert abs(plan.cells - budget * weight / sum(weights)) < CELLS_MULTIPLE + 1


def test_equal_weights_give_lanes_of_different_places_the_same() -> None:
    assert [plan.cells for plan in divide(4096, [1, 7], 0, weights=[2, 2])] == [2048, 2048]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4GiB", Bytes(4 << 30)),
        ("512MB", Bytes(512_000_000)),
        ("4096 MiB", Bytes(4 << 30)),
        (" 1.5 kib ", Bytes(1536)),
        ("0.1KB", Bytes(100)),
        ("7b", Bytes(7)),
        ("2 TB", Bytes(2 * 10**12)),
        ("50%", Share(0.5)),
        ("12.5 %", Share(0.125)),
        ("100%", Share(1.0)),
    ],
)
def test_amounts_are_bytes_or_shares(text: str, expected: Bytes | Share) -> None:
    assert parse_amount(text) == expected


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("4 parsecs", "the unit 'parsecs' is none of B, KB, MB, GB, TB, KiB, MiB, GiB, TiB and %"),
        ("4G", "the unit 'G' is none of"),
        ("0%", "a share is more than 0% and at most 100%; got 0%"),
        ("100.5%", "got 100.5%"),
        ("-1GiB", "'-1GiB' is neither tokens, such as 16384, nor bytes, such as 4GiB, nor a share, as 50%"),
        ("half", "'half' is neither"),
        ("GiB", "'GiB' is neither"),
        ("1e3MB", "'1e3MB' is neither"),
        ("\u0663MB", "is neither"),
        ("50%%", "is neither"),
        ("", "is neither"),
    ],
)
def test_other_amounts_are_refused_with_what_is_allowed(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        parse_amount(text)
    assert complaint in str(refusal.value)


def test_each_lane_can_have_a_layout_of_its_own() -> None:
    paged, partitioned = divide(8192, [4, 4], 0, layout=[Layout.PAGED, Layout.PARTITIONED])
    assert (paged.layout, paged.cells, paged.limit) == (Layout.PAGED, 4096, 4096)
    assert (partitioned.layout, partitioned.cells, partitioned.limit) == (Layout.PARTITIONED, 4096, 1024)

"""How a request is parked: by what pausing, swapping and recomputing cost."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from llamalane.ids import RequestId
from llamalane.scheduler.parking import ParkingCosts
from llamalane.streams import Parked, Parking, SavedCells

PLENTY = 1 << 20
MANY = 60
"""Measurements after which a first guess no longer counts."""


def swapped(size: int, computed: int = 10, seconds: float = 0.001) -> Parked:
    """What a lane says of a request whose `computed` cells it has saved in `size` bytes."""
    return Parked(RequestId("request"), computed, SavedCells(bytearray(size), computed), seconds)


def costs_that_saw(cell_seconds: float, cell_bytes: int = 1, bound: int = PLENTY) -> ParkingCosts:
    """Costs that have measured, often enough, what saving a cell takes."""
    costs = ParkingCosts(bound)
    for _ in range(MANY):
        costs.observe(swapped(10 * cell_bytes, 10, 10 * cell_seconds))
        costs.forget(10 * cell_bytes)
    return costs


cells = st.integers(1, 1000)
seconds = st.floats(1e-6, 1e-1)


@given(cells=cells, save=seconds, token=seconds)
def test_what_costs_less_is_chosen_when_the_cells_cannot_stay(cells: int, save: float, token: float) -> None:
    """Swapped cells go out and come in again; recomputed ones take what the tokens take."""
    costs = costs_that_saw(save)
    swapping, computing = 2 * cells * save, cells * token
    assume(abs(swapping - computing) > 0.01 * computing)
    assert costs.choose(cells, token, can_pause=False) is (Parking.SWAP if swapping < computing else Parking.RECOMPUTE)
    assert costs.loss(cells, token, can_pause=False) == pytest.approx(min(swapping, computing), rel=0.01)


@given(cells=cells, save=seconds, token=st.none() | seconds)
def test_pausing_costs_nothing_and_is_chosen_where_it_can_be(cells: int, save: float, token: float | None) -> None:
    costs = costs_that_saw(save)
    assert costs.choose(cells, token, can_pause=True) is Parking.PAUSE
    assert costs.loss(cells, token, can_pause=True) == 0.0


@given(fixed=st.none() | st.sampled_from(Parking), can_pause=st.booleans(), bound=st.sampled_from([0, 100, PLENTY]))
def test_a_request_with_more_cells_never_loses_less(fixed: Parking | None, can_pause: bool, bound: int) -> None:
    costs = ParkingCosts(bound, fixed)
    costs.observe(swapped(10))
    losses = [costs.loss(count, 0.01, can_pause=can_pause) for count in range(1, 300)]
    assert losses == sorted(losses)


def test_before_anything_was_measured_cells_are_saved_rather_than_computed_again() -> None:
    costs = ParkingCosts(PLENTY)
    assert costs.choose(100, None, can_pause=False) is Parking.SWAP
    assert 0 < costs.loss(100, None, can_pause=False) < ParkingCosts(0).loss(100, None, can_pause=False)


def test_a_machine_that_copies_slowly_computes_again() -> None:
    costs = ParkingCosts(PLENTY)
    chosen = []
    for _ in range(10):
        chosen.append(costs.choose(100, 0.001, can_pause=False))
        costs.observe(swapped(10, 10, seconds=1.0))
    assert (chosen[0], chosen[-1]) == (Parking.SWAP, Parking.RECOMPUTE)


@pytest.mark.parametrize(
    ("fixed", "can_pause", "bound", "chosen"),
    [
        (Parking.PAUSE, True, PLENTY, Parking.PAUSE),
        (Parking.PAUSE, False, PLENTY, Parking.SWAP),
        (Parking.PAUSE, False, 0, Parking.RECOMPUTE),
        (Parking.SWAP, True, PLENTY, Parking.SWAP),
        (Parking.SWAP, False, PLENTY, Parking.SWAP),
        (Parking.SWAP, True, 0, Parking.RECOMPUTE),
        (Parking.RECOMPUTE, True, PLENTY, Parking.RECOMPUTE),
        (Parking.RECOMPUTE, False, PLENTY, Parking.RECOMPUTE),
        (None, True, 0, Parking.PAUSE),
        (None, False, 0, Parking.RECOMPUTE),
    ],
)
def test_a_fixed_way_is_used_where_it_can_be_and_else_the_next_best(
    fixed: Parking | None, can_pause: bool, bound: int, chosen: Parking
) -> None:
    assert ParkingCosts(bound, fixed).choose(100, 0.01, can_pause=can_pause) is chosen


def test_a_fixed_way_is_used_even_where_another_costs_less() -> None:
    swapping, recomputing = ParkingCosts(PLENTY, Parking.SWAP), ParkingCosts(PLENTY, Parking.RECOMPUTE)
    assert swapping.choose(100, 1e-9, can_pause=False) is Parking.SWAP
    assert recomputing.choose(100, 10.0, can_pause=False) is Parking.RECOMPUTE
    assert recomputing.loss(100, 10.0, can_pause=False) == pytest.approx(1000)


@given(
    bound=st.integers(0, 100),
    sizes=st.lists(st.tuples(st.integers(1, 60), st.booleans()), max_size=30),
)
def test_saved_cells_never_take_more_than_their_bound(bound: int, sizes: list[tuple[int, bool]]) -> None:
    """After each swap, the oldest that was kept may be put back."""
    costs, kept = ParkingCosts(bound), list[int]()
    for size, put_back in sizes:
        fits = costs.observe(swapped(size))
        assert fits == (sum(kept) + size <= bound)
        if fits:
            kept.append(size)
        if put_back and kept:
            costs.forget(kept.pop(0))
        assert costs.store.reserved_bytes == sum(kept) <= bound


def test_cells_known_to_be_too_large_are_not_saved_in_vain() -> None:
    costs = ParkingCosts(100, Parking.SWAP)
    assert costs.choose(1000, 0.01, can_pause=False) is Parking.SWAP, "nobody knows yet how large they are"
    assert costs.observe(swapped(20, 10))
    assert costs.choose(40, 0.01, can_pause=False) is Parking.SWAP
    assert costs.choose(41, 0.01, can_pause=False) is Parking.RECOMPUTE
    costs.forget(20)
    assert costs.choose(50, 0.01, can_pause=False) is Parking.SWAP
    assert costs.choose(51, 0.01, can_pause=False) is Parking.RECOMPUTE


def test_what_did_not_fit_still_tells_how_large_cells_are() -> None:
    costs = ParkingCosts(100, Parking.SWAP)
    assert not costs.observe(swapped(200, 10))
    assert costs.store.reserved_bytes == 0
    assert costs.choose(5, 0.01, can_pause=False) is Parking.SWAP
    assert costs.choose(6, 0.01, can_pause=False) is Parking.RECOMPUTE


def test_only_swapping_teaches_what_swapping_costs() -> None:
    costs = ParkingCosts(PLENTY)
    before = costs.loss(100, 0.01, can_pause=False)
    assert costs.observe(Parked(RequestId("request"), computed=0))
    assert costs.observe(Parked(RequestId("request"), computed=50, seconds=9.0))
    assert costs.loss(100, 0.01, can_pause=False) == before
    assert costs.store.reserved_bytes == 0


@pytest.mark.parametrize("fixed", [None, Parking.SWAP])
def test_lanes_that_cannot_swap_compute_again(fixed: Parking | None) -> None:
    costs = ParkingCosts(PLENTY, fixed, can_swap=False)
    assert costs.choose(100, 0.01, can_pause=False) is Parking.RECOMPUTE
    assert costs.loss(100, 0.01, can_pause=False) == ParkingCosts(0).loss(100, 0.01, can_pause=False)


@pytest.mark.parametrize(("most", "chosen"), [(0.009, Parking.RECOMPUTE), (0.011, Parking.SWAP)])
def test_cells_that_would_take_long_to_save_are_not_swapped_while_others_wait(most: float, chosen: Parking) -> None:
    costs = costs_that_saw(1e-5)
    assert costs.choose(1000, 0.001, can_pause=False) is Parking.SWAP
    assert costs.choose(1000, 0.001, can_pause=False, most_seconds=most) is chosen
    assert costs.choose(1000, 0.001, can_pause=True, most_seconds=most) is Parking.PAUSE


def test_where_swapping_is_the_only_way_others_wait_for_it() -> None:
    costs = ParkingCosts(PLENTY, Parking.SWAP)
    assert costs.choose(1000, 0.001, can_pause=False, most_seconds=0.0) is Parking.SWAP

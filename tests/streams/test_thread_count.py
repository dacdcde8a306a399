"""With how many threads a lane computes, on machines with other processes on them and a clock of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamalane.streams.thread_count import LONGEST_WAIT, ThreadCount

Share = Callable[[int], float]
"""For which share of a step the lane's thread runs, by the number of threads."""

HOUR = 3600.0
SEARCH = 40
"""More changes than any search among 64 threads takes."""


@dataclass
class Machine:
    """Computes steps of `step` seconds one after the other, and counts how often their threads change."""

    count: ThreadCount
    step: float = 0.04
    now: float = 0.0
    changes: int = 0

    def run(self, share: Share, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            before = self.count.threads
            self.now += self.step
            self.count.observe(self.step, self.step * share(before), self.now)
            self.changes += self.count.threads != before


def beside(busy: int, cores: int) -> Share:
    """Return what is seen where others take the whole of so many of the cores."""
    return lambda threads: 0.97 if threads <= max(1, cores - busy) else 0.49


def quiet(_: int) -> float:
    return 0.95


def test_a_quiet_machine_keeps_all_its_threads() -> None:
    machine = Machine(ThreadCount(2))
    machine.run(quiet, HOUR)
    assert machine.changes == 0
    assert machine.count.threads == 2


def test_a_busy_neighbour_on_two_cores_leaves_one_thread_within_seconds() -> None:
    machine = Machine(ThreadCount(2))
    machine.run(beside(1, 2), 1.0)
    assert machine.count.threads == 1


@pytest.mark.parametrize(("cores", "busy"), [(2, 1), (4, 1), (4, 2), (8, 1), (8, 3), (16, 4), (64, 7)])
def test_as_many_threads_are_used_as_others_leave_cores(cores: int, busy: int) -> None:
    machine = Machine(ThreadCount(cores))
    machine.run(beside(busy, cores), 5 * LONGEST_WAIT)
    used = 0.0
    for _ in range(1000):
        machine.run(beside(busy, cores), machine.step)
        used += machine.count.threads / 1000
    assert used == pytest.approx(cores - busy, abs=0.5)


@pytest.mark.parametrize("cores", [2, 3, 8, 64])
def test_all_threads_are_back_soon_after_the_neighbour_has_gone(cores: int) -> None:
    machine = Machine(ThreadCount(cores))
    machine.run(beside(1, cores), HOUR)
    machine.run(quiet, LONGEST_WAIT + 10)
    assert machine.count.threads == cores


def test_a_short_disturbance_is_over_as_quickly_as_it_came() -> None:
    machine = Machine(ThreadCount(2))
    machine.run(beside(1, 2), 1.5)
    machine.run(quiet, 4.0)
    assert machine.count.threads == 2


def test_one_slow_step_changes_nothing() -> None:
    machine = Machine(ThreadCount(4))
    machine.run(quiet, 10)
    machine.count.observe(1.0, 0.1, machine.now)
    machine.run(quiet, 10)
    assert machine.changes == 0


def test_threads_that_bring_something_are_kept_though_they_sleep_much() -> None:
    """OpenMP's threads sleep at once where the user says so, and cores may be of two speeds."""
    machine = Machine(ThreadCount(2))
    machine.run(lambda threads: 1.0 if threads == 1 else 0.68, 10 * LONGEST_WAIT)
    assert machine.changes < 2 * SEARCH
    machine.run(lambda threads: 1.0 if threads == 1 else 0.68, LONGEST_WAIT / 2)
    assert machine.count.threads == 2


def test_a_fixed_number_stays() -> None:
    machine = Machine(ThreadCount(2, least=2))
    machine.run(beside(1, 2), 100)
    assert machine.changes == 0


def test_a_lane_that_has_slept_tries_its_threads_at_once() -> None:
    machine = Machine(ThreadCount(2))
    machine.run(beside(1, 2), HOUR)
    machine.now += LONGEST_WAIT
    machine.run(quiet, 2.0)
    assert machine.count.threads == 2


machines = st.integers(2, 64).flatmap(
    lambda most: st.tuples(st.just(most), st.lists(st.floats(0, 1), min_size=most, max_size=most))
)


@given(machines, st.sampled_from([0.001, 0.04, 0.3, 2.0]))
def test_it_never_flaps_whatever_a_machine_is_like(machine_of: tuple[int, list[float]], step: float) -> None:
    """On a machine that stays as it is, changes become as rare as the longest wait allows."""
    most, shares = machine_of
    machine = Machine(ThreadCount(most), step=step)
    waits = 20
    machine.run(lambda threads: shares[threads - 1], max(LONGEST_WAIT * waits, step * 400) if step > 0.001 else 30)
    assert machine.changes <= SEARCH + 16 * waits
    assert 1 <= machine.count.threads <= most


@given(machines, st.lists(st.tuples(st.floats(0, 1), st.floats(0.1, 30)), max_size=8))
def test_it_recovers_whatever_came_before(
    machine_of: tuple[int, list[float]], disturbances: list[tuple[float, float]]
) -> None:
    most, shares = machine_of
    machine = Machine(ThreadCount(most), step=0.1)
    for worse, seconds in disturbances:
        machine.run(lambda threads, worse=worse: shares[threads - 1] * worse, seconds)  # type: ignore[misc]
    machine.run(quiet, LONGEST_WAIT + 30)
    assert machine.count.threads == most

"""The pool of streams on the fake driver: each scenario in a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.streams.cuda import pool_scenarios as scenarios
from tests.streams.cuda.machine import run_scenario


@pytest.mark.parametrize(
    "scenario",
    [
        scenarios.streams_are_created_at_once_and_held_one_by_one,
        scenarios.priorities_are_spread_over_the_range_and_read_back,
        scenarios.a_stream_is_given_back_once,
        scenarios.a_pool_is_not_used_across_a_fork,
        scenarios.a_failure_at_the_last_stream_leaves_nothing,
        scenarios.a_failure_in_a_partition_leaves_nothing,
        scenarios.the_multiprocessors_are_divided_once_and_what_was_granted_is_read_back,
        scenarios.what_a_device_cannot_give_is_refused_with_what_it_can,
    ],
    ids=lambda scenario: scenario.__name__,
)
def test_fake_driver(libraries: Path, scenario: Callable[[], None]) -> None:
    run_scenario(libraries, scenario)


def test_fake_driver_without_priorities(libraries: Path) -> None:
    run_scenario(libraries, scenarios.a_device_without_priorities_enforces_none, FAKE_GREATEST=0)


@pytest.mark.parametrize(
    "scenario",
    [scenarios.four_devices_share_one_pool, scenarios.a_device_that_fails_leaves_the_others_serving],
    ids=lambda scenario: scenario.__name__,
)
def test_fake_driver_with_four_devices(libraries: Path, scenario: Callable[[], None]) -> None:
    run_scenario(libraries, scenario, FAKE_DEVICES=4)


def test_fake_driver_leaves_the_current_device_alone(libraries: Path) -> None:
    run_scenario(libraries, scenarios.this_threads_device_stays_as_it_was, FAKE_DEVICES=2)


def test_fake_driver_of_cuda_13_0_divides_into_equal_parts_only(libraries: Path) -> None:
    run_scenario(libraries, scenarios.equal_parts_only, FAKE_DRIVER=13000)

"""Lending a lane's stream to its context: each scenario in a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.streams.cuda import lending_scenarios as scenarios
from tests.streams.cuda.machine import SHIM, run_scenario


@pytest.mark.parametrize(
    "scenario",
    [
        scenarios.a_context_computes_on_the_stream_that_its_thread_lends,
        scenarios.a_stream_that_a_context_holds_is_not_taken_away,
        scenarios.a_context_that_is_made_anew_takes_the_stream_again,
        scenarios.a_stream_is_still_lent_after_the_upload_of_weights,
        scenarios.a_context_that_fails_leaves_the_stream_free,
        scenarios.threads_lend_at_once_each_its_own,
        scenarios.a_lane_says_what_it_computes_on,
        scenarios.a_runtime_that_came_first_is_no_obstacle,
    ],
    ids=lambda scenario: scenario.__name__,
)
def test_fake_driver(libraries: Path, scenario: Callable[[], None]) -> None:
    run_scenario(libraries, scenario)


@pytest.mark.parametrize(
    "scenario",
    [scenarios.a_context_on_another_device_does_not_take_it, scenarios.a_context_on_two_devices_is_told],
    ids=lambda scenario: scenario.__name__,
)
def test_fake_driver_with_two_devices(libraries: Path, scenario: Callable[[], None]) -> None:
    run_scenario(libraries, scenario, FAKE_DEVICES=2)


@pytest.mark.parametrize(
    "scenario",
    [
        scenarios.a_static_runtime_is_told,
        scenarios.a_runtime_that_came_first_for_everyone_is_told,
        scenarios.a_shim_that_comes_too_late_says_so,
        scenarios.without_a_shim_nothing_is_lent,
        scenarios.a_damaged_shim_is_none,
    ],
    ids=lambda scenario: scenario.__name__,
)
def test_fake_driver_where_it_cannot_be(libraries: Path, scenario: Callable[[], None]) -> None:
    run_scenario(libraries, scenario)


def test_fake_driver_with_more_streams_of_llama_cpp(libraries: Path) -> None:
    run_scenario(libraries, scenarios.streams_that_llama_cpp_adds_later_are_told, GGML_CUDA_GRAPH_OPT=1)


def test_fake_driver_with_the_shim_preloaded(libraries: Path) -> None:
    run_scenario(libraries, scenarios.a_shim_that_was_preloaded_is_early_enough, LD_PRELOAD=libraries / SHIM)

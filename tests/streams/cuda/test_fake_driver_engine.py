"""An engine on the fake driver: from the configuration to the lanes' statistics."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.streams.cuda import engine_scenarios as scenarios
from tests.streams.cuda.machine import run_scenario


@pytest.mark.parametrize(
    "scenario",
    [
        scenarios.every_lane_computes_on_a_stream_of_its_own,
        scenarios.a_lane_that_fails_is_lent_its_stream_again,
        scenarios.what_a_gpu_cannot_give_keeps_the_engine_from_starting,
        scenarios.a_llama_cpp_that_takes_no_stream_is_told,
        scenarios.without_a_shim_the_engine_serves_on_llama_cpps_own_streams,
    ],
    ids=lambda scenario: scenario.__name__,
)
def test_fake_driver(libraries: Path, tiny_model: Path, scenario: Callable[[], None]) -> None:
    run_scenario(libraries, scenario, TINY_MODEL=tiny_model)


@pytest.mark.parametrize(
    "scenario",
    [
        scenarios.lanes_on_four_devices_answer_from_one_queue,
        scenarios.a_lane_whose_gpu_fails_leaves_the_others_serving,
        scenarios.a_share_of_the_memory_is_taken_on_each_device,
    ],
    ids=lambda scenario: scenario.__name__,
)
def test_fake_driver_with_four_devices(libraries: Path, tiny_model: Path, scenario: Callable[[], None]) -> None:
    run_scenario(libraries, scenario, TINY_MODEL=tiny_model, FAKE_DEVICES=4)

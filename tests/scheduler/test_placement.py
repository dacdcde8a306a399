"""On which lane a request starts: where it ends first, as far as the lanes' speeds are known."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamalane.ids import PlanVersion, StepNumber
from llamalane.scheduler.growth import GrowthPredictor
from llamalane.scheduler.ledger import LaneLedger
from llamalane.scheduler.placement import STEP_TOKENS, Speeds, best_lane, kind_of
from llamalane.scheduler.priority import LEVELS
from llamalane.streams import Device, StepReport, StepTimes, StreamOptions
from tests.scheduler.building import RequestMaker

TOKEN, STEP = 0.001, 0.010
"""Seconds for a prompt token and for a step, on a lane of speed 1."""


@dataclass
class Region:
    """Holds the beginning of every prompt."""

    length: int

    def cached(self, tokens: Sequence[int], scope: str) -> int:
        return min(self.length, len(tokens) - 1)


class Lanes:
    """Lanes without threads, whose work and speeds the test sets."""

    def __init__(self) -> None:
        self._maker = RequestMaker()
        self.ledgers: list[LaneLedger] = []

    def add(
        self, *, cached: int = 0, prompts: Sequence[int] = (), outputs: int = 0, free: int = 4, **options: Any
    ) -> LaneLedger:
        """Add a lane that has yet to compute `prompts` of so many tokens, and is generating so many outputs."""
        name = f"lane-{len(self.ledgers)}"
        kind: dict[str, Any] = {"device": Device.GPU, "cores": (), "threads": 1} | options
        stream = SimpleNamespace(options=StreamOptions(name=name, places=free, **kind))
        lane: Any = SimpleNamespace(name=name, stream=stream, region=Region(cached), free=free)
        ledger = LaneLedger(lane, dict.fromkeys(LEVELS, 0.1))
        for length, generated in [*((length, 0) for length in prompts), *([(1, 1)] * outputs)]:
            request = self._maker.make(prompt="x" * length)
            request.since_join = generated
            ledger.running[request.id] = request
        self.ledgers.append(ledger)
        return ledger

    def best(self, length: int = 100, output: int = 10) -> LaneLedger | None:
        """Where a request starts that has so many prompt tokens and is thought to get so many more."""
        request = self._maker.make(prompt="x" * length, max_tokens=output)
        return best_lane(request, self.ledgers, GrowthPredictor())


def measure(ledger: LaneLedger, *, speed: float = 1.0, rows: int = 8) -> None:
    """Let a lane have computed a prompt, and a step with each number of outputs up to `rows`."""
    steps = [(512, 0, 512 * TOKEN), *((0, count, STEP) for count in range(1, rows + 1))]
    for number, (tokens, count, seconds) in enumerate(steps, 1):
        times = StepTimes(begin=0.0, decode=seconds / speed, sample=0.0, idle=0.0)
        report = StepReport("lane", StepNumber(number), PlanVersion(0), decode_rows=count, prefill_tokens=tokens)
        ledger.model.observe(replace(report, times=times))


def test_there_may_be_no_lane_or_only_one() -> None:
    lanes = Lanes()
    assert lanes.best() is None
    only = lanes.add(prompts=[1000])
    assert lanes.best() is only


@pytest.mark.parametrize("measured", [False, True])
def test_the_lane_with_less_work_is_taken(measured: bool) -> None:
    lanes = Lanes()
    busy, idle = lanes.add(prompts=[400]), lanes.add()
    if measured:
        measure(busy)
    assert lanes.best() is idle


@pytest.mark.parametrize("measured", [False, True])
def test_of_lanes_with_equal_work_that_which_holds_most_of_the_prompt_is_taken(measured: bool) -> None:
    lanes = Lanes()
    for cached in (0, 20, 60, 40):
        lanes.add(cached=cached)
    if measured:
        measure(lanes.ledgers[0])
    assert lanes.best() is lanes.ledgers[2]


def test_of_lanes_that_are_equal_that_with_most_free_places_is_taken() -> None:
    lanes = Lanes()
    for free in (2, 3, 1):
        lanes.add(free=free)
    assert lanes.best() is lanes.ledgers[1]


def test_a_long_prefix_is_worth_waiting_for_as_much_work_as_it_saves() -> None:
    for prompts, holder_is_best in ([80], True), ([100], False):
        lanes = Lanes()
        holder, other = lanes.add(cached=90, prompts=prompts), lanes.add()
        measure(holder)
        assert lanes.best() is (holder if holder_is_best else other)


def test_where_both_cost_the_same_the_prefix_decides() -> None:
    lanes = Lanes()
    other, holder = lanes.add(), lanes.add(cached=90, prompts=[90])
    measure(other)
    assert lanes.best() is holder


@pytest.mark.parametrize("speeds", [(1.0, 2.0), (0.25, 0.5)])
def test_before_any_is_measured_the_configured_speeds_count(speeds: tuple[float, float]) -> None:
    lanes = Lanes()
    slow, quick = (lanes.add(speed=speed) for speed in speeds)
    assert lanes.best() is quick
    assert Speeds(lanes.ledgers).token(kind_of(slow)) == 2 * Speeds(lanes.ledgers).token(kind_of(quick))


def test_before_any_is_measured_a_quick_lane_may_have_more_to_do() -> None:
    for prompts, quick_is_best in ([60], True), ([200], False):
        lanes = Lanes()
        slow, quick = lanes.add(speed=1), lanes.add(speed=2, prompts=prompts)
        assert lanes.best(output=1) is (quick if quick_is_best else slow)


def test_once_they_are_measured_the_configured_speeds_count_no_more() -> None:
    lanes = Lanes()
    praised, better = lanes.add(speed=8), lanes.add(speed=1)
    measure(praised, speed=1)
    measure(better, speed=2)
    assert lanes.best() is better


def test_what_one_lane_has_measured_tells_of_another_in_proportion() -> None:
    lanes = Lanes()
    known, unknown = lanes.add(speed=1), lanes.add(speed=4)
    measure(known, speed=3)
    speeds = Speeds(lanes.ledgers)
    assert speeds.token(kind_of(known)) == pytest.approx(TOKEN / 3)
    assert speeds.token(kind_of(unknown)) == pytest.approx(TOKEN / 12)
    assert speeds.step(kind_of(unknown), 2) == pytest.approx(STEP / 12)
    assert lanes.best() is unknown


def test_a_step_is_a_number_of_prompt_tokens_until_one_was_measured() -> None:
    lanes = Lanes()
    only = lanes.add()
    measure(only, rows=0)
    assert Speeds(lanes.ledgers).step(kind_of(only), 1) == pytest.approx(STEP_TOKENS * TOKEN)


@pytest.mark.parametrize("measured", [False, True])
def test_outputs_that_share_the_steps_count(measured: bool) -> None:
    lanes = Lanes()
    busy, idle = lanes.add(outputs=3), lanes.add()
    if measured:
        measure(busy, rows=1)  # more rows take longer then, as far as anybody knows
    assert lanes.best(output=100) is idle


KINDS: list[dict[str, Any]] = [
    {"gpu": "NVIDIA H200"},
    {"gpu": "NVIDIA L4"},
    {"gpu": "NVIDIA L4", "speed": 0.5},
    {"device": Device.CPU, "threads": 4},
    {"device": Device.CPU, "threads": 8},
]


@pytest.mark.parametrize("kind", KINDS)
def test_lanes_that_are_alike_do_not_differ_by_chance(kind: dict[str, Any]) -> None:
    lanes = Lanes()
    lucky, unlucky = lanes.add(**kind), lanes.add(**kind, free=5)
    measure(lucky, speed=1.3)
    measure(unlucky, speed=1.0)
    assert lanes.best() is unlucky, "it has more free places"


@pytest.mark.parametrize("pair", list(itertools.combinations(range(len(KINDS)), 2)))
def test_lanes_of_different_kinds_share_no_estimate(pair: tuple[int, int]) -> None:
    lanes = Lanes()
    for number in pair:
        lanes.add(**KINDS[number])
    slow, quick = lanes.ledgers
    measure(slow, speed=1.0)
    measure(quick, speed=1.3)
    assert lanes.best() is quick
    assert Speeds(lanes.ledgers).token(kind_of(slow)) == pytest.approx(TOKEN)


def test_a_gpu_lanes_threads_say_nothing_of_its_speed() -> None:
    lanes = Lanes()
    assert kind_of(lanes.add(gpu="NVIDIA L4", threads=5)) == kind_of(lanes.add(gpu="NVIDIA L4", threads=6))


def test_lanes_with_parts_or_priorities_of_their_own_are_not_alike() -> None:
    lanes = Lanes()
    streams = [(None, 0), (64, 0), (64, -5), (32, 0)]
    held = [SimpleNamespace(multiprocessors=part, priority=priority) for part, priority in streams]
    assert len({kind_of(lanes.add(gpu="NVIDIA H200", cuda=stream)) for stream in held}) == len(streams)


MEASURED_LANES = st.lists(
    st.tuples(
        st.integers(0, 150),  # cached
        st.lists(st.integers(1, 300), max_size=3),  # prompts
        st.integers(0, 4),  # outputs
        st.integers(1, 4),  # free
        st.sampled_from([0.5, 1.0, 2.0]),  # speed
    ),
    min_size=2,
    max_size=5,
)


@given(specifications=MEASURED_LANES, length=st.integers(1, 200), output=st.integers(0, 200))
def test_the_lane_is_the_one_where_the_request_ends_first(
    specifications: list[tuple[int, list[int], int, int, float]], length: int, output: int
) -> None:
    lanes = Lanes()
    expected = []
    for cached, prompts, outputs, free, speed in specifications:
        ledger = lanes.add(cached=cached, prompts=prompts, outputs=outputs, free=free, gpu=f"of speed {speed}")
        measure(ledger, speed=speed)
        held = min(cached, length - 1)
        tokens = sum(prompts) + length - held
        expected.append((Fraction(tokens) + 10 * output) / Fraction(speed))
    best = lanes.best(length, output)
    assert best is not None
    assert expected[lanes.ledgers.index(best)] == min(expected)

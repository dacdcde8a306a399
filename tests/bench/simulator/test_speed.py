"""Times of steps between measured passes, and files of them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamalane.bench.simulator.calibration import merge
from llamalane.bench.simulator.passes import Pass
from llamalane.bench.simulator.speed import Speed, SpeedPoint, load_speed, save_speed
from llamalane.errors import ConfigError

POINTS = [
    SpeedPoint(1, 1, 100, 0.010),
    SpeedPoint(1, 1, 1100, 0.012),
    SpeedPoint(4, 4, 400, 0.022),
    SpeedPoint(1, 16, 0, 0.039),
    SpeedPoint(1, 16, 10_000, 0.049),
    SpeedPoint(1, 64, 0, 0.135),
]
"""2 µs for each cell of a decoding row, 1 µs for one of a chunk."""


@pytest.mark.parametrize(
    ("sequences", "tokens", "cells", "seconds"),
    [
        (1, 1, 100, 0.010),  # measured
        (1, 1, 600, 0.011),  # longer than one that was measured, and shorter than another
        (1, 1, 5100, 0.020),
        (4, 4, 400, 0.022),
        (4, 4, 2400, 0.026),  # four rows were measured at one length only, so that one row's tells what length costs
        (2, 2, 0, 0.0136),  # a third of the way from 1 row to 4
        (8, 8, 0, 0.0364),  # straight on
        (1, 40, 0, 0.087),  # half-way between two chunks
        (1, 112, 1000, 0.232),
        (3, 16, 0, 0.039),  # a chunk is one whosever tokens are in it
    ],
)
def test_between_measured_passes_and_beyond_them_is_a_straight_line(
    sequences: int, tokens: int, cells: int, seconds: float
) -> None:
    assert Speed(POINTS).seconds(sequences, tokens, cells) == pytest.approx(seconds)


@given(
    sequences=st.integers(1, 16),
    tokens=st.integers(0, 200),
    cells=st.integers(0, 20_000),
    more=st.tuples(st.integers(0, 50), st.integers(0, 5000)),
)
def test_more_tokens_and_more_cells_take_longer(sequences: int, tokens: int, cells: int, more: tuple[int, int]) -> None:
    speed = Speed(POINTS)
    chunk = sequences + 1 + tokens
    assert speed.seconds(1, chunk, cells) <= speed.seconds(1, chunk + more[0], cells + more[1])
    assert speed.seconds(sequences, sequences, cells) <= speed.seconds(sequences, sequences, cells + more[1])


@given(
    passes=st.lists(st.builds(Pass, st.just(1), st.integers(1, 99), st.integers(0, 999)), min_size=1, max_size=4),
    outputs=st.integers(0, 8),
)
def test_a_step_takes_as_long_as_its_passes_its_outputs_and_what_lies_between(passes: list[Pass], outputs: int) -> None:
    speed = Speed(POINTS, between=0.001, output=0.0002)
    seconds = sum(speed.seconds(*one) for one in passes)
    assert speed.step(passes, outputs) / 1e12 == pytest.approx(seconds + 0.001 + 0.0002 * outputs)


@given(rows=st.integers(1, 16), cells=st.integers(0, 9999), more=st.integers(1, 999))
def test_a_step_of_decoding_rows_grows_equally_with_every_cell(rows: int, cells: int, more: int) -> None:
    speed = Speed(POINTS)
    step = speed.step([Pass(rows, rows, cells)], rows)
    assert speed.step([Pass(rows, rows, cells + more)], rows) == step + more * speed.growth


def test_a_step_takes_some_time_whatever_the_line_says() -> None:
    assert Speed([SpeedPoint(4, 4, 0, 0.01), SpeedPoint(8, 8, 0, 0.5)]).step([Pass(1, 1, 0)], 1) == 1


def test_lengths_cost_nothing_where_longer_ones_were_not_slower() -> None:
    assert Speed([SpeedPoint(1, 1, 10, 0.012), SpeedPoint(1, 1, 900, 0.010)]).growth == 0


def test_a_single_point_stands_for_every_pass() -> None:
    speed = Speed([SpeedPoint(8, 8, 0, 0.07)])
    assert speed.seconds(1, 1, 0) == speed.seconds(8, 512, 9000) == 0.07


def test_a_slower_machine_takes_longer_for_everything() -> None:
    speed = Speed(POINTS, between=0.001, output=0.0002)
    passes = [Pass(4, 4, 900), Pass(1, 30, 600)]
    assert speed.scaled(1.5).step(passes, 4) == pytest.approx(1.5 * speed.step(passes, 4))


def test_several_calibrations_are_taken_together() -> None:
    merged = merge([Speed(POINTS, between=0.001), Speed(POINTS).scaled(2.0), Speed(POINTS).scaled(9.0)])
    assert merged.seconds(1, 64, 0) == pytest.approx(2 * Speed(POINTS).seconds(1, 64, 0), rel=0.2)
    assert merged.between == 0.0


def test_points_survive_a_file(tmp_path: Path) -> None:
    file = tmp_path / "speed.json"
    speed = Speed(POINTS, between=0.001, output=0.0002)
    save_speed(speed, file, "a test")
    loaded = load_speed(file)
    assert (loaded.points, loaded.between, loaded.output) == (speed.points, 0.001, 0.0002)


POINT = str(asdict(SpeedPoint(1, 1, 0, 1.5)))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[]", "a list `points` is missing"),
        ("points: {}", "a list `points` is missing"),
        ("points: []", "no decoding row was measured"),
        ("points: [{sequences: 1, tokens: 2, cells: 3, seconds: 0.1}]", "no decoding row was measured"),
        ("points: [{sequences: 1, seconds: 0.1}]", "tokens"),
        ("points: [{decode_rows: 1, prompt_tokens: 0, seconds: 1}]", "earlier version.* --calibrate"),
        (f"points: [{POINT.replace('1.5', '-1')}]", "no time in seconds"),
        (f"points: [{POINT.replace('1.5', '0')}]", "is no pass"),
        (f"points: [{POINT.replace('1.5', 'soon')}]", "soon"),
        ("points: [{sequences: 2, tokens: 1, cells: 3, seconds: 0.1}]", "is no pass"),
        (f"points: [{POINT}]\nbetween: -1", "no time in seconds"),
        ("{", "cannot be read"),
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "speed.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=complaint):
        load_speed(file)

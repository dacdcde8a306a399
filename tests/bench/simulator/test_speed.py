"""Times of steps between measured points, and files of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from llamalane.bench.simulator.speed import Speed, SpeedPoint, load_speed, save_speed
from llamalane.errors import ConfigError

GRID = [
    SpeedPoint(0, 16, 0.020),
    SpeedPoint(0, 64, 0.050),
    SpeedPoint(1, 0, 0.010),
    SpeedPoint(1, 64, 0.060),
    SpeedPoint(4, 0, 0.016),
]

POINT = "{decode_rows: 1, prompt_tokens: 0, seconds: 1.5}"


def test_measured_steps_take_what_was_measured() -> None:
    speed = Speed(GRID)
    for point in GRID:
        assert speed.seconds(point.decode_rows, point.prompt_tokens) == pytest.approx(point.seconds)
        assert speed.step(point.decode_rows, point.prompt_tokens) == round(point.seconds * 1e9)


@pytest.mark.parametrize(
    ("rows", "tokens", "seconds"),
    [
        (0, 40, 0.035),  # half-way between two numbers of tokens
        (0, 112, 0.080),  # straight on
        (1, 32, 0.035),
        (2, 0, 0.012),  # a third of the way between 1 and 4 rows
        (7, 0, 0.022),
        (4, 64, 0.066),  # a single point, as steep as its neighbour
    ],
)
def test_between_measured_steps_and_beyond_them_is_a_straight_line(rows: int, tokens: int, seconds: float) -> None:
    assert Speed(GRID).seconds(rows, tokens) == pytest.approx(seconds)


def test_a_step_takes_some_time_whatever_the_line_says() -> None:
    assert Speed([SpeedPoint(1, 0, 0.01), SpeedPoint(8, 0, 0.5)]).step(0, 1) == 1


def test_a_single_point_stands_for_every_step() -> None:
    speed = Speed([SpeedPoint(8, 0, 0.07)])
    assert speed.seconds(1, 0) == speed.seconds(8, 512) == 0.07


def test_points_survive_a_file(tmp_path: Path) -> None:
    file = tmp_path / "speed.json"
    save_speed(Speed(GRID), file, "a test")
    assert load_speed(file).points == Speed(GRID).points


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[]", "a list `points` is missing"),
        ("points: {}", "a list `points` is missing"),
        ("points: []", "no step was measured"),
        ("points: [{decode_rows: 1, seconds: 0.1}]", "prompt_tokens"),
        (f"points: [{POINT.replace('1.5', '-1')}]", "is no step"),
        (f"points: [{POINT.replace('1.5', 'soon')}]", "soon"),
        (
            "points: [{decode_rows: 1, prompt_tokens: 0, seconds: 1}, {decode_rows: 1, prompt_tokens: 0, seconds: 2}]",
            "twice",
        ),
        ("{", "cannot be read"),
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "speed.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=complaint):
        load_speed(file)

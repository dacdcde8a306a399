"""The guard: what it takes for a change, what it keeps, and that everything is measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamalane.bench.guard import measures
from llamalane.bench.guard.command import tell_changes
from llamalane.bench.guard.measures import measure_all, yardstick
from llamalane.bench.guard.result import RESULTS, GuardResult, Series, last, load, save
from llamalane.bench.guard.verdict import Verdict, changes_markdown, compare
from llamalane.errors import ConfigError
from tests.bench.test_report import MACHINE

OTHER = dataclasses.replace(MACHINE, processor="Another processor")


def series(*values: float, unit: str = "µs", stick: float = 1.0) -> Series:
    return Series(unit=unit, more_is_better=not unit, values=values, yardstick=(stick,) * len(values))


def result(taken: str = "2026-01-01", machine: object = MACHINE, **given: Series) -> GuardResult:
    return GuardResult(taken=taken, machine=machine, model="tiny.gguf", series=given)  # type: ignore[arg-type]


def verdict(before: Series, after: Series, machine: object = MACHINE) -> Verdict:
    (change,) = compare(result(a=before), result(machine=machine, a=after))
    return change.verdict


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([10, 10.1, 10.2], [10.2, 10.3, 10.1], Verdict.SAME),
        ([10, 10.1, 10.2], [12, 12.1, 12.2], Verdict.WORSE),
        ([10, 10.1, 10.2], [8, 8.1, 8.2], Verdict.BETTER),
        ([8, 10, 12], [11, 12, 13], Verdict.SAME),
        ([10.0, 10.0], [10.4, 10.4], Verdict.SAME),
    ],
)
def test_only_what_moves_beyond_the_spread_of_both_sides_counts(
    before: Sequence[float], after: Sequence[float], expected: Verdict
) -> None:
    assert verdict(series(*before), series(*after)) is expected


def test_a_ratio_should_be_large() -> None:
    assert verdict(series(0.98, 0.97, unit=""), series(0.80, 0.81, unit="")) is Verdict.WORSE
    assert verdict(series(0.80, 0.81, unit=""), series(0.98, 0.97, unit="")) is Verdict.BETTER


def test_times_are_compared_in_yardsticks() -> None:
    quick, slow = series(10, 10, 10), series(15, 15, 15, stick=1.5)
    assert verdict(quick, slow) is verdict(slow, quick) is Verdict.SAME
    assert verdict(quick, series(15, 15, 15)) is Verdict.WORSE


def test_a_yardstick_that_was_disturbed_does_not_count() -> None:
    disturbed = Series(unit="µs", more_is_better=False, values=(10, 10, 10), yardstick=(1, 9, 1))
    assert verdict(series(10, 10, 10), disturbed) is Verdict.SAME
    assert verdict(series(8, 8, 8), disturbed) is Verdict.WORSE


def test_on_another_machine_only_large_changes_count() -> None:
    assert verdict(series(10, 10), series(12, 12)) is Verdict.WORSE
    assert verdict(series(10, 10), series(12, 12), OTHER) is Verdict.SAME
    assert verdict(series(10, 10), series(14, 14), OTHER) is Verdict.WORSE


@given(st.lists(st.floats(1, 1.04), min_size=2, max_size=7), st.lists(st.floats(1, 1.04), min_size=2, max_size=7))
def test_noise_is_never_news(before: list[float], after: list[float]) -> None:
    assert verdict(series(*before), series(*after)) is Verdict.SAME


def test_what_was_not_measured_before_or_is_no_more_is_told() -> None:
    before, after = result(old=series(1), both=series(1)), result(both=series(1), new=series(1, unit=""))
    assert [(change.name, change.verdict) for change in compare(before, after)] == [
        ("both", Verdict.SAME),
        ("new", Verdict.NEW),
        ("old", Verdict.GONE),
    ]
    table = changes_markdown(compare(before, after)).splitlines()
    assert table[2:] == [
        "| both | 1 µs | 1 µs | +0% | 10% | same |",
        "| new |  | 1 |  |  | new |",
        "| old | 1 µs |  |  |  | gone |",
    ]


def test_a_saved_result_is_read_as_it_was(tmp_path: Path) -> None:
    kept = result("2026-02-03T04-05-06Z", a=series(1.5, 2.5), b=series(0.9, unit=""))
    path = save(kept, tmp_path / "results")
    assert path.name == "2026-02-03T04-05-06Z.json"
    assert load(path) == kept


def test_the_newest_result_of_the_same_machine_comes_first(tmp_path: Path) -> None:
    assert last(tmp_path, result()) is None
    for taken, machine in (("2026-01", MACHINE), ("2026-02", MACHINE), ("2026-03", OTHER)):
        save(result(taken, machine, a=series(1)), tmp_path)
    found, elsewhere = last(tmp_path, result()), last(tmp_path, result(machine=OTHER))
    new = last(tmp_path, result(machine=dataclasses.replace(MACHINE, cores=64)))
    assert [one.taken if one else "" for one in (found, elsewhere, new)] == ["2026-02", "2026-03", "2026-03"]


@pytest.mark.parametrize("text", ["", "{}", '{"taken": 1}', "[1, 2]"])
def test_a_file_that_is_no_result_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ConfigError, match=r"a\.json holds no result"):
        last(tmp_path, result())


def test_committed_results_can_be_read() -> None:
    for path in RESULTS.glob("*.json"):
        assert load(path).series


def test_how_many_became_worse_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    before = result("2025", OTHER, a=series(1, 1), b=series(1, 1))
    assert tell_changes(before, result(a=series(2, 2), b=series(1, 1))) == 1
    out = capsys.readouterr().out
    assert "Compared with the result of 2025; Python takes 1.00 times as long" in out
    assert "That was another machine, so only large changes count: Another processor" in out
    assert "1 worse, 0 better beyond the noise." in out
    assert tell_changes(None, result(a=series(2))) == 0
    assert "There is no earlier result" in capsys.readouterr().out


def test_a_series_has_values_with_their_yardsticks() -> None:
    for values, sticks in (((), ()), ((1.0,), ()), ((1.0,), (1.0, 2.0))):
        with pytest.raises(ValueError, match="as many times of the yardstick"):
            Series(unit="", more_is_better=True, values=values, yardstick=sticks)


def test_everything_is_measured_in_turn(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {
        "REFUSALS": 5,
        "CHUNKS": 10,
        "QUEUE": (100, 20),
        "PREFIXES": (50, 20),
        "SIMULATED": (50, 2),
        "FLOOR_SECONDS": (0.5, 0.1),
        "IMPORT_ROUNDS": 1,
        "WARM_UP": 10,
    }
    for name, value in small.items():
        monkeypatch.setattr(measures, name, value)
    found = measure_all(tiny_model, 2, lambda _: None)
    assert {len(one.values) for one in found.values()} == {2}
    assert all(value > 0 for one in found.values() for value in one.values)
    assert {name for name, one in found.items() if one.more_is_better} == {"engine, share of the floor"}
    assert {"a refusal", "simulator, a request", "import llamalane", "choosing a token, greedy"} <= found.keys()


def test_the_yardstick_takes_time() -> None:
    assert yardstick() > 0

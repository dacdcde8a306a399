"""Reports of measurements that were made up, so that every number in them is known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llamalane.bench.comparison import Comparison, ComparisonPlan, Measurement
from llamalane.bench.machine import CpuShares, Machine
from llamalane.bench.peers import Peer, Setup
from llamalane.bench.report import comparison_markdown, to_json, urgent_markdown
from llamalane.bench.summary import Distribution, LoadSummary
from llamalane.bench.urgent import UrgentPlan, UrgentResult
from llamalane.bench.workload import Span, Workload

SETUP = Setup(model=Path("/models/small.gguf"), places=8, threads=2, cells=4096)
MACHINE = Machine(
    system="Linux",
    processor="A processor",
    cores=2,
    memory_gib=23.5,
    python="CPython 3.11",
    versions={"llamalane": "1.2.3"},
    load_average=(0.1, 0.2, 0.3),
    busy=0.05,
)


def load(rate: float | None, errors: dict[str, int] | None = None) -> LoadSummary:
    return LoadSummary(
        requests=10,
        cut=2,
        errors=errors or {},
        wrong_length=0,
        cached_share=0.0,
        window=30.0,
        tokens_per_second=rate,
        time_to_first_token=Distribution.of([0.5]),
        inter_token=Distribution.of([0.08]),
        end_to_end=Distribution.of([4.0]),
        generator_cpu=0.01,
    )


def comparison(
    rates: dict[int, list[tuple[float | None, float | None]]], build: str = "AVX2", others: float = 0.02
) -> Comparison:
    measurements = [
        Measurement(peer=peer, clients=clients, round=number, load=load(rate), cpu=CpuShares(1.9, others, 0.01))
        for clients, rounds in rates.items()
        for number, pair in enumerate(rounds, 1)
        for peer, rate in zip((Peer.LLAMALANE, Peer.XLLAMACPP), pair, strict=True)
    ]
    plan = ComparisonPlan(
        setup=SETUP,
        workload=Workload(),
        chat=False,
        clients=tuple(rates),
        rounds=3,
        seconds=30,
        warm_up=10,
        seed=7,
    )
    return Comparison(
        plan=plan,
        machine=MACHINE,
        builds={"llamalane": build, "xllamacpp": "AVX2"},
        measurements=tuple(measurements),
    )


def rows(markdown: str) -> list[list[str]]:
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in markdown.splitlines()
        if line.startswith("| ") and "---" not in line
    ]


def test_ratios_are_taken_within_rounds() -> None:
    result = comparison({8: [(90.0, 100.0), (60.0, 50.0), (99.0, 100.0)]})
    assert result.ratios(8) == [0.9, 1.2, 0.99]
    assert result.median_rate(Peer.XLLAMACPP, 8) == 100.0


def test_each_load_has_a_row_and_each_round_another() -> None:
    markdown = comparison_markdown(comparison({8: [(90.0, 100.0), (60.0, 50.0), (99.0, 100.0)], 32: [(10.0, 20.0)]}))
    table = rows(markdown)
    assert table[1] == ["8", "90.0", "100.0", "0.990", "0.900 to 1.200", "0.50", "0.50", "80", "80"]
    assert table[2][:5] == ["32", "10.0", "20.0", "0.500", "0.500 to 0.500"]
    assert table[4] == ["8", "1", "90.0", "100.0", "0.900", "0.02", "0.01", "0.010", "0"]
    assert len(table) == 3 + 1 + 4
    assert "seed 7" in markdown


def test_a_peer_without_tokens_gives_no_ratio() -> None:
    result = comparison({8: [(90.0, None)]})
    assert result.ratios(8) == []
    assert rows(comparison_markdown(result))[1][3] == "n/a"


@pytest.mark.parametrize(("build", "told"), [("AVX2", False), ("AVX512", True)])
def test_different_builds_are_pointed_out(build: str, told: bool) -> None:
    assert ("builds of llama.cpp differ" in comparison_markdown(comparison({8: [(1, 1)]}, build))) is told


@pytest.mark.parametrize(("others", "told"), [(0.1, False), (0.3, True)])
def test_disturbed_runs_are_pointed_out(others: float, told: bool) -> None:
    markdown = comparison_markdown(comparison({8: [(1, 1)]}, others=others))
    assert ("Disturbed: in 2 of 2 runs" in markdown) is told


def test_json_holds_everything() -> None:
    value = json.loads(to_json(comparison({8: [(90.0, 100.0)]})))
    assert value["plan"]["setup"]["model"] == "/models/small.gguf"
    assert [one["peer"] for one in value["measurements"]] == ["llamalane", "xllamacpp"]
    assert value["measurements"][0]["load"]["time_to_first_token"]["median"] == 0.5


def test_urgent_requests_are_told_as_multiples_of_the_idle_median() -> None:
    plan = UrgentPlan(
        peer=Peer.LLAMALANE,
        setup=SETUP,
        reserve=1,
        clients=24,
        background=Workload(),
        urgent=Workload(words=Span(12, 12), output_tokens=Span(16, 16)),
        tries=3,
        seed=7,
    )
    result = UrgentResult(
        plan=plan,
        machine=MACHINE,
        build="AVX2",
        idle=(0.1, 0.2, 0.9),
        loaded=(0.3, 0.2, 0.8),
        background=load(60.0),
    )
    assert result.median_ratio == pytest.approx(1.5)
    assert result.worst_ratio == pytest.approx(4.0)
    markdown = urgent_markdown(result)
    assert rows(markdown)[1:] == [["idle", "3", "0.200", "0.900"], ["loaded", "3", "0.300", "0.800"]]
    assert "1.50× in the median, 4.00× at worst" in markdown

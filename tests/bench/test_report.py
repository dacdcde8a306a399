"""Reports of measurements that were made up, so that every number in them is known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llamalane.bench.machine import Machine
from llamalane.bench.peers.kinds import Peer, Setup
from llamalane.bench.report import to_json, urgent_markdown
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


def summary(rate: float | None, errors: dict[str, int] | None = None) -> LoadSummary:
    return LoadSummary(
        requests=10,
        cut=2,
        rejections=0,
        errors=errors or {},
        wrong_length=0,
        uncounted=0,
        cached_share=0.0,
        window=30.0,
        tokens_per_second=rate,
        requests_per_second=0.5,
        goodput=None,
        time_to_first_token=Distribution.of([0.5]),
        time_per_output_token=Distribution.of([0.07]),
        inter_token=Distribution.of([0.08]),
        end_to_end=Distribution.of([4.0]),
        with_retries=None,
        time_to_refusal=None,
        generator_cpu=0.01,
    )


def rows(markdown: str) -> list[list[str]]:
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in markdown.splitlines()
        if line.startswith("| ") and "---" not in line
    ]


def urgent_result() -> UrgentResult:
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
    return UrgentResult(
        plan=plan,
        machine=MACHINE,
        build="AVX2",
        idle=(0.1, 0.2, 0.9),
        loaded=(0.3, 0.2, 0.8),
        background=summary(60.0),
    )


def test_urgent_requests_are_told_as_multiples_of_the_idle_median() -> None:
    result = urgent_result()
    assert result.median_ratio == pytest.approx(1.5)
    assert result.worst_ratio == pytest.approx(4.0)
    markdown = urgent_markdown(result)
    assert rows(markdown)[1:] == [["idle", "3", "0.200", "0.900"], ["loaded", "3", "0.300", "0.800"]]
    assert "1.50× in the median, 4.00× at worst" in markdown


def test_json_holds_everything() -> None:
    value = json.loads(to_json(urgent_result()))
    assert value["plan"]["setup"]["model"] == "/models/small.gguf"
    assert value["plan"]["peer"] == "llamalane"
    assert value["background"]["time_to_first_token"]["median"] == 0.5
    assert value["idle"] == [0.1, 0.2, 0.9]

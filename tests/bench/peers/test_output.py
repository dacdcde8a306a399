"""Reports of comparisons that were made up: Markdown, JSON, HTML and pictures."""

from __future__ import annotations

import base64
import dataclasses
import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from llamalane.bench.latencies import Distribution
from llamalane.bench.peers.output import comparison_markdown, write_folder
from llamalane.bench.peers.plan import Comparison
from llamalane.bench.summary import Objective
from tests.bench.peers.made_up import NONE, arriving, clients, comparison, measurement, rates, with_times
from tests.bench.test_report import summary


def table(markdown: str, heading: str) -> list[list[str]]:
    """Return the rows of the table below a heading, without the titles."""
    part = markdown.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in part.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_throughput_and_ratios_have_a_row_for_each_load_and_server() -> None:
    rounds = rates({8: [(90.0, 100.0), (60.0, 50.0), (99.0, 100.0)], 32: [(10.0, 20.0)]})
    markdown = comparison_markdown(comparison(rounds))
    assert table(markdown, "Throughput") == [
        ["8 clients", "llamalane", "90.0", "0.50", "n/a", "0", "0"],
        ["8 clients", "xllamacpp", "100.0", "0.50", "n/a", "0", "0"],
        ["32 clients", "llamalane", "10.0", "0.50", "n/a", "0", "0"],
        ["32 clients", "xllamacpp", "20.0", "0.50", "n/a", "0", "0"],
    ]
    ratios = table(markdown, "Ratios")
    assert ratios[0] == ["8 clients", "xllamacpp", "output tokens/s", "0.990", "0.945 to 1.095", "0.900 to 1.200"]
    assert ratios[1][:4] == ["8 clients", "xllamacpp", "TTFT p50", "1.000"]
    assert "seed 7" in markdown
    assert "Build of" not in markdown
    assert len(table(markdown, "Rounds")) == 8


def test_latencies_are_those_of_all_rounds() -> None:
    runs = [measurement("llamalane", clients(8), number, *with_times(1.0, [number])) for number in (1, 2, 3)]
    (row,) = table(comparison_markdown(comparison(runs)), "Latency")
    assert row[:6] == ["8 clients", "llamalane", "3", "2.000", "2.800", "2.980"]
    assert row[-3:] == ["20.000", "28.000", "29.800"]
    assert row[6:12] == ["n/a"] * 6


def test_a_single_server_has_no_ratios() -> None:
    markdown = comparison_markdown(comparison([measurement("llamalane", clients(8), 1, summary(1.0))]))
    assert "## Ratios" not in markdown
    assert "## Classes" not in markdown
    assert "## Refusals" not in markdown


def test_refusals_are_told_when_there_are_some() -> None:
    refused = dataclasses.replace(summary(9.0), rejections=30)
    times = dataclasses.replace(NONE, time_to_refusal=(0.002, 0.004), with_retries=(20.0,))
    runs = [
        measurement("llamalane", clients(200), 1, refused, times),
        measurement("xllamacpp", clients(200), 1, summary(9.0)),
    ]
    assert table(comparison_markdown(comparison(runs)), "Refusals") == [
        ["200 clients", "llamalane", "30", "10", "3.0", "3.8", "4.0", "20.00", "20.00", "20.00"],
        ["200 clients", "xllamacpp", "0", "10", "n/a", "n/a", "n/a", "n/a", "n/a", "n/a"],
    ]


def test_classes_are_told_by_themselves() -> None:
    urgent = dataclasses.replace(summary(1.0), time_to_first_token=Distribution.of([0.25]))
    runs = [
        measurement(name, clients(8), 1, summary(9.0), classes={"batch": summary(8.0), "interactive": urgent})
        for name in ("llamalane", "xllamacpp")
    ]
    rows = table(comparison_markdown(comparison(runs)), "Classes")
    assert [row[1:3] for row in rows] == [
        ["llamalane", "batch"],
        ["llamalane", "interactive"],
        ["xllamacpp", "batch"],
        ["xllamacpp", "interactive"],
    ]
    assert rows[1][3:] == ["10", "0.50", "0.250", "0.250", "70.0", "4.000"]


def test_each_round_tells_the_processor_and_the_memory() -> None:
    runs = [
        measurement("llamalane", clients(8), 1, summary(9.0)),
        measurement("vllm", clients(8), 1, summary(9.0), remote=True),
    ]
    markdown = comparison_markdown(comparison(runs))
    ours, theirs = table(markdown, "Rounds")
    assert ours[-5:] == ["1.90", "0.010", "0.02", "0.01", "100, 110, 120"]
    assert theirs[-5:] == ["n/a", "0.010", "0.02", "0.01", "n/a"]
    assert "set up by others: vllm" in markdown


@pytest.mark.parametrize(("build", "told"), [("AVX2", False), ("AVX512", True)])
def test_different_builds_are_pointed_out(build: str, told: bool) -> None:
    builds = {"llamalane": build, "xllamacpp": "AVX2"}
    markdown = comparison_markdown(comparison(rates({8: [(1, 1)]}), builds))
    assert ("builds of llama.cpp differ" in markdown) is told
    assert f"Build of llamalane: {build}." in markdown


def test_versions_of_servers_elsewhere_are_no_builds() -> None:
    runs = [
        measurement("llamalane", clients(8), 1, summary(9.0)),
        measurement("vllm", clients(8), 1, summary(9.0), remote=True),
    ]
    markdown = comparison_markdown(comparison(runs, {"llamalane": "AVX2", "vllm": "version 1"}))
    assert "builds of llama.cpp differ" not in markdown


@pytest.mark.parametrize(("others", "told"), [(0.1, False), (0.3, True)])
def test_disturbed_runs_are_pointed_out(others: float, told: bool) -> None:
    markdown = comparison_markdown(comparison(rates({8: [(1, 1)]}, others=others)))
    assert ("Disturbed: in 2 of 2 runs" in markdown) is told


def test_a_server_elsewhere_disturbs_nobody() -> None:
    runs = [measurement("vllm", clients(8), 1, summary(9.0), remote=True, others=1.5)]
    assert "Disturbed" not in comparison_markdown(comparison(runs))


class Page(HTMLParser):
    """Gathers what a test asks of a page: its tags, the sources of its pictures, and what it would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.pictures: list[str] = []
        self.loads: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if tag == "img" and name == "src":
                self.pictures.append(value or "")
            elif name in ("src", "href"):
                self.loads.append(value or "")

    def handle_data(self, data: str) -> None:
        self.text += data


def poisson() -> Comparison:
    goodput = dataclasses.replace(summary(9.0), goodput=0.4)
    runs = [
        measurement(name, arriving(rate), number, goodput, with_times(9.0, [0.1, 0.5])[1])
        for rate in (1.0, 2.0)
        for number in (1, 2)
        for name in ("llamalane", "<vllm>")
    ]
    return comparison(runs, objective=Objective(first_token=0.5, inter_token=0.2))


def test_a_folder_holds_numbers_tables_pictures_and_a_page(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    files = write_folder(poisson(), tmp_path / "new" / "folder")
    assert all(file.is_file() for file in files)
    named = {file.name: file for file in files}
    pictures = {name: file.read_bytes() for name, file in named.items() if file.suffix == ".png"}
    assert pictures.keys() == {"throughput.png", "first-token.png", "end-to-end.png", "ratios.png", "goodput.png"}
    assert all(data.startswith(b"\x89PNG") for data in pictures.values())

    value = json.loads(named["report.json"].read_text())
    assert [one["round"] for one in value["measurements"]] == [1, 1, 2, 2] * 2
    assert value["measurements"][0]["latencies"]["time_to_first_token"] == [0.1, 0.5]
    assert value["plan"]["objective"] == {"first_token": 0.5, "inter_token": 0.2}

    markdown = named["report.md"].read_text()
    assert all(f"]({name})" in markdown for name in pictures)
    assert "Objective: the first token within 0.5 s, 0.2 s for each further one in the mean." in markdown

    page = Page(named["report.html"].read_text())
    assert page.loads == [], "nothing is loaded from elsewhere"
    held = [base64.b64decode(source.removeprefix("data:image/png;base64,")) for source in page.pictures]
    assert held == [named[name].read_bytes() for name in named if name.endswith(".png")]
    assert page.tags.count("table") == 4
    assert "<vllm>" in page.text, "names are shown as they are"
    assert "vllm" not in page.tags


def test_loads_without_answers_are_drawn_all_the_same(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    empty = dataclasses.replace(
        summary(None), time_to_first_token=None, end_to_end=None, time_per_output_token=None, inter_token=None
    )
    runs = [measurement(name, clients(1), 1, empty) for name in ("llamalane", "xllamacpp")]
    assert write_folder(comparison(runs), tmp_path)

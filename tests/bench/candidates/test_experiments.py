"""The experiments, each for a round on a tiny model: that both ways are measured, and what is told beside."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from llamalane.bench.candidates import Candidate
from llamalane.bench.candidates.command import chosen_candidates, measure_candidates
from llamalane.bench.candidates.comparison import CandidatesPlan, Comparison, take_turns
from llamalane.bench.candidates.decoding import ROWS, STEPS, DecodingRows, context_options, decoding_rows
from llamalane.bench.candidates.event_loop_process import compare_processes
from llamalane.bench.candidates.experiments import EXPERIMENTS
from llamalane.bench.candidates.free_threading import compare_interpreters
from llamalane.bench.candidates.graph_reuse import SWITCH, compare_places
from llamalane.bench.candidates.kv_types import compare_kv_types
from llamalane.bench.candidates.one_pass import CHUNKS, compare_passes
from llamalane.bench.candidates.prompt_lookup import compare_lookups
from llamalane.bench.candidates.row_order import compare_row_orders
from llamalane.bench.candidates.threads_sampling import CHAINS, compare_threads
from llamalane.errors import ConfigError, LlamalaneError
from llamalane.ids import SequenceId
from llamalane.streams.llama import Model, ModelOptions


@pytest.fixture
def plan(tiny_model: Path) -> CandidatesPlan:
    return CandidatesPlan(model=tiny_model, threads=1, rounds=1, seed=1)


def check(comparisons: Sequence[Comparison], count: int, rounds: int = 1) -> None:
    assert len({one.situation for one in comparisons}) == len(comparisons) == count
    for one in comparisons:
        assert len(one.now) == len(one.other) == rounds
        assert min(*one.now, *one.other) > 0


def lengths(rows: DecodingRows) -> list[int]:
    return [rows.context.length(SequenceId(sequence)) for sequence in rows.sequences]


def test_every_candidate_has_its_experiment() -> None:
    assert list(EXPERIMENTS) == list(Candidate)


def test_whoever_came_last_in_a_round_comes_first_in_the_next() -> None:
    order: list[str] = []

    def way(name: str) -> float:
        order.append(name)
        return float(len(order))

    now, other = take_turns(lambda: way("now"), lambda: way("other"), rounds=2)
    assert order == ["now", "other", "other", "now", "now", "other"]
    assert (now, other) == ((4, 5), (3, 6)), "the first round does not count"


@pytest.mark.parametrize("partitioned", [False, True])
def test_what_steps_compute_is_taken_back(tiny_model: Path, partitioned: bool) -> None:
    options = context_options(3, 1, partitioned=partitioned)
    with (
        Model(ModelOptions(path=tiny_model)) as model,
        decoding_rows(model, options, length=20, seed=1) as rows,
    ):
        rows.step([2, 0], chunk=5, chunk_of=1)
        rows.step([2])
        assert lengths(rows) == [21, 25, 22]
        rows.rewind()
        assert lengths(rows) == [20, 20, 20]
        rows.grow(30)
        assert lengths(rows) == [30, 30, 30]


def test_sampling_is_measured_for_each_chain_vocabulary_and_number_of_rows(plan: CandidatesPlan) -> None:
    check(list(compare_threads(plan, counts=(2, 9), vocabularies=(None, 3000))), count=4 * len(CHAINS))


def test_orders_of_rows_are_measured_in_both_layouts(plan: CandidatesPlan) -> None:
    check(list(compare_row_orders(plan)), count=6)


def test_it_is_told_how_often_graphs_were_used_again(plan: CandidatesPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SWITCH, raising=False)
    comparisons = list(compare_places(plan))
    check(comparisons, count=4)
    kept, changed = zip(*(one.remarks["graphs used again"].split(" and ") for one in comparisons), strict=True)
    assert all(int(text.split(" of ")[0]) > STEPS // 2 for text in kept), "rows that keep their places use them again"
    assert changed[2:] == (f"0 of {STEPS}",) * 2, "where other sequences have a part, and where it is switched off"


def test_chunks_are_measured_in_one_pass_and_in_two(plan: CandidatesPlan) -> None:
    check(list(compare_passes(plan)), count=2 * len(CHUNKS))


def test_types_of_cells_are_measured_over_several_lengths(plan: CandidatesPlan) -> None:
    check(list(compare_kv_types(plan, types=("f16", "bf16"), lengths=(20, 40))), count=4)


def test_lookups_are_measured_for_each_kind_of_prompt(plan: CandidatesPlan) -> None:
    comparisons = list(compare_lookups(plan, counts=(1, 2)))
    check(comparisons, count=4)
    assert all("accepted" in one.remarks for one in comparisons)


def test_a_model_without_a_chat_template_is_asked_all_the_same(tiny_models: dict[str, Path]) -> None:
    plan = CandidatesPlan(model=tiny_models["dense"], threads=1, rounds=1, seed=1)
    check(list(compare_lookups(plan, counts=(1,))), count=2)


def test_events_reach_another_process(plan: CandidatesPlan) -> None:
    comparisons = list(compare_processes(plan, counts=(3,), steps=5))
    check(comparisons, count=1)
    assert all(" + " in text for text in comparisons[0].remarks.values())


def test_interpreters_are_compared_alone_and_beside_a_thread(plan: CandidatesPlan) -> None:
    comparisons = list(compare_interpreters(replace(plan, python=Path(sys.executable)), seconds=0.02))
    check(comparisons, count=2)
    assert comparisons[1].remarks["GIL of the other"] == "on"


def test_an_interpreter_that_cannot_compute_says_why(plan: CandidatesPlan, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--python"):
        list(compare_interpreters(plan))
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no numpy here >&2\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(LlamalaneError, match="no numpy here"):
        list(compare_interpreters(replace(plan, python=broken), seconds=0.01))
    with pytest.raises(LlamalaneError, match="No such file"):
        list(compare_interpreters(replace(plan, python=tmp_path / "missing"), seconds=0.01))


def test_other_interpreters_are_measured_only_when_one_is_named() -> None:
    everything = [one for one in Candidate if one is not Candidate.FREE_THREADING]
    assert chosen_candidates(None, None) == everything
    assert chosen_candidates([], Path("python")) == list(Candidate)
    assert chosen_candidates([Candidate.KV_TYPES, Candidate.ROW_ORDER, Candidate.KV_TYPES], None) == [
        Candidate.KV_TYPES,
        Candidate.ROW_ORDER,
    ]


def test_each_situation_is_told_as_soon_as_it_was_measured(plan: CandidatesPlan) -> None:
    told: list[str] = []
    (findings,) = measure_candidates(plan, {Candidate.ROW_ORDER: EXPERIMENTS[Candidate.ROW_ORDER]}, told.append)
    assert findings.candidate is Candidate.ROW_ORDER
    assert len(told) == len(findings.comparisons) == 6
    assert told[0].startswith("row-order, a part for each, shuffled: ")
    assert ROWS == 8, "docs/performance.md tells of so many"

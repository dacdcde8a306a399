"""Numbers of runs that are small enough to be counted by hand."""

from __future__ import annotations

import dataclasses

import pytest

from llamalane.bench.reading import Record
from llamalane.bench.summary import Distribution, Window, summarize

GOOD = Record(
    client=0,
    started=10.0,
    ended=14.0,
    token_times=(11.0, 12.0, 14.0),
    asked_tokens=3,
    output_tokens=3,
    prompt_tokens=8,
    cached_tokens=2,
    status=200,
    error=None,
)
CUT = dataclasses.replace(GOOD, started=15.0, ended=None, token_times=(17.0, 18.0), output_tokens=None)
FAILED = dataclasses.replace(GOOD, started=11.0, token_times=(), output_tokens=None, status=429, error="full")


def test_percentiles_of_a_hundred_and_one_values() -> None:
    distribution = Distribution.of(float(value) for value in reversed(range(101)))
    assert distribution == Distribution(count=101, mean=50, median=50, p90=90, p95=95, p99=99, worst=100)


def test_percentiles_between_two_values() -> None:
    distribution = Distribution.of([1.0, 3.0])
    assert distribution is not None
    assert distribution.median == 2.0
    assert distribution.p90 == pytest.approx(2.8)


def test_nothing_has_no_distribution() -> None:
    assert Distribution.of([]) is None


def test_a_run_is_summed_up() -> None:
    summary = summarize([GOOD, CUT, FAILED], Window(10.0, 20.0), generator_cpu=0.25)
    assert (summary.requests, summary.cut) == (2, 1)
    assert summary.errors == {"full": 1}
    assert summary.wrong_length == 0
    assert summary.cached_share == 0.25
    assert summary.tokens_per_second == pytest.approx(5 / 10)
    assert summary.time_to_first_token is not None
    assert summary.time_to_first_token.median == 1.5  # of 1 and 2: the cut request's first token came
    assert summary.inter_token is not None
    assert (summary.inter_token.count, summary.inter_token.worst) == (3, 2.0)
    assert summary.end_to_end is not None
    assert (summary.end_to_end.count, summary.end_to_end.median) == (1, 4.0)
    assert summary.generator_cpu == 0.25


def test_only_the_window_counts_for_throughput() -> None:
    summary = summarize([GOOD, CUT], Window(12.0, 18.0), generator_cpu=0.0)
    assert summary.tokens_per_second == pytest.approx(3 / 6)  # at 12, 14 and 17
    assert summary.time_to_first_token is not None
    assert summary.time_to_first_token.count == 1  # only the second started in it


def test_pieces_of_several_tokens_count_as_the_usage_says() -> None:
    coarse = dataclasses.replace(GOOD, asked_tokens=6, output_tokens=6)
    summary = summarize([coarse], Window(10.0, 13.0), generator_cpu=0.0)
    assert summary.tokens_per_second == pytest.approx(2 * 2 / 3)


def test_answers_of_another_length_are_counted() -> None:
    short = dataclasses.replace(GOOD, output_tokens=2)
    silent = dataclasses.replace(GOOD, output_tokens=None)
    assert summarize([GOOD, short, silent], Window(10.0, 20.0), generator_cpu=0.0).wrong_length == 2


def test_a_run_without_a_window_has_no_throughput() -> None:
    assert summarize([GOOD], Window(20.0, 14.0), generator_cpu=0.0).tokens_per_second is None

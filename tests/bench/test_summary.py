"""Numbers of runs that are small enough to be counted by hand."""

from __future__ import annotations

import dataclasses

import pytest

from llamalane.bench.reading import Record
from llamalane.bench.summary import Distribution, Objective, Window, summarize

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
    asked=10.0,
)
CUT = dataclasses.replace(GOOD, started=15.0, ended=None, token_times=(17.0, 18.0), output_tokens=None)
FAILED = dataclasses.replace(GOOD, started=11.0, token_times=(), output_tokens=None, status=500, error="broken")
REFUSED = dataclasses.replace(FAILED, started=12.0, ended=12.25, status=429, error="full", retry_after=3.0)


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
    assert (summary.errors, summary.rejections) == ({"broken": 1}, 0)
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
    assert summary.time_to_first_token.count == 1  # only the second one's came in it


def test_pieces_of_several_tokens_count_as_the_usage_says() -> None:
    coarse = dataclasses.replace(GOOD, asked_tokens=6, output_tokens=6)
    summary = summarize([coarse], Window(10.0, 13.0), generator_cpu=0.0)
    assert summary.tokens_per_second == pytest.approx(2 * 2 / 3)


def test_answers_of_another_length_are_counted() -> None:
    short = dataclasses.replace(GOOD, output_tokens=2)
    silent = dataclasses.replace(GOOD, output_tokens=None)
    summary = summarize([GOOD, short, silent], Window(10.0, 20.0), generator_cpu=0.0)
    assert (summary.wrong_length, summary.uncounted) == (1, 1)


def test_a_run_without_a_window_has_no_throughput() -> None:
    assert summarize([GOOD], Window(20.0, 14.0), generator_cpu=0.0).tokens_per_second is None


def test_the_time_per_token_is_a_mean_over_the_tokens_after_the_first() -> None:
    slow = dataclasses.replace(GOOD, asked_tokens=7, output_tokens=7)  # seven tokens in three pieces, from 11 to 14
    summary = summarize([GOOD, slow, CUT], Window(10.0, 20.0), generator_cpu=0.0)
    assert summary.time_per_output_token is not None
    assert summary.time_per_output_token.count == 2  # one that was cut has no mean yet
    assert summary.time_per_output_token.worst == pytest.approx(3 / 2)
    assert summary.time_per_output_token.mean == pytest.approx((3 / 2 + 3 / 6) / 2)


def test_pieces_stand_for_tokens_where_the_server_counts_none() -> None:
    silent = dataclasses.replace(GOOD, output_tokens=None)
    assert silent.tokens == 3
    assert silent.time_per_output_token == pytest.approx(1.5)
    assert dataclasses.replace(GOOD, token_times=(11.0,), output_tokens=1).time_per_output_token is None


def test_refused_requests_are_no_errors_and_have_times_of_their_own() -> None:
    again = dataclasses.replace(GOOD, asked=8.0)
    summary = summarize([again, REFUSED], Window(10.0, 20.0), generator_cpu=0.0)
    assert (summary.requests, summary.rejections, summary.errors) == (1, 1, {})
    assert summary.time_to_refusal is not None
    assert (summary.time_to_refusal.count, summary.time_to_refusal.median) == (1, 0.25)
    assert summary.end_to_end is not None
    assert summary.end_to_end.median == 4.0
    assert summary.with_retries is not None
    assert (summary.with_retries.count, summary.with_retries.median) == (1, 6.0)


@pytest.mark.parametrize(
    ("first", "inter", "good"),
    [(None, None, 2), (1.0, None, 1), (0.9, None, 0), (None, 1.5, 1), (None, 2.0, 2), (1.0, 1.4, 0)],
)
def test_goodput_counts_what_met_the_objective(first: float | None, inter: float | None, good: int) -> None:
    slow = dataclasses.replace(GOOD, token_times=(12.0, 13.0, 16.0), ended=16.0)  # 2 s to the first, then 2 s each
    objective = Objective(first_token=first, inter_token=inter)
    summary = summarize([GOOD, slow, CUT, FAILED, REFUSED], Window(10.0, 20.0), 0.0, objective)
    assert summary.requests_per_second == pytest.approx(2 / 10)
    assert summary.goodput == pytest.approx(good / 10)


def test_only_answers_that_end_in_the_window_count_for_requests_per_second() -> None:
    summary = summarize([GOOD], Window(10.0, 13.0), 0.0, Objective())
    assert (summary.requests_per_second, summary.goodput) == (0.0, 0.0)
    assert summarize([GOOD], Window(10.0, 13.0), 0.0).goodput is None


def test_latencies_count_when_they_come_to_their_end() -> None:
    summary = summarize([GOOD, CUT], Window(13.0, 17.5), generator_cpu=0.0)
    assert summary.end_to_end is not None
    assert summary.end_to_end.median == 4.0  # it started before the window, and ended in it
    assert summary.time_to_first_token is not None
    assert (summary.time_to_first_token.count, summary.time_to_first_token.median) == (1, 2.0)
    assert summary.inter_token is not None
    assert (summary.inter_token.count, summary.inter_token.median) == (1, 2.0)  # from 12 to 14; 17 to 18 ends later

"""What arrives: as often and as long as it should, within limits, and the same again for the same seed."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest

from llamalane.bench.simulator.gaps import POISSON, Gamma, OnOff, Process
from llamalane.bench.simulator.lengths import Between, Lengths, LogNormal, Quantiles, Scaled, Zipf, mean_of
from llamalane.bench.simulator.published import WORKLOADS, WorkloadOptions, chat
from llamalane.bench.simulator.replay import Replay
from llamalane.bench.simulator.request import SimulatedRequest, seconds
from llamalane.errors import ConfigError

every_workload = pytest.mark.parametrize("name", WORKLOADS)


def drawn(lengths: Lengths, count: int = 20_000) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.asarray(lengths.draw(np.random.default_rng(1), count)).reshape(count)


def key(request: SimulatedRequest) -> tuple[object, ...]:
    return request.id, request.arrival, request.level, request.prompt_tokens, request.output_tokens, request.tenant


def all_turns(request: SimulatedRequest | None) -> list[SimulatedRequest]:
    turns = []
    while request is not None:
        turns.append(request)
        request = request.next_turn
    return turns


@every_workload
def test_a_workload_is_the_same_for_the_same_seed(name: str) -> None:
    source = WORKLOADS[name](WorkloadOptions(tenants=2))
    first, again, other = (list(map(key, source.requests(3.0, seed, 200))) for seed in (1, 1, 2))
    assert first == again
    assert first != other


@every_workload
@pytest.mark.parametrize("limit", [64, 2048])
def test_requests_come_in_order_and_fit_the_limit(name: str, limit: int) -> None:
    source = WORKLOADS[name](WorkloadOptions(limit=limit))
    requests = list(source.requests(5.0, 1, 300))
    assert [request.arrival for request in requests] == sorted(request.arrival for request in requests)
    for request in (turn for first in requests for turn in all_turns(first)):
        assert request.prompt_tokens >= 1
        assert request.output_tokens >= 1
        assert request.prompt_tokens + request.output_tokens <= limit


@every_workload
def test_as_many_requests_arrive_as_are_wanted(name: str) -> None:
    turns = sum(len(all_turns(first)) for first in WORKLOADS[name](WorkloadOptions()).requests(5.0, 1, 500))
    assert 500 <= turns < 600


@every_workload
def test_mean_lengths_are_those_of_the_requests(name: str) -> None:
    source = WORKLOADS[name](WorkloadOptions())
    requests = [turn for first in source.requests(5.0, 1, 20_000) for turn in all_turns(first)]
    prompt, output = source.mean_lengths()
    assert np.mean([request.prompt_tokens for request in requests]) == pytest.approx(prompt, rel=0.05)
    assert np.mean([request.output_tokens for request in requests]) == pytest.approx(output, rel=0.1)


@pytest.mark.parametrize("process", [POISSON, Gamma(3.0), OnOff(on=2, off=5)], ids=["poisson", "gamma", "on-off"])
def test_a_process_keeps_its_rate(process: Process) -> None:
    *_, last = islice(process.times(np.random.default_rng(1), 50.0), 100_000)
    assert 100_000 / last == pytest.approx(50.0, rel=0.1)


@pytest.mark.parametrize("burstiness", [0.5, 1.0, 3.0])
def test_gamma_gaps_are_as_bursty_as_wanted(burstiness: float) -> None:
    gaps = np.diff(list(islice(Gamma(burstiness).times(np.random.default_rng(1), 10.0), 50_000)))
    assert gaps.std() / gaps.mean() == pytest.approx(burstiness, rel=0.05)


def test_a_process_that_is_off_is_silent() -> None:
    times = list(islice(OnOff(on=1, off=9).times(np.random.default_rng(1), 100.0), 20_000))
    busy = len({int(time * 2) for time in times}) / (times[-1] * 2)  # half seconds in which anything came
    assert busy < 0.25


@pytest.mark.parametrize(
    ("lengths", "lowest", "highest"),
    [
        (Between(3, 9), 3, 9),
        (LogNormal(50, 0.8, 400), 1, 400),
        (Zipf(1.2, 0.0, 100), 1, 100),
        (Quantiles((0, 1), (5, 50)), 5, 50),
        (Scaled(Between(1, 9), 3, 20), 3, 20),
    ],
    ids=["between", "log-normal", "zipf", "quantiles", "scaled"],
)
def test_lengths_stay_in_their_range(lengths: Lengths, lowest: int, highest: int) -> None:
    values = drawn(lengths)
    assert values.min() >= lowest
    assert values.max() <= highest
    assert mean_of(lengths) == pytest.approx(float(values.mean()), rel=0.05)


def test_zipf_lengths_fall_with_their_power() -> None:
    counts = Counter(drawn(Zipf(2.0, 0.0, 1000), 100_000).tolist())
    assert counts[1] / counts[2] == pytest.approx(4.0, rel=0.1)
    assert counts[1] / counts[4] == pytest.approx(16.0, rel=0.15)


def test_log_normal_lengths_have_their_median() -> None:
    assert np.median(drawn(LogNormal(80, 1.0, 100_000))) == pytest.approx(80, rel=0.05)


@pytest.mark.parametrize(("name", "prompt", "output"), [("azure-conversation", 1020, 129), ("azure-code", 1469, 13)])
def test_published_medians(name: str, prompt: int, output: int) -> None:
    requests = list(WORKLOADS[name](WorkloadOptions(limit=20_000)).requests(5.0, 1, 10_000))
    assert np.median([request.prompt_tokens for request in requests]) == pytest.approx(prompt, rel=0.05)
    assert np.median([request.output_tokens for request in requests]) == pytest.approx(output, rel=0.05)


def test_each_turn_repeats_what_was_said_before() -> None:
    turns = max((all_turns(first) for first in chat(WorkloadOptions()).requests(1.0, 1, 500)), key=len)
    assert len(turns) > 3
    for before, after in pairwise(turns):
        assert after.session == before.session
        assert after.prompt_tokens > before.prompt_tokens + before.output_tokens


LOG = [
    {"arrival": 12.0, "level": 1, "tenant": "a", "prompt_tokens": 5, "output_tokens": 7},
    {"arrival": 10.0, "prompt_tokens": 9, "output_tokens": 3},
    {"arrival": 11.0, "prompt_tokens": 9, "output_tokens": 2, "session": "talk"},
]


def write_log(path: Path, *lines: object) -> Path:
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")
    return path


def test_a_log_is_replayed_in_order_at_the_wanted_rate(tmp_path: Path) -> None:
    replay = Replay(write_log(tmp_path / "log.jsonl", *LOG, ""), limit=100)
    assert replay.rate == 1.0
    assert replay.mean_lengths() == pytest.approx((23 / 3, 4.0))
    requests = list(replay.requests(2.0, seed=0, count=10))
    assert [seconds(request.arrival) for request in requests] == [0.0, 0.5, 1.0]
    assert [request.level for request in requests] == [3, 3, 1]
    assert [request.output_tokens for request in requests] == [3, 2, 7]
    assert [request.session for request in requests] == ["", "talk", ""]
    assert len(list(replay.requests(2.0, seed=0, count=2))) == 2


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ({"arrival": 1, "prompt_tokens": 5}, "'output_tokens' is missing"),
        ({"arrival": 1, "prompt_tokens": 0, "output_tokens": 1}, "at least 1"),
        ({"arrival": 1, "prompt_tokens": 90, "output_tokens": 11}, "more than 100 tokens"),
        ({"arrival": 1, "prompt_tokens": 9, "output_tokens": 1, "level": 6}, "level must be from 1 to 5"),
        ("[]", "a JSON object"),
        ("{", "this is no request"),
    ],
)
def test_a_line_of_a_log_that_is_no_request_is_told(tmp_path: Path, line: object, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as caught:
        Replay(write_log(tmp_path / "log.jsonl", LOG[0], line), limit=100)
    assert caught.value.line == 2


def test_an_empty_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no request"):
        Replay(write_log(tmp_path / "log.jsonl"), limit=100)

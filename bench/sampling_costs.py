"""What it costs to choose a token, beside llama.cpp's own samplers."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from llamalane.bench.document import spread
from llamalane.bench.llama_chain import LlamaChain
from llamalane.bench.real_logits import Rows, real_rows, stretched, with_nucleus
from llamalane.streams import SamplingParameters
from llamalane.streams.llama import Candidates, Model, ModelOptions, Sampler

VOCABULARIES = (None, 262_144)
"""The model's own vocabulary, and one as large as Gemma's."""
ROWS = 16
"""As in a step of so many rows, each chooses a token from one row of logits after the other; then comes the other."""
STEPS = 4
"""So many of these make a round."""
HISTORY = 64


@dataclass(frozen=True, slots=True)
class Case:
    """A chain of samplers, and on what: logits scaled so that `nucleus` tokens reach top-p, None for as they are."""

    name: str
    fields: dict[str, Any]
    nucleus: int | None = None


_PLAIN: dict[str, Any] = {"temperature": 0.8, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
_PENALTIES: dict[str, Any] = {"repeat_penalty": 1.1, "presence_penalty": 0.2, "frequency_penalty": 0.1}
CASES = (
    Case("greedy", {"temperature": 0.0}),
    Case("top_k 40", {**_PLAIN, "top_k": 40}),
    Case("top_k 40, top_p 0.95, min_p 0.05 (the default)", {}),
    Case("the same, and penalties", _PENALTIES),
    Case("top_p 0.95, few tokens reach it", {**_PLAIN, "top_p": 0.95}, nucleus=10),
    Case("top_p 0.95, 143 tokens", {**_PLAIN, "top_p": 0.95}, nucleus=143),
    Case("top_p 0.95, 1,535 tokens", {**_PLAIN, "top_p": 0.95}, nucleus=1535),
    Case("top_p 0.95, half of all tokens", {**_PLAIN, "top_p": 0.95}, nucleus=25_000),
    Case("top_p 0.95, min_p 0.05", {**_PLAIN, "top_p": 0.95, "min_p": 0.05}),
    Case("min_p 0.05", {**_PLAIN, "min_p": 0.05}),
    Case("no cut", _PLAIN),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingCosts:
    """Seconds to choose a token: each round's median.

    Attributes:
        ours: llamalane's.
        chain: llama.cpp's samplers.
        list: what llama.cpp does before: list all tokens with their logits. Here numpy does it, about as quickly.
    """

    case: str
    vocabulary: int
    ours: tuple[float, ...]
    chain: tuple[float, ...]
    list: tuple[float, ...]


def measure_sampling(
    model: Path,
    *,
    rounds: int = 5,
    seed: int = 1,
    vocabularies: Sequence[int | None] = VOCABULARIES,
    cases: Sequence[Case] = CASES,
    tell: Callable[[str], None] = lambda line: None,
) -> list[SamplingCosts]:
    """Measure every case, after a round that does not count; the two take turns step by step."""
    costs = []
    real = real_rows(model, ROWS, seed)
    with Model(ModelOptions(path=model, weights=False)) as loaded:
        for size in vocabularies:
            rows = real if size is None else stretched(real, size, seed)
            for case in cases:
                made = rows if case.nucleus is None else with_nucleus(rows, case.fields["top_p"], case.nucleus)
                costs.append(measure_case(loaded, case, made, rounds))
                tell(_line(costs[-1]))
    return costs


def sampling_markdown(costs: Sequence[SamplingCosts]) -> str:
    """Return the costs as a table: medians over the rounds, with the least and the most."""
    lines = [
        "| tokens | samplers | llamalane, µs | llama.cpp, µs | of which listing | multiple |",
        "| --- | --- | --- | --- | --- | --- |",
        *(_line(cost) for cost in costs),
        "",
        "Each number: median (least to most) over the rounds, of each round's median. The multiple is llama.cpp's time "
        "as one of llamalane's, within a round.",
    ]
    return "\n".join(lines)


def _line(cost: SamplingCosts) -> str:
    theirs = [chain + list_ for chain, list_ in zip(cost.chain, cost.list, strict=True)]
    ratios = [their / our for their, our in zip(theirs, cost.ours, strict=True)]
    cells = [f"{cost.vocabulary:,}", cost.case, _cell(cost.ours), _cell(theirs), _cell(cost.list)]
    return "| " + " | ".join(cells) + f" | {spread(ratios, '.1f')} |"


def _cell(seconds: Sequence[float]) -> str:
    return spread([1e6 * value for value in seconds], ".0f")


def measure_case(model: Model, case: Case, rows: Rows, rounds: int) -> SamplingCosts:
    """Measure one case, after a round that does not count; the two take turns step by step."""
    size = rows.shape[1]
    parameters = SamplingParameters(seed=1, **case.fields)
    history = np.random.default_rng(1).integers(0, size, HISTORY).tolist()
    sampler = Sampler(model.vocabulary, parameters, choice=0, history=history, window=HISTORY)
    candidates = Candidates(size)
    found = []
    with LlamaChain(size, parameters, history) as chain:
        for _ in range(rounds + 1):
            ours, theirs = [], []
            for step in range(STEPS):
                ours += [_choose(sampler, candidates, row, index) for index, row in enumerate(rows, step * len(rows))]
                theirs += [_choose_by_chain(chain, row) for row in rows]
            listed, chosen = zip(*theirs, strict=True)
            found.append([statistics.median(times) for times in (ours, chosen, listed)])
    sampler.close()
    columns = [tuple(column) for column in zip(*found[1:], strict=True)]
    return SamplingCosts(case=case.name, vocabulary=size, ours=columns[0], chain=columns[1], list=columns[2])


def _choose(sampler: Sampler, candidates: Candidates, row: Rows, index: int) -> float:
    begin = time.perf_counter()
    sampler.choose(row, index, candidates)
    return time.perf_counter() - begin


def _choose_by_chain(chain: LlamaChain, row: Rows) -> tuple[float, float]:
    begin = time.perf_counter()
    chain.fill(row)
    listed = time.perf_counter()
    chain.accept(chain.choose())
    return listed - begin, time.perf_counter() - listed

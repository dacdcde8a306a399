"""Whether the tokens of one step's rows are chosen in less time on two threads."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from llamalane.bench.candidates.comparison import CandidatesPlan, Comparison, Experiment, take_turns
from llamalane.bench.real_logits import Rows, real_rows, stretched
from llamalane.streams import SamplingParameters
from llamalane.streams.llama import Candidates, Model, ModelOptions, Sampler

COUNTS = (8, 16, 64)
VOCABULARIES = (None, 262_144)
"""The model's own vocabulary, and one as large as Gemma's."""
CHAINS = {
    "greedy": SamplingParameters(seed=1, temperature=0.0),
    "top_k 40 (the default)": SamplingParameters(seed=1),
    "top_p 0.95 without top_k": SamplingParameters(seed=1, top_k=0, min_p=0.0),
}
PROMPTS = 8
"""The model computes logits for so many prompts; further rows are copies."""
STEPS = 12
"""So many steps make a round; their median counts."""

Share = Sequence[tuple[Sampler, Rows]]


def compare_threads(
    plan: CandidatesPlan, counts: Sequence[int] = COUNTS, vocabularies: Sequence[int | None] = VOCABULARIES
) -> Iterator[Comparison]:
    """Measure every chain, for several numbers of rows and both vocabularies."""
    real = real_rows(plan.model, PROMPTS, plan.seed)
    with (
        Model(ModelOptions(path=plan.model, weights=False)) as model,
        ThreadPoolExecutor(1, thread_name_prefix="sampling") as helper,
    ):
        for size in vocabularies:
            rows = real if size is None else stretched(real, size, plan.seed)
            for name, parameters in CHAINS.items():
                for count in counts:
                    many = np.tile(rows, (-(-count // PROMPTS), 1))[:count]
                    yield _compare(model, helper, plan.rounds, name, parameters, many)


def _compare(
    model: Model, helper: ThreadPoolExecutor, rounds: int, name: str, parameters: SamplingParameters, rows: Rows
) -> Comparison:
    count, size = rows.shape
    samplers = [Sampler(model.vocabulary, parameters, choice=row, history=(), window=64) for row in range(count)]
    work = list(zip(samplers, rows, strict=True))
    own, other = work[: count // 2], work[count // 2 :]
    here, there = Candidates(size), Candidates(size)

    def one_thread(index: int) -> None:
        _choose(work, index, here)

    def two_threads(index: int) -> None:
        rest = helper.submit(_choose, other, index, there)
        _choose(own, index, here)
        rest.result()

    now, candidate = take_turns(lambda: _median_ms(one_thread), lambda: _median_ms(two_threads), rounds)
    return Comparison(situation=f"{count} rows of {size:,} tokens, {name}", now=now, other=candidate)


def _choose(share: Share, index: int, candidates: Candidates) -> None:
    for sampler, row in share:
        sampler.choose(row, index, candidates)


def _median_ms(step: Callable[[int], None]) -> float:
    times = []
    for index in range(STEPS):
        begin = time.perf_counter()
        step(index)
        times.append(time.perf_counter() - begin)
    return 1e3 * statistics.median(times)


THREADS_SAMPLING = Experiment(
    title="the tokens of one step chosen on two threads",
    unit="ms a step",
    now="one thread",
    other="two threads",
    method=(
        "Logits of the model, and such stretched to a vocabulary of 262,144 tokens; on two threads, the lane's has one "
        f"half of the rows and a helper, which is there already, the other. {STEPS} steps a round, their median. "
        "llama.cpp does nothing meanwhile."
    ),
    compare=compare_threads,
)

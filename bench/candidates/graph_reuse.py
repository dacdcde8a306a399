"""Whether it matters that rows keep their places, so that llama.cpp can use the graph of the step before again."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from llamalane.bench.candidates.comparison import CandidatesPlan, Comparison, Experiment, Way, take_turns
from llamalane.bench.candidates.decoding import ROWS, STEPS, DecodingRows, context_options, decoding_rows
from llamalane.streams.llama import ContextOptions, Model, ModelOptions

LENGTH = 60
SWITCH = "LLAMA_GRAPH_REUSE_DISABLE"
"""llama.cpp looks for it in the environment when it makes a context."""

Order = Callable[[], Sequence[int]]


def compare_places(plan: CandidatesPlan) -> Iterator[Comparison]:
    """Measure rows that keep their places beside such that do not, and graphs used again beside none."""
    shared = context_options(ROWS, plan.threads, partitioned=False)
    parts = context_options(ROWS, plan.threads, partitioned=True)
    generator = random.Random(plan.seed)
    most = range(ROWS - 1)
    either = itertools.cycle([range(1, ROWS), most])

    def shuffled() -> Sequence[int]:
        return generator.sample(range(ROWS), ROWS)

    with Model(ModelOptions(path=plan.model)) as model:

        def compare(situation: str, options: ContextOptions, now: Sequence[int], other: Order) -> Comparison:
            with decoding_rows(model, options, length=LENGTH, seed=plan.seed) as rows:
                return _take_turns(situation, plan, (rows, lambda: now), (rows, other))

        yield compare("shared cells, another order", shared, range(ROWS), shuffled)
        yield compare("shared cells, the first or the last sits out", shared, most, lambda: next(either))
        yield compare("a part for each, the first or the last sits out", parts, most, lambda: next(either))
        yield _compare_without_reuse(model, plan, shared)


def _compare_without_reuse(model: Model, plan: CandidatesPlan, options: ContextOptions) -> Comparison:
    """Measure the same steps in a context that never uses a graph again."""
    with ExitStack() as stack:
        now = stack.enter_context(decoding_rows(model, options, length=LENGTH, seed=plan.seed))
        with _environment(SWITCH, "1"):
            other = stack.enter_context(decoding_rows(model, options, length=LENGTH, seed=plan.seed))
        return _take_turns(
            "shared cells, no graph used again", plan, (now, lambda: now.sequences), (other, lambda: other.sequences)
        )


def _take_turns(
    situation: str, plan: CandidatesPlan, now: tuple[DecodingRows, Order], other: tuple[DecodingRows, Order]
) -> Comparison:
    reused: list[list[int]] = [[], []]

    def way(rows: DecodingRows, order: Order, found: list[int]) -> Way:
        def measure() -> float:
            before = rows.context.reused_graphs
            median = rows.steps_ms(order)
            found.append(rows.context.reused_graphs - before)
            return median

        return measure

    ours, theirs = take_turns(way(*now, reused[0]), way(*other, reused[1]), plan.rounds)
    steps = STEPS * plan.rounds
    shares = " and ".join(f"{sum(found[1:])} of {steps}" for found in reused)
    return Comparison(situation=situation, now=ours, other=theirs, remarks={"graphs used again": shares})


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


GRAPH_REUSE = Experiment(
    title="rows that keep their places from step to step",
    unit="ms a step",
    now="the same places",
    other="changed in each step",
    method=(
        f"{ROWS} decoding rows over {LENGTH} tokens each, or {ROWS - 1} of them, {STEPS} steps a round. "
        "Last, a context that builds its graph anew in every step: the most that using it again can bring."
    ),
    compare=compare_places,
)

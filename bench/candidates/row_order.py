"""What it costs when rows come in another order than that of their sequences."""

from __future__ import annotations

import random
from collections.abc import Iterator

from llamalane.bench.candidates.comparison import CandidatesPlan, Comparison, Experiment, take_turns
from llamalane.bench.candidates.decoding import ROWS, STEPS, context_options, decoding_rows
from llamalane.streams.llama import Model, ModelOptions

LENGTH = 60


def compare_row_orders(plan: CandidatesPlan) -> Iterator[Comparison]:
    """Measure steps of ordered and of shuffled rows, where sequences have parts of their own and where not."""
    with Model(ModelOptions(path=plan.model)) as model:
        for partitioned in (True, False):
            yield _compare(model, plan, partitioned)


def _compare(model: Model, plan: CandidatesPlan, partitioned: bool) -> Comparison:
    generator = random.Random(plan.seed)
    options = context_options(ROWS, plan.threads, partitioned=partitioned)
    with decoding_rows(model, options, length=LENGTH, seed=plan.seed) as rows:
        now, other = take_turns(
            lambda: rows.steps_ms(lambda: rows.sequences),
            lambda: rows.steps_ms(lambda: generator.sample(rows.sequences, ROWS)),
            plan.rounds,
        )
    situation = "a part of the cells for each sequence" if partitioned else "cells shared by all"
    return Comparison(situation=situation, now=now, other=other)


ROW_ORDER = Experiment(
    title="rows in the order of their sequences",
    unit="ms a step",
    now="in order",
    other="shuffled",
    method=f"{ROWS} decoding rows over {LENGTH} tokens each, shuffled anew for each of {STEPS} steps a round.",
    compare=compare_row_orders,
)

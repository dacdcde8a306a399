"""What it costs when rows come in another order than that of their sequences."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

from llamalane.bench.candidates.comparison import CandidatesPlan, Comparison, Experiment, take_turns
from llamalane.bench.candidates.decoding import ROWS, STEPS, DecodingRows, context_options, decoding_rows
from llamalane.streams.llama import Model, ModelOptions

LENGTH = 60


def compare_row_orders(plan: CandidatesPlan) -> Iterator[Comparison]:
    """Measure rows in order beside shuffled ones, and sequences with gaps between them, in both layouts."""
    generator = random.Random(plan.seed)
    everybody = range(ROWS)
    with Model(ModelOptions(path=plan.model)) as model:
        for partitioned in (True, False):
            layout = "a part for each" if partitioned else "shared cells"
            options = context_options(ROWS, plan.threads, partitioned=partitioned)
            with decoding_rows(model, options, length=LENGTH, seed=plan.seed) as rows:

                def compare(
                    situation: str, now: Sequence[int], other: Callable[[], Sequence[int]], rows: DecodingRows = rows
                ) -> Comparison:
                    ours, theirs = take_turns(
                        lambda: rows.steps_ms(lambda: now), lambda: rows.steps_ms(other), plan.rounds
                    )
                    return Comparison(situation=situation, now=ours, other=theirs)

                yield compare(f"{layout}, shuffled", everybody, lambda: generator.sample(everybody, ROWS))
                yield compare(f"{layout}, one gap among 7", everybody[:7], lambda: [*everybody[:3], *everybody[4:]])
                yield compare(f"{layout}, every second of 8", everybody[:4], lambda: everybody[::2])


ROW_ORDER = Experiment(
    title="rows in the order of their sequences, and sequences without gaps between them",
    unit="ms a step",
    now="consecutive",
    other="not so",
    method=(
        f"{ROWS} decoding rows over {LENGTH} tokens each, shuffled anew for each of {STEPS} steps a round; and fewer "
        "rows, which are the first sequences, or have idle ones between them."
    ),
    compare=compare_row_orders,
)

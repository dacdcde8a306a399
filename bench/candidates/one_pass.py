"""Whether a prompt's chunk is computed with the decoding rows, or in a pass of its own."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from llamalane.bench.candidates.comparison import CandidatesPlan, Comparison, Experiment, Way, take_turns
from llamalane.bench.candidates.decoding import ROWS, DecodingRows, context_options, decoding_rows
from llamalane.streams.llama import Model, ModelOptions

LENGTH = 60
CHUNKS = (8, 32, 128)
STEPS = 3
"""So many steps make a round; then they are taken back."""


def compare_passes(plan: CandidatesPlan) -> Iterator[Comparison]:
    """Measure both in each layout, for chunks of several sizes."""
    with Model(ModelOptions(path=plan.model)) as model:
        for partitioned in (True, False):
            options = context_options(ROWS + 1, plan.threads, partitioned=partitioned)
            with decoding_rows(model, options, length=LENGTH, seed=plan.seed) as rows:
                for chunk in CHUNKS:
                    yield _compare(rows, plan, chunk, "a part for each" if partitioned else "shared cells")


def _compare(rows: DecodingRows, plan: CandidatesPlan, chunk: int, layout: str) -> Comparison:
    *decoding, prompt = rows.sequences

    def together() -> float:
        return rows.step(decoding, chunk=chunk, chunk_of=prompt)

    def apart() -> float:
        return rows.step([], chunk=chunk, chunk_of=prompt) + rows.step(decoding)

    def median_ms(step: Way) -> float:
        rows.rewind()
        return 1e3 * statistics.median([step() for _ in range(STEPS)])

    now, other = take_turns(lambda: median_ms(together), lambda: median_ms(apart), plan.rounds)
    return Comparison(situation=f"a chunk of {chunk}, {layout}", now=now, other=other)


ONE_PASS = Experiment(
    title="a prompt's chunk in the step of the decoding rows",
    unit="ms",
    now="one pass",
    other="two passes",
    method=(
        f"{ROWS} decoding rows over {LENGTH} tokens each, and a chunk of another sequence's prompt: in one call of "
        f"`llama_decode`, and in two; the median of {STEPS} steps a round."
    ),
    compare=compare_passes,
)

"""Whether steps are quicker or slower where KV cells take half the memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from llamalane.bench.candidates.comparison import CandidatesPlan, Comparison, Experiment, take_turns
from llamalane.bench.candidates.decoding import ROWS, STEPS, context_options, decoding_rows
from llamalane.streams.llama import Model, ModelOptions

LENGTHS = (60, 400, 1000)
CELLS = 1280
TYPES = ("f16", "q8_0")


def compare_kv_types(
    plan: CandidatesPlan, types: Sequence[str] = TYPES, lengths: Sequence[int] = LENGTHS
) -> Iterator[Comparison]:
    """Measure both types in either layout, over contexts of several lengths."""
    with Model(ModelOptions(path=plan.model)) as model:
        for partitioned in (True, False):
            yield from _compare(model, plan, types, lengths, partitioned)


def _compare(
    model: Model, plan: CandidatesPlan, types: Sequence[str], lengths: Sequence[int], partitioned: bool
) -> Iterator[Comparison]:
    with ExitStack() as stack:
        sixteen, eight = (
            stack.enter_context(
                decoding_rows(
                    model,
                    context_options(
                        ROWS,
                        plan.threads,
                        cells=CELLS,
                        partitioned=partitioned,
                        key_type=name,
                        value_type=name,
                        flash_attention="on",
                    ),
                    length=0,
                    seed=plan.seed,
                )
            )
            for name in types
        )
        for length in lengths:
            sixteen.grow(length)
            eight.grow(length)
            now, other = take_turns(
                lambda: sixteen.steps_ms(lambda: sixteen.sequences),
                lambda: eight.steps_ms(lambda: eight.sequences),
                plan.rounds,
            )
            layout = "a part for each" if partitioned else "shared cells"
            yield Comparison(situation=f"{length:,} tokens in each, {layout}", now=now, other=other)


KV_TYPES = Experiment(
    title="KV cells in q8_0",
    unit="ms a step",
    now="f16",
    other="q8_0",
    method=f"{ROWS} decoding rows, flash attention on, {STEPS} steps a round, in two contexts that take turns.",
    compare=compare_kv_types,
)

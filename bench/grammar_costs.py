"""What grammars cost the rows that follow them, and those beside them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llamalane.bench.document import spread
from llamalane.scheduler import (
    Engine,
    EngineConfig,
    Grammar,
    LaneConfig,
    ModelConfig,
    SamplingParameters,
    StreamsConfig,
)

ROWS = 8
CONSTRAINED = (0, 4, 8)
TOKENS = 96
SCHEMA: dict[str, Any] = {
    "type": "array",
    "minItems": 1000,  # so that no output ends before its last token
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "age": {"type": "integer", "minimum": 0},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["name", "age", "tags"],
        "additionalProperties": False,
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarCosts:
    """Steps of `ROWS` rows of which `constrained` follow a JSON schema: one number for each round.

    Attributes:
        tokens_per_second: of all rows together.
        sample_ms: milliseconds of each step in which tokens are chosen, waiting for masks included.
    """

    constrained: int
    tokens_per_second: tuple[float, ...]
    sample_ms: tuple[float, ...]


async def measure_grammars(
    model: Path,
    *,
    rounds: int = 5,
    tokens: int = TOKENS,
    constrained: Sequence[int] = CONSTRAINED,
    tell: Callable[[str], None] = lambda line: None,
) -> list[GrammarCosts]:
    """Measure each number of constrained rows once in every round, after a round that does not count.

    Every row has `tokens` tokens, drawn at temperature 0.8; a round's rows are submitted together.
    """
    config = EngineConfig(models=[ModelConfig(path=model)], streams=StreamsConfig(lanes=[LaneConfig(places=ROWS)]))
    found: dict[int, list[tuple[float, float]]] = {count: [] for count in constrained}
    async with Engine(config) as engine:
        for number in range(rounds + 1):
            for count in constrained:
                speed, sampling = await _run(engine, count, tokens, seed=number)
                if number:
                    found[count].append((speed, sampling))
                    tell(f"{count} of {ROWS} rows: {speed:.0f} tokens/s, {sampling:.2f} ms of sampling a step")
    return [
        GrammarCosts(
            constrained=count,
            tokens_per_second=tuple(speed for speed, _ in values),
            sample_ms=tuple(sampling for _, sampling in values),
        )
        for count, values in found.items()
    ]


def grammars_markdown(costs: Sequence[GrammarCosts]) -> str:
    """Return the costs as a table: medians over the rounds, with the least and the most."""
    lines = [
        f"| rows with a grammar, of {ROWS} | tokens/s | sampling in a step, ms |",
        "| --- | --- | --- |",
        *(
            f"| {cost.constrained} | {spread(cost.tokens_per_second, '.0f')} | {spread(cost.sample_ms, '.2f')} |"
            for cost in costs
        ),
        "",
        "Each number: median (least to most) over the rounds.",
    ]
    return "\n".join(lines)


async def _run(engine: Engine, constrained: int, tokens: int, seed: int) -> tuple[float, float]:
    before = engine.stats().lanes[0]
    begin = time.perf_counter()
    handles = []
    for row in range(ROWS):
        grammar = Grammar.json_schema(SCHEMA) if row < constrained else None
        sampling = SamplingParameters(seed=seed, max_tokens=tokens, ignore_eos=True, grammar=grammar)
        handles.append(await engine.submit(f"Some people, number {row}, as JSON:", sampling=sampling))
    written = sum([len((await handle).tokens) for handle in handles])
    seconds = time.perf_counter() - begin
    after = engine.stats().lanes[0]
    return written / seconds, 1000 * (after.sample_seconds - before.sample_seconds) / (after.steps - before.steps)

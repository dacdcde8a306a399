"""The two layouts of KV memory side by side, each on an engine in this process, in several situations."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import anyio

from llamalane.bench.document import spread
from llamalane.kvcache import Layout
from llamalane.scheduler import Engine, EngineConfig, SamplingParameters

FIRST_TOKEN_ID = 5
"""Those before may have a meaning of their own."""


@dataclass(frozen=True, slots=True)
class Clients:
    """So many clients in a closed loop, each with as many requests; lengths are in tokens.

    Prompts begin with `shared` tokens that all of a round have in common.
    """

    count: int
    requests: int
    prompt: int
    output: int
    shared: int = 0


@dataclass(frozen=True, slots=True)
class Situation:
    """What is asked of an engine with so many places and KV cells."""

    name: str
    places: int
    cells: int
    clients: tuple[Clients, ...]


SITUATIONS = (
    Situation("8 short chats, nothing shared", 8, 8192, (Clients(8, 3, 60, 48),)),
    Situation("3,000 tokens beside 6 short chats", 8, 32768, (Clients(1, 1, 3000, 64), Clients(6, 2, 60, 48))),
    Situation("8 chats with one system prompt of 600 tokens", 8, 8192, (Clients(8, 2, 620, 32, shared=600),)),
    Situation("one of 4,000 tokens beside thirty of 100", 31, 8192, (Clients(1, 1, 3968, 32), Clients(30, 1, 68, 32))),
)


@dataclass(frozen=True, slots=True)
class Run:
    """One round: generated tokens a second, and the median seconds to the first token."""

    tokens_per_second: float
    first_token: float


@dataclass(slots=True)
class Comparison:
    """A situation's rounds in each layout; of one that cannot hold it, why."""

    situation: Situation
    runs: dict[Layout, list[Run]] = field(default_factory=lambda: {layout: [] for layout in Layout})
    refused: dict[Layout, str] = field(default_factory=dict)

    @property
    def ratios(self) -> list[float]:
        """Each round's tokens a second paged, as a multiple of those partitioned."""
        pairs = zip(self.runs[Layout.PAGED], self.runs[Layout.PARTITIONED], strict=False)
        return [paged.tokens_per_second / partitioned.tokens_per_second for paged, partitioned in pairs]


async def measure_layouts(
    model: Path,
    *,
    threads: int,
    rounds: int,
    seed: int,
    tell: Callable[[str], None],
    situations: Sequence[Situation] = SITUATIONS,
) -> list[Comparison]:
    """Measure every situation in both layouts in turn, with new random prompts in each round."""
    comparisons = []
    for situation in situations:
        comparison = Comparison(situation)
        async with AsyncExitStack() as stack:
            engines = {
                layout: await stack.enter_async_context(Engine(_config(model, situation, layout, threads)))
                for layout in Layout
            }
            for number in range(rounds):
                for layout in list(Layout) if number % 2 else list(Layout)[::-1]:
                    await _measure(comparison, layout, engines[layout], f"{seed}/{number}")
                    tell(f"{situation.name}, round {number + 1}, {layout.value}: {_told(comparison, layout)}")
        comparisons.append(comparison)
    return comparisons


def layouts_markdown(comparisons: Sequence[Comparison]) -> str:
    """Return a table that tells which layout is faster for what."""
    lines = [
        "| situation | places, KV cells | paged, tokens/s | partitioned, tokens/s | paged as a multiple "
        "| first token, s: paged | partitioned | faster |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for one in comparisons:
        situation, ratios = one.situation, one.ratios
        rates = [_median(one, layout, lambda run: run.tokens_per_second, 1) for layout in Layout]
        waits = [_median(one, layout, lambda run: run.first_token, 2) for layout in Layout]
        ratio = spread(ratios, ".2f") if ratios else "—"
        cells = [situation.name, f"{situation.places}, {situation.cells}", *rates, ratio, *waits, _verdict(one)]
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", "Medians over the rounds; ratios are taken within a round, and have their range beside them."]
    lines += [
        f"{layout.value.capitalize()} cannot hold {one.situation.name}: {reason}."
        for one in comparisons
        for layout, reason in one.refused.items()
    ]
    return "\n".join(lines)


def _config(model: Path, situation: Situation, layout: Layout, threads: int) -> EngineConfig:
    values = {
        "models": [{"path": model}],
        "streams": {"lanes": [{"places": situation.places, "threads": threads}]},
        "kv": {"budget": situation.cells, "layout": layout.value},
    }
    return EngineConfig.model_validate(values)


async def _measure(comparison: Comparison, layout: Layout, engine: Engine, seed: str) -> None:
    draw = random.Random(seed)
    largest = engine.model_info.vocabulary_size - 1
    waits: list[float] = []
    tokens = 0

    def text(length: int) -> list[int]:
        return [draw.randint(FIRST_TOKEN_ID, largest) for _ in range(length)]

    async def run_client(clients: Clients, prompts: Sequence[list[int]]) -> None:
        nonlocal tokens
        for prompt in prompts:
            sampling = SamplingParameters(max_tokens=clients.output, ignore_eos=True, seed=1)
            result = await engine.generate(prompt, sampling=sampling)
            waits.append(result.timings.first_token)
            tokens += result.usage.completion_tokens

    groups = [(clients, text(clients.shared)) for clients in comparison.situation.clients]
    work = [
        (clients, [shared + text(clients.prompt - clients.shared) for _ in range(clients.requests)])
        for clients, shared in groups
        for _ in range(clients.count)
    ]
    longest = max(clients.prompt + clients.output for clients, _ in groups)
    if longest > engine.limit:
        comparison.refused[layout] = f"a sequence holds {engine.limit} tokens at most, and {longest} are needed"
        return
    begin = time.monotonic()
    async with anyio.create_task_group() as group:
        for clients, prompts in work:
            group.start_soon(run_client, clients, prompts)
    comparison.runs[layout].append(Run(tokens / (time.monotonic() - begin), median(waits)))


def _median(comparison: Comparison, layout: Layout, what: Callable[[Run], float], digits: int) -> str:
    runs = comparison.runs[layout]
    return f"{median(map(what, runs)):.{digits}f}" if runs else "does not fit"


def _told(comparison: Comparison, layout: Layout) -> str:
    runs = comparison.runs[layout]
    return f"{runs[-1].tokens_per_second:.1f} tokens/s" if runs else "does not fit"


def _verdict(comparison: Comparison) -> str:
    """Name the layout that was faster in every round, if there is one."""
    if comparison.refused:
        return " and ".join(layout.value for layout in Layout if layout not in comparison.refused)
    if min(comparison.ratios) > 1:
        return Layout.PAGED.value
    return Layout.PARTITIONED.value if max(comparison.ratios) < 1 else "neither"

"""What it brings to compute prompts on a lane of their own, on an engine in this process."""

from __future__ import annotations

import enum
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from llamalane.bench.promises.asking import percentile
from llamalane.scheduler import Engine, EngineConfig, RequestHandle, SamplingParameters

SHORT_PROMPT, LONG_PROMPT = 12, 600
"""Tokens of the prompts whose outputs should not stall, and of those that make them."""
LONG_OUTPUT = 16
PROMPT_PLACES = 2
"""How many long prompts are computed at once."""
CELLS = 2048
"""KV cells of the lane for prompts; the others have as many for each two clients."""


class Arrangement(enum.Enum):
    """What computes."""

    ONE = "one lane"
    """One lane with all the threads."""
    NEVER = "two lanes, handover: never"
    """Two lanes with half of them each, both for everything."""
    AUTO = "two lanes, handover: auto"
    """One of them for prompts and one for outputs."""
    ALWAYS = "two lanes, handover: always"


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoverPlan:
    """What is measured.

    Attributes:
        clients: closed-loop clients with short prompts, whose outputs have `output_tokens`.
        long_clients: closed-loop clients with long prompts and short outputs.
        seconds: how long each arrangement is measured, after `warm_up` seconds under the same load.
        threads: all threads together, at least 2.
        seed: chooses the prompts.
    """

    model: Path
    threads: int
    clients: int = 6
    output_tokens: int = 64
    long_clients: int = 1
    seconds: float = 60.0
    warm_up: float = 15.0
    seed: int = 1


@dataclass(slots=True)
class HandoverResult:
    """What came of one arrangement; times are in seconds.

    Attributes:
        gaps: between two pieces of a short prompt's output.
        first: until the first piece of a long prompt's output.
        tokens: output tokens of all requests.
        prompts: long prompts that were computed.
        handovers: requests that were handed over.
        seconds: how long it was measured.
    """

    gaps: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    tokens: int = 0
    prompts: int = 0
    handovers: int = 0
    seconds: float = 0.0


def configuration(plan: HandoverPlan, arrangement: Arrangement) -> EngineConfig:
    """Return the configuration of an arrangement; all have the same KV budget."""
    outputs = plan.clients + plan.long_clients
    cells = CELLS * max(1, -(-outputs // 2))
    half = max(1, plan.threads // 2)
    lanes: list[dict[str, Any]] = [
        {"name": "prompts", "places": PROMPT_PLACES, "threads": half, "role": "prefill", "kv_weight": CELLS},
        {"name": "outputs", "places": outputs, "threads": half, "role": "decode", "kv_weight": cells},
    ]
    if arrangement is Arrangement.ONE:
        lanes = [{"places": outputs + PROMPT_PLACES, "threads": plan.threads}]
    handover = arrangement.value.rpartition(" ")[2] if arrangement is not Arrangement.ONE else "never"
    values = {
        "models": [{"path": plan.model}],
        "streams": {"lanes": lanes},
        "kv": {"budget": CELLS + cells, "layout": "paged"},
        "scheduler": {"handover": handover},
    }
    return EngineConfig.model_validate(values)


async def measure_handover(plan: HandoverPlan, arrangement: Arrangement, tell: Callable[[str], None]) -> HandoverResult:
    """Measure one arrangement under the load of `plan`."""
    async with Engine(configuration(plan, arrangement)) as engine:
        load = _Load(engine, plan)
        async with anyio.create_task_group() as clients:
            for client in range(plan.clients):
                clients.start_soon(load.keep_talking, client)
            for client in range(plan.long_clients):
                clients.start_soon(load.keep_reading, client)
            await anyio.sleep(plan.warm_up)
            before, begin = engine.stats().counters, time.monotonic()
            load.result = HandoverResult()
            await anyio.sleep(plan.seconds)
            result, after = load.result, engine.stats().counters
            result.seconds = time.monotonic() - begin
            result.tokens = after.completion_tokens - before.completion_tokens
            result.handovers = after.handovers - before.handovers
            clients.cancel_scope.cancel()
    tell(f"{arrangement.value}: {result.tokens / result.seconds:.1f} tokens/s, {result.handovers} handovers")
    return result


def handover_markdown(plan: HandoverPlan, results: Sequence[tuple[Arrangement, HandoverResult]]) -> str:
    """Return the results as a table."""
    lines = [
        f"{plan.clients} clients with prompts of {SHORT_PROMPT} tokens and outputs of {plan.output_tokens}, "
        f"{plan.long_clients} with prompts of {LONG_PROMPT} and outputs of {LONG_OUTPUT}, all in closed loops; "
        f"{plan.threads} threads in all.",
        "",
        "| lanes | between two tokens, ms | to the first token of a long prompt, s | output tokens/s "
        "| long prompts/min | handed over |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for arrangement, result in results:
        gaps = " / ".join(f"{1e3 * percentile(result.gaps, share):.0f}" for share in (0.5, 0.95, 0.99))
        first = " / ".join(f"{percentile(result.first, share):.2f}" for share in (0.5, 0.95))
        lines.append(
            f"| {arrangement.value} | {gaps} | {first} | {result.tokens / result.seconds:.1f} "
            f"| {60 * result.prompts / result.seconds:.1f} | {result.handovers} |"
        )
    lines += ["", "Times are medians, then 95th (and 99th) percentiles."]
    return "\n".join(lines)


class _Load:
    """Clients of an engine, and what they see; `result` may be replaced at any time."""

    def __init__(self, engine: Engine, plan: HandoverPlan) -> None:
        self.result = HandoverResult()
        self._engine = engine
        self._plan = plan
        self._largest = engine.model_info.vocabulary_size - 1

    async def keep_talking(self, client: int) -> None:
        """Ask with short prompts, one after the other, and take the times between the pieces of the outputs."""
        draw = random.Random(f"{self._plan.seed} short {client}")
        while True:
            last = None
            handle = self._submit(draw, SHORT_PROMPT, self._plan.output_tokens)
            async for _ in handle:
                now = time.monotonic()
                if last is not None:
                    self.result.gaps.append(now - last)
                last = now

    async def keep_reading(self, client: int) -> None:
        """Ask with long prompts, one after the other, and take the times until the outputs begin."""
        draw = random.Random(f"{self._plan.seed} long {client}")
        while True:
            begin, first = time.monotonic(), None
            async for _ in self._submit(draw, LONG_PROMPT, LONG_OUTPUT):
                first = first or time.monotonic() - begin
            if first is not None:
                self.result.first.append(first)
            self.result.prompts += 1

    def _submit(self, draw: random.Random, prompt_tokens: int, max_tokens: int) -> RequestHandle:
        prompt = [draw.randint(5, self._largest) for _ in range(prompt_tokens)]
        sampling = SamplingParameters(max_tokens=max_tokens, ignore_eos=True, seed=draw.getrandbits(31))
        return self._engine.submit_tokens_nowait(prompt, sampling=sampling)

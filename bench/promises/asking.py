"""Asks an engine in this process, and takes the times."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from llamalane.bench.workload import Question
from llamalane.scheduler import Engine, EngineConfig, SamplingParameters

Park = Literal["auto", "pause", "swap", "recompute"]
PARKS: tuple[Park, ...] = get_args(Park)


@dataclass(frozen=True, slots=True)
class Answer:
    """The times of one request, in seconds, and how many tokens it got."""

    first_token: float
    total: float
    tokens: int


def config_for(
    model: Path, *, places: int, threads: int, cells: int, max_requests: int = 1000, park: Park = "auto"
) -> EngineConfig:
    """Return the configuration of one lane with nothing reserved."""
    values = {
        "models": [{"path": model}],
        "streams": {"lanes": [{"places": places, "threads": threads}]},
        "kv": {"budget": cells},
        "scheduler": {"queue": {"max_requests": max_requests, "overflow": "shed"}, "park": park},
    }
    return EngineConfig.model_validate(values)


def engine_for(model: Path, *, places: int, threads: int, cells: int, max_requests: int = 1000) -> Engine:
    """Return an engine with one lane and nothing reserved."""
    return Engine(config_for(model, places=places, threads=threads, cells=cells, max_requests=max_requests))


def sampling_for(question: Question) -> SamplingParameters:
    """Return how a question's answer is chosen: exactly as many tokens as it names."""
    return SamplingParameters(max_tokens=question.output_tokens, ignore_eos=True, seed=question.seed)


async def ask(engine: Engine, question: Question, level: int) -> Answer:
    """Ask a question, and wait for the whole answer; if the wait is cancelled, so is the request."""
    begin = time.monotonic()
    handle = await engine.submit(question.prompt, priority=level, sampling=sampling_for(question))
    first = None
    try:
        async for _ in handle:
            first = first if first is not None else time.monotonic() - begin
        result = await handle
    finally:
        handle.cancel()
    total = time.monotonic() - begin
    return Answer(total if first is None else first, total, result.usage.completion_tokens)


def computed(engine: Engine) -> int:
    """Return how many tokens the engine has computed, of prompts and of outputs."""
    counters = engine.stats().counters
    return counters.prompt_tokens - counters.cached_tokens + counters.completion_tokens


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that `share` of `values` do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

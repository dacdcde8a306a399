"""What drafts by prompt lookup bring: an engine that drafts beside one that does not, in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from llamalane.bench.document import spread
from llamalane.bench.repeating import QUESTIONS, WORDS, repeating_text
from llamalane.errors import ChatTemplateError
from llamalane.scheduler import Engine, EngineConfig, RequestHandle, SamplingParameters

CELLS = 1024
"""KV cells of each sequence."""
KINDS = ("repeating", "ordinary")


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupPlan:
    """What is measured.

    Attributes:
        draft_tokens: the most tokens of a draft.
        counts: how many sequences run at once, each number in turn.
        tokens: how many tokens an output has.
        rounds: how often each is measured, after a round that does not count.
        seed: chooses the texts that are repeated.
    """

    model: Path
    threads: int
    draft_tokens: int = 8
    counts: Sequence[int] = (1, 2)
    tokens: int = 96
    rounds: int = 5
    seed: int = 1


@dataclass(frozen=True, slots=True)
class LookupGain:
    """One situation: tokens a second without and with drafts, round by round, and how many drafted ones were right."""

    kind: str
    sequences: int
    without: tuple[float, ...]
    with_drafts: tuple[float, ...]
    drafted: int
    accepted: int

    @property
    def multiples(self) -> list[float]:
        """The speed with drafts as a multiple of that without, in each round."""
        return [ours / theirs for ours, theirs in zip(self.with_drafts, self.without, strict=True)]


async def measure_lookup(plan: LookupPlan, tell: Callable[[str], None]) -> list[LookupGain]:
    """Measure every situation; the two engines take turns, and each greedy output is the same in every round."""
    gains = []
    async with AsyncExitStack() as engines:
        plain, drafting = [
            await engines.enter_async_context(Engine(configuration(plan, draft_tokens=draft_tokens)))
            for draft_tokens in (0, plan.draft_tokens)
        ]
        for kind in KINDS:
            for count in plan.counts:
                gains.append(await _measure(plan, plain, drafting, kind, count))
                tell(_line(gains[-1]))
    return gains


def configuration(plan: LookupPlan, *, draft_tokens: int) -> EngineConfig:
    """Return the configuration of an engine with drafts of so many tokens, which all its sequences may have."""
    places = max(plan.counts)
    values = {
        "models": [{"path": plan.model}],
        "streams": {
            "lanes": [{"places": places, "threads": plan.threads}],
            "lookup": {"draft_tokens": draft_tokens, "most_rows": places},
        },
        "kv": {"budget": places * CELLS},
    }
    return EngineConfig.model_validate(values)


def lookup_markdown(plan: LookupPlan, gains: Sequence[LookupGain]) -> str:
    """Return the gains as a table: medians over the rounds, with the least and the most."""
    lines = [
        f"{plan.model.name}, {plan.threads} threads; greedy, outputs of {plan.tokens} tokens, drafts of at most "
        f"{plan.draft_tokens}; {plan.rounds} rounds.",
        "",
        "| prompts | sequences | without, tokens/s | with drafts, tokens/s | multiple (range) | right |",
        "| --- | --- | --- | --- | --- | --- |",
        *(_line(gain) for gain in gains),
        "",
        f"Repeating prompts are a text of {WORDS} words, twice, and its beginning once more, which the output carries "
        "on; ordinary ones are questions. Tokens a second count from the first token to the last.",
    ]
    return "\n".join(lines)


async def _measure(plan: LookupPlan, plain: Engine, drafting: Engine, kind: str, count: int) -> LookupGain:
    speeds: list[tuple[float, float]] = []
    before = (0, 0)
    for number in range(plan.rounds + 1):
        if number == 1:
            before = _drafted(drafting)
        pair = (plain, drafting) if number % 2 else (drafting, plain)
        found = {engine: await _run(plan, engine, kind, count) for engine in pair}
        speeds.append((found[plain], found[drafting]))
    without, with_drafts = zip(*speeds[1:], strict=True)
    drafted, accepted = (now - then for now, then in zip(_drafted(drafting), before, strict=True))
    return LookupGain(kind, count, without, with_drafts, drafted, accepted)


async def _run(plan: LookupPlan, engine: Engine, kind: str, count: int) -> float:
    """Let so many sequences run at once, and return their tokens a second, all together."""
    handles = [await _submit(plan, engine, kind, number) for number in range(count)]
    return sum([1 / (await handle).timings.per_token for handle in handles])


async def _submit(plan: LookupPlan, engine: Engine, kind: str, number: int) -> RequestHandle:
    sampling = SamplingParameters(temperature=0, max_tokens=plan.tokens, ignore_eos=True)
    if kind == "repeating":
        return await engine.submit(repeating_text(plan.seed, number), sampling=sampling)
    question = QUESTIONS[number % len(QUESTIONS)]
    try:
        return await engine.submit_chat([{"role": "user", "content": question}], sampling=sampling)
    except ChatTemplateError:  # the model has none
        return await engine.submit(question, sampling=sampling)


def _drafted(engine: Engine) -> tuple[int, int]:
    (lane,) = engine.stats().lanes
    return lane.drafted_tokens, lane.accepted_tokens


def _line(gain: LookupGain) -> str:
    right = f"{100 * gain.accepted / gain.drafted:.0f} % of {gain.drafted}" if gain.drafted else "none drafted"
    return (
        f"| {gain.kind} | {gain.sequences} | {median(gain.without):.1f} | {median(gain.with_drafts):.1f} "
        f"| {spread(gain.multiples, '.2f')} | {right} |"
    )

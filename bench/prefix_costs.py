"""What the prefix tree costs a request that is admitted, by how large the tree is."""

from __future__ import annotations

import gc
import random
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llamalane.bench.summary import Distribution
from llamalane.kvcache import PrefixTree

SIZES = (100, 10_000)
REQUESTS = 5_000
_SYSTEM_PROMPTS = 50
_SYSTEM_TOKENS = (100, 400)
_OWN_TOKENS = (50, 300)
_OUTPUT_TOKENS = (20, 200)
_LONGEST_CONTINUED = 700
_CONTINUED = 0.6
"""The share of requests that go on from an earlier one."""
_VOCABULARY = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixCosts:
    """Seconds that a tree of `runs` runs of tokens takes for one request.

    Attributes:
        match: who holds most of its prompt.
        insert: it gets its path.
        extend: its output is added.
        remove: the path that is oldest is forgotten.
        request: all four together.
    """

    runs: int
    match: Distribution
    insert: Distribution
    extend: Distribution
    remove: Distribution
    request: Distribution


def measure_prefixes(
    sizes: Sequence[int] = SIZES, *, requests: int = REQUESTS, seed: int = 1, warm_up: int = 500
) -> list[PrefixCosts]:
    """Measure trees that are filled until they have at least as many runs as each of `sizes` says.

    Prompts are drawn from `seed`: most go on from an earlier prompt and its output, of up to 700 tokens together, the
    others from one of 50 system prompts of 100 to 400 tokens; each has 50 to 300 tokens of its own. For each request
    the oldest one leaves, so that the size stays about the same. The garbage collector does not run meanwhile.
    """
    return [_measure(size, requests, seed, warm_up) for size in sizes]


def prefixes_markdown(costs: Sequence[PrefixCosts]) -> str:
    """Return the costs as a table."""
    lines = [
        "| runs of tokens | match, µs | insert, µs | extend, µs | remove, µs | together, µs |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for cost in costs:
        parts = (cost.match, cost.insert, cost.extend, cost.remove, cost.request)
        lines.append(f"| {cost.runs:,} | " + " | ".join(map(_cell, parts)) + " |")
    lines += ["", "Each operation: median (99th percentile). Python's garbage collector was off meanwhile."]
    return "\n".join(lines)


def _measure(size: int, requests: int, seed: int, warm_up: int) -> PrefixCosts:
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        workbench = _Workbench(seed)
        workbench.fill(size)
        for _ in range(warm_up):  # the first ones find cold caches
            workbench.serve()
        times = [workbench.serve() for _ in range(requests)]
    finally:
        if was_enabled:
            gc.enable()
    match, insert, extend, remove = (_distribution(part) for part in zip(*times, strict=True))
    return PrefixCosts(
        runs=workbench.tree.runs(),
        match=match,
        insert=insert,
        extend=extend,
        remove=remove,
        request=_distribution([sum(parts) for parts in times]),
    )


class _Workbench:
    """A tree, and requests that come and go in it one by one."""

    def __init__(self, seed: int) -> None:
        self.tree = PrefixTree[int]()
        self._random = random.Random(seed)
        self._newest = self._oldest = 0
        self._systems = [self._text(_SYSTEM_TOKENS) for _ in range(_SYSTEM_PROMPTS)]

    def fill(self, size: int) -> None:
        """Let requests come until there are `size` runs of tokens."""
        while self.tree.runs() < size:
            for _ in range(max(1, size // 100)):  # counting takes long
                tokens = self._prompt() + self._text(_OUTPUT_TOKENS)
                self._newest += 1
                self.tree.insert(self._newest, "", tokens)

    def serve(self) -> tuple[float, float, float, float]:
        """Let one request come and the oldest go; returns the seconds that each part took."""
        prompt, output = self._prompt(), self._text(_OUTPUT_TOKENS)
        self._newest += 1
        self._oldest += 1
        new, old = self._newest, self._oldest
        return (
            _seconds(lambda: self.tree.match("", prompt)),
            _seconds(lambda: self.tree.insert(new, "", prompt)),
            _seconds(lambda: self.tree.extend(new, output)),
            _seconds(lambda: self.tree.remove(old)),
        )

    def _prompt(self) -> list[int]:
        """Go on from an earlier request, or from a system prompt."""
        past = self._random.choice(self._systems)
        if self._newest > self._oldest and self._random.random() < _CONTINUED:
            request = self._random.randint(self._oldest + 1, self._newest)
            if self.tree.length(request) <= _LONGEST_CONTINUED:
                past = self.tree.tokens(request)
        # The tokens of a new prompt are equal to the old ones, but not the same objects.
        return array("i", past).tolist() + self._text(_OWN_TOKENS)

    def _text(self, lengths: tuple[int, int]) -> list[int]:
        return [self._random.randrange(_VOCABULARY) for _ in range(self._random.randint(*lengths))]


def _cell(cost: Distribution) -> str:
    return f"{cost.median * 1e6:.1f} ({cost.p99 * 1e6:.1f})"


def _distribution(seconds: Sequence[float]) -> Distribution:
    distribution = Distribution.of(seconds)
    assert distribution is not None, "at least one request is measured"
    return distribution


def _seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start

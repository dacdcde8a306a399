"""How llama.cpp divides a step into passes over the model's weights.

Cells that all sequences share take a step in one pass, as long as it is no larger than a micro-batch. Where each
sequence has a part of the cells for itself (`kv.layout: partitioned`), a pass takes equally many tokens of each of its
sequences, and these have consecutive ids. So a prompt's chunk is one pass with the decoding rows beside it, of one
token each, and one more by itself; and a gap among the sequence ids costs a pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Part(NamedTuple):
    """What a step computes of one sequence: `tokens` more, after the `start` that are in its cells."""

    sequence: int
    start: int
    tokens: int


class Pass(NamedTuple):
    """Tokens that are computed together; each attends to `cells`, those of its own sequence, summed over all tokens."""

    sequences: int
    tokens: int
    cells: int

    @property
    def decodes(self) -> bool:
        """Whether it has one token of each sequence."""
        return self.tokens == self.sequences


def passes_of(parts: Iterable[Part], *, partitioned: bool, micro_batch: int) -> list[Pass]:
    """Return the passes of a step, which has at least one token; none has more than `micro_batch` tokens."""
    if partitioned:
        return _apart(sorted(parts), micro_batch)
    return _together(parts, micro_batch)


def _together(parts: Iterable[Part], micro_batch: int) -> list[Pass]:
    """Cut the tokens, in the order of the batch, into as few passes as can be."""
    passes = []
    sequences = tokens = cells = 0
    for _, start, left in parts:
        while left:
            if tokens == micro_batch:
                passes.append(Pass(sequences, tokens, cells))
                sequences = tokens = cells = 0
            count = min(left, micro_batch - tokens)
            sequences, tokens, cells = sequences + 1, tokens + count, cells + attended(start, count)
            start, left = start + count, left - count
    return [*passes, Pass(sequences, tokens, cells)]


def _apart(parts: Sequence[Part], micro_batch: int) -> list[Pass]:
    """Let sequences with consecutive ids have their passes together, apart from the others."""
    passes: list[Pass] = []
    group: list[Part] = []
    for part in parts:
        if group and (part.sequence != group[-1].sequence + 1 or len(group) == micro_batch):
            passes += _of_group(group, micro_batch)
            group = []
        group.append(part)
    return passes + _of_group(group, micro_batch)


def _of_group(group: Sequence[Part], micro_batch: int) -> list[Pass]:
    """Take as many tokens of each sequence as all of them have, and then what is left of some."""
    count = min(min([part.tokens for part in group]), micro_batch // len(group))
    cells = count * sum([part.start for part in group]) + len(group) * attended(0, count)
    first = Pass(len(group), count * len(group), cells)
    rest = [_rest(part, count) for part in group if part.tokens > count]
    return [first, *_apart(rest, micro_batch)] if rest else [first]


def _rest(part: Part, count: int) -> Part:
    return Part(part.sequence, part.start + count, part.tokens - count)


def attended(start: int, tokens: int) -> int:
    """Return how many cells `tokens` after the first `start` attend to in all, each to itself as well."""
    return tokens * start + tokens * (tokens + 1) // 2

"""How llama.cpp divides a step into passes over the model's weights.

Cells that all sequences share take a step in one pass, as long as it is no larger than a micro-batch. Where each
sequence has a part of the cells for itself (`kv.layout: partitioned`), a pass takes equally many tokens of each of its
sequences, and these have consecutive ids. So a prompt's chunk is one pass with the decoding rows beside it, of one
token each, and one more by itself; and a gap among the sequence ids costs a pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import NamedTuple, TypeAlias

_START, _TOKENS = itemgetter(1), itemgetter(2)


class Part(NamedTuple):
    """What a step computes of one sequence: `tokens` more, after the `start` that are in its cells.

    Where millions are made they are plain tuples, which takes less time.
    """

    sequence: int
    start: int
    tokens: int


PlainPart: TypeAlias = tuple[int, int, int]


class Pass(NamedTuple):
    """Tokens that are computed together; each attends to `cells`, those of its own sequence, summed over all tokens."""

    sequences: int
    tokens: int
    cells: int

    @property
    def decodes(self) -> bool:
        """Whether it has one token of each sequence."""
        return self.tokens == self.sequences


def passes_of(parts: Iterable[PlainPart], *, partitioned: bool, micro_batch: int) -> list[Pass]:
    """Return the passes of a step, which has at least one token; none has more than `micro_batch` tokens."""
    if partitioned:
        return _apart(sorted(parts), micro_batch)
    return _together(parts, micro_batch)


def _together(parts: Iterable[PlainPart], micro_batch: int) -> list[Pass]:
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


def _apart(parts: Sequence[PlainPart], micro_batch: int) -> list[Pass]:
    """Let sequences with consecutive ids have their passes together, apart from the others."""
    if parts[-1][0] - parts[0][0] < len(parts) <= micro_batch:  # all of them are consecutive
        return _of_group(parts, micro_batch)
    passes: list[Pass] = []
    begin, following = 0, parts[0][0]
    for end, (sequence, _, _) in enumerate(parts):
        if sequence != following or end - begin == micro_batch:
            passes += _of_group(parts[begin:end], micro_batch)
            begin = end
        following = sequence + 1
    return passes + _of_group(parts[begin:], micro_batch)


def _of_group(group: Sequence[PlainPart], micro_batch: int) -> list[Pass]:
    """Take as many tokens of each sequence as all of them have, and then what is left of some."""
    size, tokens = len(group), list(map(_TOKENS, group))
    count = min(*tokens, micro_batch // size)
    first = Pass(size, count * size, count * sum(map(_START, group)) + size * attended(0, count))
    if max(tokens) == count:
        return [first]
    rest = [(sequence, start + count, tokens - count) for sequence, start, tokens in group if tokens > count]
    return [first, *_apart(rest, micro_batch)]


def attended(start: int, tokens: int) -> int:
    """Return how many cells `tokens` after the first `start` attend to in all, each to itself as well."""
    return tokens * start + tokens * (tokens + 1) // 2

"""Texts written on one stream and read again, token by token, on another."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from llamalane.bench.gpu.streams import Bench
from llamalane.ids import SequenceId
from llamalane.streams.llama import Batch, Context

CELLS = 512
SAFETY = 4
"""A tolerance is so many times the largest difference between steps of 1 and of 8 rows."""

Logits = npt.NDArray[np.float32]


def open_context(bench: Bench, rows: int = 1) -> Context:
    return Context(bench.model, bench.options(rows, CELLS * rows, CELLS))


def write(context: Context, prompt: Sequence[int], count: int) -> list[int]:
    """Return what greedy decoding gives, from an empty sequence 0."""
    context.remove(SequenceId(0))
    batch = Batch(CELLS)
    batch.add(SequenceId(0), prompt, 0, output=True)
    tokens: list[int] = []
    for position in range(len(prompt), len(prompt) + count):
        context.decode(batch)
        tokens.append(int(context.logits(batch)[0].argmax()))
        batch.clear()
        batch.add(SequenceId(0), tokens[-1:], position, output=True)
    return tokens


def read(context: Context, prompt: Sequence[int], output: Sequence[int], rows: int = 1) -> Logits:
    """Return the logits before each token of an output, with so many rows alike in a step; sequences are emptied."""
    for row in range(rows):
        context.remove(SequenceId(row))
    batch = Batch(CELLS * rows)
    for row in range(rows):
        batch.add(SequenceId(row), prompt, 0, output=True)
    logits = []
    for index, token in enumerate(output):
        context.decode(batch)
        logits.append(context.logits(batch)[0].copy())
        batch.clear()
        for row in range(rows):
            batch.add(SequenceId(row), [token], len(prompt) + index, output=True)
    return np.stack(logits)


def shortfalls(logits: Logits, output: Sequence[int]) -> Logits:
    """Return by how much each token of an output was not the likeliest one."""
    chosen = logits[np.arange(len(output)), list(output)]
    return np.asarray(logits.max(axis=1) - chosen, np.float32)


def tolerance(bench: Bench, prompt: Sequence[int], output: Sequence[int]) -> float:
    """Return how far a logit may be from the best, and be as good."""
    alone, beside = open_context(bench), open_context(bench, rows=8)
    try:
        apart = np.abs(read(alone, prompt, output) - read(beside, prompt, output, rows=8))
    finally:
        alone.close()
        beside.close()
    return SAFETY * float(apart.max())

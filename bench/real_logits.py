"""Logits as a model really gives them, and others of the same kind for vocabularies of another size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from llamalane.bench.workload import Workload
from llamalane.ids import SequenceId
from llamalane.streams.llama import Batch, Context, ContextOptions, Model, ModelOptions

Rows = npt.NDArray[np.float32]

_LONGEST_PROMPT = 256
_FALL = 1.5
"""By so much is each copy of a vocabulary less likely than the one before it, where one is stretched."""
_NOISE = 0.3


def real_rows(path: Path, count: int, seed: int) -> Rows:
    """Return a model's logits after `count` prompts of random words, shape (`count`, vocabulary size)."""
    questions = Workload().questions(seed, 0)
    options = ContextOptions(
        cells=_LONGEST_PROMPT, sequences=1, max_step_tokens=_LONGEST_PROMPT, micro_batch=_LONGEST_PROMPT, threads=1
    )
    rows = []
    with Model(ModelOptions(path=path)) as model:
        context, batch = Context(model, options), Batch(_LONGEST_PROMPT)
        for _ in range(count):
            tokens = model.vocabulary.tokenize(next(questions).prompt, add_special=True, parse_special=False)
            batch.clear()
            batch.add(SequenceId(0), tokens[:_LONGEST_PROMPT], 0, output=True)
            context.clear()
            context.decode(batch)
            rows.append(context.logits(batch)[0].copy())
        context.close()
    return np.stack(rows)


def stretched(rows: Rows, vocabulary_size: int, seed: int) -> Rows:
    """Return rows of a larger vocabulary: copies of the whole, each less likely than the one before it, and noise."""
    generator = np.random.default_rng(seed)
    copies = -(-vocabulary_size // rows.shape[1])
    fall = np.repeat(np.arange(copies, dtype=np.float32) * _FALL, rows.shape[1])
    longer = np.tile(rows, copies) - fall + generator.normal(0, _NOISE, (len(rows), len(fall)))
    return np.ascontiguousarray(longer[:, :vocabulary_size], np.float32)


def with_nucleus(rows: Rows, top_p: float, size: int) -> Rows:
    """Return rows scaled so that it takes about `size` tokens to reach `top_p`."""
    return np.stack([_scaled(row, top_p, size) for row in rows])


def nucleus(row: Rows, top_p: float) -> int:
    """Return how many tokens it takes to reach `top_p`."""
    return _count_to(np.sort(row.astype(np.float64))[::-1], top_p)


def _scaled(row: Rows, top_p: float, size: int) -> Rows:
    ordered = np.sort(row.astype(np.float64))[::-1]
    low, high = 0.0, 16.0  # the larger the factor, the fewer tokens
    for _ in range(30):
        middle = (low + high) / 2
        if _count_to(ordered * middle, top_p) > size:
            low = middle
        else:
            high = middle
    return row * np.float32(high)


def _count_to(ordered: npt.NDArray[np.float64], top_p: float) -> int:
    shares = np.exp(ordered - ordered[0]).cumsum()
    return int(np.searchsorted(shares, top_p * shares[-1])) + 1

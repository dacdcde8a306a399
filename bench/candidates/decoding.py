"""Sequences that decode in a bare context, for steps to be timed on."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager

from llamalane.bench.floor.raw_loop import BareContext
from llamalane.ids import SequenceId
from llamalane.streams.llama import Batch, ContextOptions, Model

ROWS = 8
"""As many decode at once."""
STEPS = 8
"""So many steps make a round; their median counts."""
CHUNK = 512
"""So many tokens of a prompt are computed at a time."""
SEQUENCE_CELLS = 512
FIRST_TOKEN = 5
"""Those before may have a meaning of their own."""


class CountingContext(BareContext):
    """A bare context that tells how often llama.cpp used the graph of the step before again."""

    @property
    def reused_graphs(self) -> int:
        """How often it did so far."""
        return int(self._api.llama_perf_context(self._pointer).n_reused)


def context_options(
    sequences: int, threads: int, *, cells: int = SEQUENCE_CELLS, partitioned: bool, **others: str | int
) -> ContextOptions:
    """Return the options of a context with so many cells for each sequence."""
    return ContextOptions(
        cells=cells * sequences,
        sequences=sequences,
        max_step_tokens=max(CHUNK, sequences),
        micro_batch=CHUNK,
        threads=threads,
        partitioned=partitioned,
        **others,  # type: ignore[arg-type]  # each field has its own type
    )


class DecodingRows:
    """Sequences of `length` random tokens each, which can be decoded step by step, and taken back.

    What a step costs does not depend on which tokens it computes: they are random too.
    """

    def __init__(self, model: Model, context: CountingContext, *, length: int, seed: int) -> None:
        self.context = context
        self.length = 0
        self._generator = random.Random(seed)
        self._vocabulary = model.vocabulary.size
        self._batch = Batch(context.options.max_step_tokens)
        self._positions = [0] * context.options.sequences
        self.grow(length)

    @property
    def sequences(self) -> range:
        """The numbers of all sequences."""
        return range(len(self._positions))

    def grow(self, length: int) -> None:
        """Let every sequence hold `length` tokens; the first is computed, and its cells are copied to the others."""
        self.rewind()
        if not length:
            return
        for begin in range(self.length, length, CHUNK):
            count = min(CHUNK, length - begin)
            self._batch.clear()
            self._batch.add(SequenceId(0), self._tokens(count), begin, output=False)
            self.context.decode(self._batch)
        cells = self.context.save(SequenceId(0))
        for sequence in self.sequences[1:]:
            self.context.restore(SequenceId(sequence), cells)
        self.length = length
        self._positions = [length] * len(self._positions)

    def rewind(self) -> None:
        """Take back what steps have computed."""
        for sequence, position in enumerate(self._positions):
            if position > self.length:
                self.context.remove(SequenceId(sequence), self.length)
                self._positions[sequence] = self.length

    def step(self, order: Sequence[int], *, chunk: int = 0, chunk_of: int = 0) -> float:
        """Decode one token of each sequence in `order`, and `chunk` tokens of one more; returns the seconds it took."""
        self._batch.clear()
        for sequence in order:
            self._add(sequence, 1, output=True)
        if chunk:
            self._add(chunk_of, chunk, output=False)
        begin = time.perf_counter()
        self.context.decode(self._batch)
        return time.perf_counter() - begin

    def steps_ms(self, order: Callable[[], Sequence[int]]) -> float:
        """Return the median of a round's steps in milliseconds; `order` gives the sequences of each."""
        self.rewind()
        return 1e3 * statistics.median([self.step(order()) for _ in range(STEPS)])

    def _add(self, sequence: int, count: int, *, output: bool) -> None:
        position = self._positions[sequence]
        self._batch.add(SequenceId(sequence), self._tokens(count), position, output=output)
        self._positions[sequence] = position + count

    def _tokens(self, count: int) -> list[int]:
        return [self._generator.randrange(FIRST_TOKEN, self._vocabulary) for _ in range(count)]


@contextmanager
def decoding_rows(model: Model, options: ContextOptions, *, length: int, seed: int) -> Iterator[DecodingRows]:
    """Open a context for sequences of `length` tokens each, which may be 0."""
    with closing(CountingContext(model, options)) as context:
        yield DecodingRows(model, context, length=length, seed=seed)

"""The floor: llama.cpp in a loop, with nothing around it but the choice of tokens.

No queue, no threads, no text: every place has its next prompt as soon as its output has ended. What an engine around
the same steps takes on top of this is its own cost.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llamalane.bench.floor.times import LaneTimes
from llamalane.bench.workload import Question, Workload
from llamalane.errors import DecodeError
from llamalane.ids import SequenceId
from llamalane.streams import SamplingParameters
from llamalane.streams.llama import Batch, Candidates, Context, Model, Sampler


class BareContext(Context):
    """A context that computes what it is given, without a look at it."""

    def decode(self, batch: Batch) -> None:
        """Compute one step and wait for its results; raises `DecodeError` with llama.cpp's code when it failed."""
        code = self._api.llama_decode(self._pointer, batch.struct)
        if code != 0:
            raise DecodeError(code)
        self._api.llama_synchronize(self._pointer)
        self._outputs = batch.outputs


@dataclass(slots=True, eq=False)
class _Row:
    """A request: `tokens` of which `computed` are done, and how many are still to be chosen."""

    sequence: SequenceId
    tokens: list[int]
    left: int
    sampler: Sampler
    computed: int = 0
    chosen: int = 0


class RawLoop:
    """Serves `places` closed-loop clients of a workload in steps of `context`.

    A step computes at most `chunk` tokens of prompts beside the rows that decode. `limit` is the most tokens that a
    sequence can hold.
    """

    def __init__(
        self, model: Model, context: Context, workload: Workload, *, places: int, chunk: int, seed: int, limit: int
    ) -> None:
        self._model = model
        self._context = context
        self._workload = workload
        self._chunk = chunk
        self._limit = limit
        self._batch = Batch(context.options.max_step_tokens)
        self._candidates = Candidates(model.vocabulary.size)
        self._prompts = [self._tokenized(workload.questions(seed, place)) for place in range(places)]
        self._rows = [self._begin(SequenceId(place)) for place in range(places)]

    def run(self, seconds: float, warm_up: float) -> LaneTimes:
        """Run for `warm_up` and then `seconds` seconds; returns what the latter held."""
        self._run_until(time.monotonic() + warm_up)
        times = self._run_until(time.monotonic() + seconds)
        self._context.clear()
        return times

    def _run_until(self, end: float) -> LaneTimes:
        steps = tokens = 0
        decode = sample = 0.0
        start = now = time.monotonic()
        while now < end:
            outputs = self._fill()
            begin = time.monotonic()
            self._context.decode(self._batch)
            decoded = time.monotonic()
            logits = self._context.logits(self._batch)
            chosen = [self._choose(row, logits[place]) for place, row in enumerate(outputs)]
            sampled = time.monotonic()
            for row, token in zip(outputs, chosen, strict=True):
                self._take(row, token)
            now = time.monotonic()
            steps += 1
            tokens += len(outputs)
            decode += decoded - begin
            sample += sampled - decoded
        return LaneTimes(
            seconds=now - start,
            steps=steps,
            tokens=tokens,
            decode=decode,
            sample=sample,
            idle=now - start - decode - sample,
        )

    def _fill(self) -> list[_Row]:
        """Fill the batch, in the order of the sequences; returns the rows whose logits come of it."""
        self._batch.clear()
        decoding = sum(len(row.tokens) - row.computed == 1 for row in self._rows)
        budget = min(self._chunk, self._batch.capacity - decoding)
        outputs = []
        for row in self._rows:
            count = len(row.tokens) - row.computed
            if count > 1:
                count = min(count, budget)
                budget -= count
            if count:
                end = row.computed + count
                output = end == len(row.tokens)
                self._batch.add(row.sequence, row.tokens[row.computed : end], row.computed, output=output)
                row.computed = end
                if output:
                    outputs.append(row)
        return outputs

    def _choose(self, row: _Row, logits: npt.NDArray[np.float32]) -> int:
        return row.sampler.choose(logits, row.chosen, self._candidates)

    def _take(self, row: _Row, token: int) -> None:
        row.tokens.append(token)
        row.chosen += 1
        row.left -= 1
        if row.left == 0:
            self._context.remove(row.sequence)
            self._rows[row.sequence] = self._begin(row.sequence)

    def _begin(self, sequence: SequenceId) -> _Row:
        question, tokens = next(self._prompts[sequence])
        parameters = sampling_of(self._workload, question)
        sampler = Sampler(self._model.vocabulary, parameters, choice=0, history=tokens, window=self._limit)
        return _Row(sequence, list(tokens), question.output_tokens, sampler)

    def _tokenized(self, questions: Iterator[Question]) -> Iterator[tuple[Question, Sequence[int]]]:
        for question in questions:
            yield (
                question,
                self._model.vocabulary.tokenize(question.prompt, add_special=True, parse_special=True),
            )


def sampling_of(workload: Workload, question: Question) -> SamplingParameters:
    """Return what a question of a workload asks for."""
    fields = {name: int(value) if name == "top_k" else value for name, value in workload.sampling.items()}
    return SamplingParameters(
        max_tokens=question.output_tokens,
        seed=question.seed,
        ignore_eos=True,
        **fields,  # type: ignore[arg-type]  # a workload's sampling holds what a body may say, whatever its type
    )

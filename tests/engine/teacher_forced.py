"""Checks outputs against an undisturbed context, token by token.

llama.cpp's numbers depend a little on how many rows a step has, so two correct runs need not agree to the last bit, and
where two tokens are almost equally likely they may part for good. So an output is not compared with another one. It is
fed to a context of its own, and each of its tokens has to be the one that this context would have chosen at that point,
or to be as near to it as the numbers are certain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from llamalane.ids import SequenceId
from llamalane.scheduler import KVConfig, SamplingParameters
from llamalane.streams.llama import Batch, Context, ContextOptions, Model, ModelOptions, uniform
from tests.engine.running import EXACT

Logits = npt.NDArray[np.float32]
Tokens = Sequence[int]

SAFETY = 4
"""Tolerances are so many times the largest difference measured."""
CELLS = 512
"""The most tokens of a text."""


@dataclass(frozen=True)
class Written:
    """A prompt and what came after it."""

    prompt: tuple[int, ...]
    output: tuple[int, ...]


class Solo:
    """A model with contexts that nothing disturbs, on `kv` as the engine has it. Use it in a `with` block."""

    def __init__(self, path: Path, kv: KVConfig = EXACT, cells: int = CELLS) -> None:
        self.model = Model(ModelOptions(path=path))
        self._kv = kv
        self._cells = cells

    def likeliest_tokens(self, prompt: Tokens, count: int, forbidden: Iterable[int] = ()) -> list[int]:
        """Return what greedy decoding gives."""
        context, batch = self._open(1), Batch(self._cells)
        tokens = list(prompt)
        start = 0
        for _ in range(count):
            batch.clear()
            batch.add(SequenceId(0), tokens[start:], start, output=True)
            context.decode(batch)
            logits = context.logits(batch)[0].copy()
            logits[list(forbidden)] = -np.inf
            start = len(tokens)
            tokens.append(int(logits.argmax()))
        context.close()
        return tokens[len(prompt) :]

    def logits_along(self, texts: Sequence[Written]) -> list[Logits]:
        """Return the logits before each token of the outputs, when all texts are written side by side.

        One text alone is the undisturbed case. The outputs have the same length.
        """
        context, batch = self._open(len(texts)), Batch(self._cells * len(texts))
        for sequence, text in enumerate(texts):
            batch.add(SequenceId(sequence), text.prompt, 0, output=True)
        steps = []
        for index in range(len(texts[0].output)):
            context.decode(batch)
            steps.append(context.logits(batch).copy())
            batch.clear()
            for sequence, text in enumerate(texts):
                position = len(text.prompt) + index
                batch.add(SequenceId(sequence), text.output[index : index + 1], position, output=True)
        context.close()
        return list(np.stack(steps, axis=1))

    def _open(self, sequences: int) -> Context:
        return Context(
            self.model,
            ContextOptions(
                cells=self._cells * sequences,
                sequences=sequences,
                max_step_tokens=self._cells * sequences,
                micro_batch=512,
                threads=1,
                key_type=self._kv.key_type,
                value_type=self._kv.value_type,
                flash_attention=self._kv.flash_attention,
            ),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.model.close()


@dataclass
class Verdict:
    """How many tokens were looked at, how many were right only within the tolerance, and what was wrong."""

    tokens: int = 0
    tolerated: int = 0
    wrong: list[str] = field(default_factory=list)

    def add(self, where: str, distance: float, tolerance: float) -> None:
        """Judge a token by its distance from being the right one."""
        self.tokens += 1
        if distance > tolerance:
            self.wrong.append(f"{where}: off by {distance:.3g}, more than {tolerance:.3g}")
        elif distance > 0:
            self.tolerated += 1


class Judge:
    """Judges outputs of `sampling`, with end-of-generation tokens forbidden, and those that its biases forbid."""

    def __init__(self, solo: Solo, sampling: SamplingParameters) -> None:
        self._solo = solo
        self._sampling = sampling
        self._undisturbed: dict[Written, Logits] = {}
        barred = (token for token, bias in sampling.logit_bias.items() if bias == -np.inf)
        self._forbidden = sorted({*solo.model.vocabulary.end_of_generation, *barred})

    def tolerance(self, texts: Sequence[Written]) -> float:
        """Return how far numbers may be off, by how they differ between 8 texts written alone and together."""
        assert len(texts) == 8
        alone = [self._alone(text) for text in texts]
        together = self._solo.logits_along(texts)
        differences = [
            np.abs(self._measure(one) - self._measure(other)).max()
            for rows, others in zip(alone, together, strict=True)
            for one, other in zip(rows, others, strict=True)
        ]
        return SAFETY * float(max(differences))

    def judge(self, texts: Sequence[Written], seeds: Sequence[int], tolerance: float) -> Verdict:
        """Judge outputs, each with its seed."""
        verdict = Verdict()
        for number, (text, seed) in enumerate(zip(texts, seeds, strict=True)):
            for index, (logits, token) in enumerate(zip(self._alone(text), text.output, strict=True)):
                before = (*text.prompt, *text.output[:index])
                distance = self._distance(penalized(logits, before, self._sampling), token, uniform(seed, 0, index))
                verdict.add(f"text {number}, token {index}", distance, tolerance)
        return verdict

    def _alone(self, text: Written) -> Logits:
        if text not in self._undisturbed:
            (self._undisturbed[text],) = self._solo.logits_along([text])
        return self._undisturbed[text]

    def _measure(self, logits: Logits) -> npt.NDArray[np.float64]:
        """Return the numbers whose differences count: what a token is chosen by."""
        if self._sampling.greedy:
            return logits.astype(np.float64)
        return cumulative(self._allowed(logits), self._sampling)

    def _distance(self, logits: Logits, token: int, drawn: float) -> float:
        """Return how far from being chosen a token is, 0 if it is the one to be chosen."""
        if self._sampling.greedy:
            allowed = self._allowed(logits)
            return float(allowed.max() - allowed[token])
        upper = cumulative(self._allowed(logits), self._sampling)
        low, high = float(upper[token - 1]) if token else 0.0, float(upper[token])
        if low <= drawn < high:
            return 0.0
        return max(low - drawn, drawn - high, np.finfo(float).tiny)

    def _allowed(self, logits: Logits) -> Logits:
        allowed = logits.copy()
        allowed[self._forbidden] = -np.inf
        return allowed


def penalized(logits: Logits, before: Tokens, sampling: SamplingParameters) -> Logits:
    """Return the logits after the penalties for what came before, as llama.cpp's samplers apply them."""
    if not sampling.penalizes:
        return logits
    last = before if sampling.repeat_last_n < 0 else before[len(before) - min(sampling.repeat_last_n, len(before)) :]
    changed = logits.copy()
    for token, count in Counter(last).items():
        logit = changed[token]
        logit = logit * sampling.repeat_penalty if logit <= 0 else logit / sampling.repeat_penalty
        changed[token] = logit - count * sampling.frequency_penalty - sampling.presence_penalty
    return changed


def cumulative(logits: Logits, sampling: SamplingParameters) -> npt.NDArray[np.float64]:
    """Return the running sum of the tokens' probabilities, in the order of the tokens; those cut off have none."""
    order = np.argsort(-logits.astype(np.float64), kind="stable")
    kept = order[: sampling.top_k] if sampling.top_k else order
    values = logits[kept].astype(np.float64)
    if sampling.top_p < 1:
        count = int(np.searchsorted(_softmax(values).cumsum(), sampling.top_p)) + 1
        kept, values = kept[:count], values[:count]
    if sampling.min_p > 0:
        likely = values >= values.max() + np.log(sampling.min_p)
        kept, values = kept[likely], values[likely]
    probabilities = np.zeros(len(logits))
    probabilities[kept] = _softmax(values / sampling.temperature)
    return probabilities.cumsum()


def _softmax(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    weights = np.exp(values - values.max())
    softmax: npt.NDArray[np.float64] = weights / weights.sum()
    return softmax

"""What a step tells of prompts whose tokens are to be reported with their log probabilities."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llamalane.errors import RequestFailedError
from llamalane.streams.logprobs import score_all
from llamalane.streams.row import Row
from llamalane.streams.steps import PromptScores


@dataclass(frozen=True, slots=True)
class MeasuredPart:
    """Those `tokens` of a row that a step's logits tell of, from its logits number `place` on."""

    row: Row
    tokens: range
    place: int


@dataclass(frozen=True, slots=True)
class FailedRow:
    """A row whose tokens could not be measured, and why."""

    row: Row
    error: RequestFailedError


def measure(
    parts: Iterable[MeasuredPart], logits: npt.NDArray[np.float32]
) -> tuple[list[PromptScores], list[FailedRow]]:
    """Return what a step's logits tell of each part, and the rows for which the model gave no numbers."""
    found: list[PromptScores] = []
    failed: list[FailedRow] = []
    for part in parts:
        join, tokens = part.row.join, part.row.tokens[part.tokens.start : part.tokens.stop]
        try:
            scores = score_all(logits[part.place :], tokens, join.sampling.prompt_logprobs or 0)
        except RequestFailedError as error:
            failed.append(FailedRow(part.row, error))
        else:
            found.append(PromptScores(join.request, scores))
    return found, failed

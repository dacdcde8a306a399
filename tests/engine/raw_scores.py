"""What tokens' log probabilities are: llama.cpp's own functions, one token after the other, and the definition."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from llamalane.scheduler import OutputToken, PromptLogprobs, Result, ScoredToken
from llamalane.streams.llama.library import library
from tests.models.tiny_gguf import BOS, EOS

CELLS = 1024
WITHOUT_TEXT = (0, BOS, EOS)
"""The tiny model's tokens that stand for nothing."""
TOLERANCE = 2e-4
"""Numbers differ a little with the shape of a step, even where they have 32 bits."""


class RawModel:
    """A model in a context of its own, with floats of 32 bits throughout. Use it in a `with` block."""

    def __init__(self, path: Path) -> None:
        self._api = api = library().api
        options = api.llama_model_default_params()
        options.n_gpu_layers = 0
        self._model: Any = api.llama_model_load_from_file(str(path).encode(), options)
        self._vocabulary = api.llama_model_get_vocab(self._model)
        params = api.llama_context_default_params()
        params.n_ctx, params.n_threads, params.n_threads_batch = CELLS, 1, 1
        params.type_k = params.type_v = 0
        params.flash_attn_type = 0
        self._context: Any = api.llama_init_from_model(self._model, params)

    def logprobs(self, tokens: Sequence[int]) -> list[list[float]]:
        """Return the log probabilities of all tokens after each of `tokens`."""
        size = self._api.llama_vocab_n_tokens(self._vocabulary)
        self._api.llama_memory_clear(self._api.llama_get_memory(self._context), True)
        found = []
        for token in tokens:
            one = (self._api.llama_token * 1)(token)
            assert self._api.llama_decode(self._context, self._api.llama_batch_get_one(one, 1)) == 0
            found.append(log_probabilities(self._api.llama_get_logits_ith(self._context, -1)[:size]))
        return found

    def check(self, prompt: Sequence[int], result: Result, count: int) -> None:
        """Check what a result says of its tokens, each beside `count` others."""
        before = self.logprobs([*prompt, *result.tokens])[len(prompt) - 1 : -1]
        assert result.logprobs is not None
        assert result.cumulative_logprob is not None
        total = math.fsum(row[token] for row, token in zip(before, result.tokens, strict=True))
        assert abs(result.cumulative_logprob - total) < TOLERANCE * len(result.tokens)
        told = [*result.logprobs, *([result.ending] if result.ending is not None else [])]
        last = len(result.tokens) - 1
        kept = [at for at, token in enumerate(result.tokens) if at == last or token not in WITHOUT_TEXT]
        assert [token.id for token in told] == [result.tokens[at] for at in kept[: len(told)]]
        self._check_all(told, [before[at] for at in kept], count)
        check_text(result.text, result.logprobs)

    def check_prompt(self, prompt: Sequence[int], told: PromptLogprobs | None, count: int) -> None:
        """Check what is told of a prompt."""
        assert told is not None
        assert [told.first.id, *(token.id for token in told.rest)] == list(prompt)
        self._check_all(told.rest, self.logprobs(prompt[:-1]), count)

    def _check_all(self, told: Sequence[ScoredToken], rows: Sequence[Sequence[float]], count: int) -> None:
        for token, row in zip(told, rows, strict=False):
            assert abs(token.logprob - row[token.id]) < TOLERANCE
            assert len(token.alternatives) == count
            for other, best in zip(token.alternatives, sorted(row, reverse=True), strict=False):
                assert abs(other.logprob - row[other.id]) < TOLERANCE
                assert abs(other.logprob - best) < TOLERANCE

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._api.llama_free(self._context)
        self._api.llama_model_free(self._model)


def log_probabilities(logits: Sequence[float]) -> list[float]:
    """Return the logarithm of the softmax, by its definition."""
    best = max(logits)
    total = math.log(math.fsum(math.exp(logit - best) for logit in logits))
    return [logit - best - total for logit in logits]


def check_text(text: str, tokens: Iterable[OutputToken]) -> None:
    """Check that tokens make a text: each begins where it says, and nothing of the text is left over."""
    written = b""
    for token in tokens:
        assert token.bytes
        assert token.start <= len(written.decode(errors="replace"))
        written += token.bytes
    assert written.decode(errors="replace").startswith(text)

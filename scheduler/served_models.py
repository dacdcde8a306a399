"""The models that an engine serves: what they are, and their vocabularies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from llamalane.errors import InvalidRequestError, UnknownModelError
from llamalane.scheduler.intake import LONG_TEXT, TOKENIZERS, ChatPrompt
from llamalane.streams import llama

if TYPE_CHECKING:
    from llamalane.scheduler.assembly import Machinery
    from llamalane.scheduler.config import EngineConfig
    from llamalane.streams.llama import Model, Vocabulary

COUNTED = 8
"""Texts are tokenized for their own sake that could have up to so many times as many tokens as a sequence can hold."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A loaded model.

    Attributes:
        train_context: tokens that it was trained to attend to.
        parameters: how many weights it has; `bytes` is what they take.
        limit: the most tokens that one sequence can hold here, prompt and output together; of a model that embeds or
            reranks, the most tokens of one input.
    """

    vocabulary_size: int
    train_context: int
    parameters: int
    bytes: int
    limit: int


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that requests can name.

    Attributes:
        names: its name, then its aliases.
        task: `generate`, `embed` or `rerank`.
        pooling: what stands for a text, `mean`, `cls`, `last` or `rank`; None for a model that generates.
        dimensions: how many numbers its vectors have; None for one that gives none.
    """

    names: tuple[str, ...]
    task: str
    info: ModelInfo
    pooling: str | None = None
    dimensions: int | None = None


class ServedModels:
    """All models of `machinery`, as `config` names them."""

    def __init__(self, config: EngineConfig, machinery: Machinery) -> None:
        self._entries: list[tuple[ServedModel, Model]] = []
        self._tokenizers = anyio.CapacityLimiter(TOKENIZERS)
        generating = config.generating_model
        if generating is not None:
            info = _describe(machinery.model, machinery.pool.limit)
            self._entries.append((ServedModel(generating.names, generating.task, info), machinery.model))
        for one in machinery.embedders:
            plan = one.plan
            served = ServedModel(
                names=one.names,
                task=plan.task,
                info=_describe(one.model, plan.limit),
                pooling=plan.pooling.value,
                dimensions=plan.width if plan.task == "embed" else None,
            )
            self._entries.append((served, one.model))

    @property
    def all(self) -> tuple[ServedModel, ...]:
        """Each of them; one that generates is first."""
        return tuple(served for served, _ in self._entries)

    def find(self, name: str | None) -> ServedModel:
        """Return the model of that name, or the first one; raises `UnknownModelError`."""
        return self._find(name)[0]

    async def tokenize(self, text: str | ChatPrompt, name: str | None, *, add_special_tokens: bool) -> list[int]:
        """Return the tokens of a text or of a written chat, as the model of that name gets it, or the first one.

        Raises `UnknownModelError`, and `InvalidRequestError` for a text that is far longer than a sequence can be.
        """
        served, model = self._find(name)
        vocabulary = model.vocabulary
        plain = text.text if isinstance(text, ChatPrompt) else text
        if served.task == "generate":
            _check_length(plain, vocabulary, COUNTED * served.info.limit)
        around = add_special_tokens and text is plain

        def work() -> list[int]:
            tokens = vocabulary.tokenize(plain, add_special=around, parse_special=True)
            return vocabulary.with_one_bos(tokens) if add_special_tokens else tokens

        return work() if len(plain) <= LONG_TEXT else await anyio.to_thread.run_sync(work, limiter=self._tokenizers)

    async def detokenize(self, tokens: Sequence[int], name: str | None) -> str:
        """Return the text of tokens of the model of that name, or the first one; control tokens by their names."""
        vocabulary = self._find(name)[1].vocabulary
        size = vocabulary.size
        if not all(type(token) is int and 0 <= token < size for token in tokens):
            raise InvalidRequestError(f"tokens must be integers from 0 to {size - 1}", param="tokens")
        if len(tokens) <= LONG_TEXT:
            return vocabulary.text_of_tokens(tokens)
        return await anyio.to_thread.run_sync(vocabulary.text_of_tokens, tokens)

    def _find(self, name: str | None) -> tuple[ServedModel, Model]:
        for served, model in self._entries:
            if name is None or name in served.names:
                return served, model
        assert name is not None
        raise UnknownModelError(name, [known for served, _ in self._entries for known in served.names])


def _check_length(text: str, vocabulary: Vocabulary, most: int) -> None:
    """Raise `InvalidRequestError` for a text of more than `most` tokens, however it falls into these.

    With some vocabularies llama.cpp takes four times as long for a word that is twice as long, and cannot be stopped.
    """
    fewest = math.ceil(len(llama.encode(text)) / vocabulary.longest_piece)
    if fewest > most:
        raise InvalidRequestError(f"a text of at least {fewest} tokens is not tokenized; at most {most} are")


def _describe(model: Model, limit: int) -> ModelInfo:
    return ModelInfo(model.vocabulary.size, model.train_context, model.parameters, model.bytes, limit)

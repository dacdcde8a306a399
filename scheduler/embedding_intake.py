"""Turns texts into tokens for a model that embeds or reranks, or says why it cannot take them."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar, cast

import anyio.to_thread

from llamalane.errors import InputTooLongError, InvalidRequestError
from llamalane.scheduler.intake import LONG_TEXT

if TYPE_CHECKING:
    from llamalane.scheduler.embedding_plan import EmbeddingPlan
    from llamalane.streams.llama import Model

Input = str | Sequence[int]
"""A text, or its tokens, which are taken as they are."""
MODEL_LIMIT = -1
"""Stands for all tokens that the model takes, where a number of tokens is asked for."""

T = TypeVar("T")
_HOLE = re.compile(r"\{(query|document)\}")


def listed(inputs: str | Sequence[int] | Sequence[Input]) -> Sequence[Input]:
    """Return the inputs that a caller means: a text alone, or one list of tokens, is one input.

    Raises `InvalidRequestError` for none.
    """
    if isinstance(inputs, str):
        return [inputs]
    if not inputs:
        raise InvalidRequestError("there is no input: at least one is needed", param="input")
    several = [one for one in inputs if not isinstance(one, int)]
    if not several:
        return [cast(Sequence[int], inputs)]
    if len(several) < len(inputs):
        raise InvalidRequestError("an input is a text or a list of tokens, not a single token", param="input")
    return several


class EmbeddingIntake:
    """Checks and prepares the inputs of `model`, which takes as many tokens as `plan` says."""

    def __init__(self, model: Model, plan: EmbeddingPlan) -> None:
        self._vocabulary = model.vocabulary
        self._template = model.rerank_template
        self._plan = plan

    async def tokenize_texts(
        self, inputs: Sequence[Input], *, truncate: int | None, add_special_tokens: bool
    ) -> list[list[int]]:
        """Return the tokens of each input; `truncate` cuts off what goes beyond so many tokens.

        Raises `InputTooLongError` for the first that has too many, and `InvalidRequestError` for one that is no text
        and no tokens, or is empty.
        """
        most = self._most(truncate)

        def tokenize() -> list[list[int]]:
            return [
                self._tokens_of(one, _named("input", number, inputs), most, add_special_tokens)
                for number, one in enumerate(inputs)
            ]

        return await _beside_if_long(sum(len(one) for one in inputs if isinstance(one, str)), tokenize)

    async def tokenize_pairs(self, query: str, documents: Sequence[str], *, truncate: int | None) -> list[list[int]]:
        """Return the tokens of the query with each document, as the model was trained to see them.

        `truncate` cuts the documents off, never the query. Raises what `tokenize_texts` raises.
        """
        if not isinstance(query, str) or not query:
            raise InvalidRequestError("the query must be a text of at least one character", param="query")
        if isinstance(documents, str) or not documents:
            raise InvalidRequestError("documents must be a list of at least one text", param="documents")
        for number, document in enumerate(documents):
            if not isinstance(document, str):
                raise InvalidRequestError("a document must be a text", param=f"documents[{number}]")
        most = self._most(truncate)
        pair = self._pair_by_frame if self._template is None else functools.partial(self._pair_by, self._template)

        def tokenize() -> list[list[int]]:
            return [pair(query, one, f"documents[{number}]", most) for number, one in enumerate(documents)]

        return await _beside_if_long(sum(len(query) + len(document) for document in documents), tokenize)

    def _most(self, truncate: int | None) -> int | None:
        """Return to how many tokens inputs are to be cut, None for none."""
        if truncate is None:
            return None
        limit = self._plan.limit
        if (
            isinstance(truncate, bool)
            or not isinstance(truncate, int)
            or not (truncate == MODEL_LIMIT or 1 <= truncate <= limit)
        ):
            raise InvalidRequestError(
                f"truncate_prompt_tokens must be from 1 to {limit}, or {MODEL_LIMIT} for that; got {truncate!r}",
                param="truncate_prompt_tokens",
            )
        return limit if truncate == MODEL_LIMIT else truncate

    def _tokens_of(self, given: Input, name: str, most: int | None, add_special_tokens: bool) -> list[int]:
        if isinstance(given, str):
            if not given:
                raise InvalidRequestError(f"{name} is empty: it needs at least one character", param=name)
            around = self._vocabulary.around_text if add_special_tokens else ([], [])
            content, count = self._vocabulary.tokenize_start(given, self._plan.limit)
            tokens = self._cut(*around, content, count, name, most)
        else:
            self._check_tokens(given, name)
            tokens = self._cut([], [], list(given), len(given), name, most)
        if not tokens:
            raise InvalidRequestError(f"{name} has no tokens", param=name)
        return tokens

    def _cut(
        self, before: list[int], after: list[int], content: list[int], count: int, name: str, most: int | None
    ) -> list[int]:
        """Put what there is of a text between what belongs around it; `count` is how many tokens all of it has."""
        length = len(before) + count + len(after)
        if most is None and length > self._plan.limit:
            raise InputTooLongError(name, length, self._plan.limit, self._plan.train_context)
        room = (self._plan.limit if most is None else most) - len(before) - len(after)
        if room < min(count, 1):
            raise InvalidRequestError(
                f"{name} cannot be cut to {most} tokens: {len(before) + len(after)} of them are not its own",
                param="truncate_prompt_tokens",
            )
        tokens = [*before, *content[: max(room, 0)], *after]
        return self._vocabulary.with_one_bos(tokens) if before else tokens

    def _check_tokens(self, tokens: Sequence[int], name: str) -> None:
        size = self._vocabulary.size
        if not tokens:
            raise InvalidRequestError(f"{name} is empty: it needs at least one token", param=name)
        if not all(type(token) is int and 0 <= token < size for token in tokens):
            raise InvalidRequestError(f"the tokens of {name} must be integers from 0 to {size - 1}", param=name)

    def _pair_by_frame(self, query: str, document: str, name: str, most: int | None) -> list[int]:
        before, between, after = self._vocabulary.around_pair
        question = self._vocabulary.tokenize(query, add_special=False, parse_special=False)
        content, count = self._start_of(document)
        return self._cut([*before, *question, *between], after, content, count, name, most)

    def _pair_by(self, template: str, query: str, document: str, name: str, most: int | None) -> list[int]:
        """Fill the model's own template; the two texts may hold what looks like its holes."""
        whole = _HOLE.sub(lambda hole: query if hole[1] == "query" else document, template)
        tokens, count = self._vocabulary.tokenize_start(whole, self._plan.limit)
        if most is None or count <= most:
            return self._cut([], [], tokens, count, name, most)
        before, _, after = template.partition("{document}")
        head, tail = (
            self._vocabulary.tokenize(part.replace("{query}", query), add_special=False, parse_special=True)
            for part in (before, after)
        )
        content, count = self._start_of(document)
        return self._cut(head, tail, content, count, name, most)

    def _start_of(self, document: str) -> tuple[list[int], int]:
        return self._vocabulary.tokenize_start(document, self._plan.limit, parse_special=False)


async def _beside_if_long(characters: int, work: Callable[[], T]) -> T:
    """Do work on so many characters, on a worker thread if they are many, so that the event loop does not stall."""
    if characters <= LONG_TEXT:
        return work()
    return await anyio.to_thread.run_sync(work)


def _named(name: str, number: int, all_of_them: Sequence[object]) -> str:
    return name if len(all_of_them) == 1 else f"{name}[{number}]"

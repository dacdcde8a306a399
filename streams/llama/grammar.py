"""Keeps outputs within a grammar, by forbidding in each step the tokens that would leave it.

llguidance does the parsing. A grammar is compiled once, when a request is submitted; each row then follows it at its
own pace. Which tokens may come next depends on nothing that a step computes, only on the token before, so a helper
thread finds it out while llama.cpp computes the step, and the lane's thread only applies it.
"""

from __future__ import annotations

import ctypes
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import TypeVar

import llguidance
import numpy as np
import numpy.typing as npt

from llamalane.errors import GrammarError, InvalidRequestError
from llamalane.streams.grammar import Grammar
from llamalane.streams.llama.grammar_source import labelled, parts_of, shorten, source_of, unusable
from llamalane.streams.llama.library import library
from llamalane.streams.llama.vocabulary import Vocabulary

T = TypeVar("T")

KEPT_GRAMMARS = 128
"""So many compiled grammars are kept for the next request that has the same one."""
COMPILER_STACK = 128 * 2**20
"""Bytes of stack for compiling, which recurses along a grammar's rules: a stack that overflows ends the process.

The deepest grammars that fit a grammar's length need less than an eighth of it. Following them does not recurse.
"""
_LIMITS = llguidance.LLParserLimits(max_lexer_states=50_000, verbose_errors=False)
_STACK_SIZE = threading.Lock()  # the size of new threads' stacks is the whole process's


class CompiledGrammar:
    """A grammar that is ready to be followed, by any number of rows on any lanes."""

    def __init__(self, matcher: llguidance.LLMatcher, vocabulary: Vocabulary) -> None:
        self._matcher = matcher
        self.vocabulary_size = vocabulary.size
        self.ends = sorted(vocabulary.end_of_generation)

    def matcher(self, written: Sequence[int] = ()) -> llguidance.LLMatcher:
        """Return a matcher of its own for an output that begins with `written`."""
        matcher = self._matcher.deep_copy()
        matcher.consume_tokens(list(written))
        return matcher


@dataclass(frozen=True, slots=True)
class Following:
    """The grammar of a row's output, of which the tokens `written` are there."""

    grammar: CompiledGrammar
    written: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Mask:
    """Which tokens may come next: `bias` is −∞ for all others, and else 0.

    `end` is a token that ends generation, if nothing else may come.
    """

    bias: npt.NDArray[np.float32]
    end: int | None


class Follower:
    """Follows a grammar along one row's output. Belongs to a lane's thread; `helper` runs what takes time.

    Where the grammar cannot be followed any more, `GrammarError` is raised.
    """

    def __init__(self, following: Following, helper: Executor) -> None:
        self.ends = frozenset(following.grammar.ends)
        self._grammar = following.grammar
        self._helper = helper
        self._matcher: llguidance.LLMatcher | None = None
        self._mask: Future[Mask] = helper.submit(self._begin, following.written)

    def mask(self) -> Mask:
        """Return which tokens may come next, after waiting for the helper if need be."""
        return self._mask.result()

    def accept(self, token: int) -> bool:
        """Take the token that was chosen by the mask; returns whether the output is complete with it."""
        assert self._matcher is not None
        self._matcher.consume_token(token)
        _check(self._matcher)
        if self._matcher.is_stopped():
            return True
        self._mask = self._helper.submit(self._find_mask, self._matcher)
        return False

    def close(self) -> None:
        """Let the helper do nothing more for this row, but for what it has begun."""
        self._mask.cancel()

    def _begin(self, written: Sequence[int]) -> Mask:
        self._matcher = self._grammar.matcher(written)
        return self._find_mask(self._matcher)

    def _find_mask(self, matcher: llguidance.LLMatcher) -> Mask:
        bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        _check(matcher)
        allowed = np.unpackbits(bits, count=self._grammar.vocabulary_size, bitorder="little").view(np.bool_)
        ends = [token for token in self._grammar.ends if allowed[token]]
        only_end = len(ends) == np.count_nonzero(allowed)
        return Mask(np.where(allowed, np.float32(0), np.float32(-np.inf)), ends[0] if ends and only_end else None)


class Grammars:
    """Compiles grammars for a model, and keeps those that were used last. Safe from any thread."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._compiling = threading.Lock()
        self._tokenizer: llguidance.LLTokenizer | None = None
        self._access = threading.Lock()
        self._kept: OrderedDict[Grammar, CompiledGrammar] = OrderedDict()

    def prepare(self) -> None:
        """Read the vocabulary, as the first grammar else has to. No other Python code runs meanwhile (0.2 s)."""
        with self._compiling:
            self._read_vocabulary()

    def find(self, grammar: Grammar) -> CompiledGrammar | None:
        """Return a grammar that is compiled already, None if it is not; never waits for one to be compiled."""
        with self._access:
            if grammar in self._kept:
                self._kept.move_to_end(grammar)
            return self._kept.get(grammar)

    def compile(self, grammar: Grammar) -> CompiledGrammar:
        """Compile a grammar, one at a time; takes from a millisecond to some seconds.

        Raises `InvalidRequestError` for one that is wrong, too large, or needs what is not supported.
        """
        with self._compiling:
            compiled = self.find(grammar)
            if compiled is None:
                compiled = self._compile(grammar)
                with self._access:
                    self._kept[grammar] = compiled
                    if len(self._kept) > KEPT_GRAMMARS:
                        self._kept.popitem(last=False)
            return compiled

    def _compile(self, grammar: Grammar) -> CompiledGrammar:
        if not self._vocabulary.end_of_generation:
            raise InvalidRequestError(
                "this model has no token that ends generation, without which a grammar's end cannot be told",
                param="grammar",
            )
        matcher = self._match(grammar)
        if matcher.is_error():
            self._check_parts(grammar)
            raise unusable(grammar, matcher.get_error())
        return CompiledGrammar(matcher, self._vocabulary)

    def _match(self, grammar: Grammar) -> llguidance.LLMatcher:
        tokenizer = self._read_vocabulary()

        def compile_and_try() -> llguidance.LLMatcher:
            source = source_of(grammar, self._vocabulary.marked)
            with self._vocabulary.in_use():
                matcher = llguidance.LLMatcher(tokenizer, source, log_level=0, limits=_LIMITS)
                matcher.compute_bitmask()  # some faults show only then; and later masks find much of their work done
            return matcher

        return _on_deep_stack(compile_and_try)

    def _check_parts(self, grammar: Grammar) -> None:
        """Raise the error of the part that is to blame, with its label; if none is, do nothing."""
        for part in parts_of(grammar):
            matcher = self._match(part.grammar)
            if matcher.is_error():
                raise labelled(part.label, unusable(part.grammar, matcher.get_error()))

    def _read_vocabulary(self) -> llguidance.LLTokenizer:
        if self._tokenizer is None:
            with self._vocabulary.in_use() as pointer:
                self._tokenizer = llguidance.LLTokenizer.from_llamacpp(  # type: ignore[attr-defined]  # its stub lacks it
                    tokens=self._vocabulary.marked_pieces(b"\xff"),
                    vocab_ptr=pointer,
                    tokenize_fptr=ctypes.cast(library().api._lib.llama_tokenize, ctypes.c_void_p).value,
                    eos_token=sorted(self._vocabulary.end_of_generation),
                )
        return self._tokenizer


def _check(matcher: llguidance.LLMatcher) -> None:
    if matcher.is_error():
        raise GrammarError(shorten(matcher.get_error()))


def _on_deep_stack(work: Callable[[], T]) -> T:
    """Return what `work` returns, or raise what it raises, on a thread whose stack is large enough for any grammar."""
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    with _STACK_SIZE:
        usual = threading.stack_size(COMPILER_STACK)
        try:
            thread = threading.Thread(target=run, name="llamalane-grammar", daemon=True)
            thread.start()
        finally:
            threading.stack_size(usual)
    thread.join()
    return outcome.result()

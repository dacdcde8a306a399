"""Log probabilities of a request's tokens, told with the text that they belong to."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from llamalane.scheduler.spelling import Spell, Token
from llamalane.streams import TokenScores


@dataclass(frozen=True, slots=True)
class TokenLogprob(Token):
    """A token that might stand somewhere, with the natural logarithm of its probability there, −∞ to 0."""

    logprob: float


@dataclass(frozen=True, slots=True)
class ScoredToken(TokenLogprob):
    """A token that stands somewhere.

    `alternatives` are the likeliest tokens in its place, the likeliest first; it may be one of them.
    """

    alternatives: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True)
class OutputToken(ScoredToken):
    """A token of an output, whose text begins at character `start` of it.

    A token in the midst of a character begins where that does.
    """

    start: int


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """The tokens of a prompt: the first one, which nothing stands before, and all that follow it."""

    first: Token
    rest: tuple[ScoredToken, ...]


class OutputLogprobs:
    """Collects the log probabilities of an output, and hands out those of tokens whose text is handed out.

    A token goes with the first character that is its own, or that it is a part of. One that has no text never does,
    nor one of which all text was cut off at a stop string. `gap_before` tells how many broken characters would come
    before a token's text if it were decoded next, None if it has none.
    """

    def __init__(self, spell: Spell, gap_before: Callable[[int], int | None]) -> None:
        self.cumulative = 0.0
        """The sum over all tokens that were chosen, whatever became of their text."""
        self._spell = spell
        self._gap_before = gap_before
        self._length = 0
        self._silent: OutputToken | None = None
        """The last token, if it has no text."""
        self._waiting: deque[OutputToken] = deque()
        self._released: list[OutputToken] = []

    @property
    def released(self) -> tuple[OutputToken, ...]:
        """All tokens that were handed out."""
        return tuple(self._released)

    @property
    def ending(self) -> OutputToken | None:
        """The last token, if it has no text: it stands at the end of what was handed out."""
        return None if self._silent is None else replace(self._silent, start=self._length)

    def add(self, scores: TokenScores, *, held: int) -> None:
        """Take the next token, before its text is decoded; `held` whole characters were not handed out yet."""
        self.cumulative += scores.logprob
        spelled, alternatives = self._spell(scores.token), _alternatives(scores, self._spell)
        gap = self._gap_before(scores.token)
        start = self._length + held + (gap or 0)
        token = OutputToken(spelled.id, spelled.text, spelled.bytes, scores.logprob, alternatives, start)
        self._silent = token if gap is None else None
        if gap is not None:
            self._waiting.append(token)

    def release(self, text: str) -> tuple[OutputToken, ...]:
        """Hand out the tokens that belong to `text`, which is handed out now."""
        self._length += len(text)
        released: list[OutputToken] = []
        while self._waiting and self._waiting[0].start < self._length:
            released.append(self._waiting.popleft())
        self._released += released
        return tuple(released)


class PromptMeasurement:
    """Collects the log probabilities of a prompt, part by part as they are computed."""

    def __init__(self, tokens: Sequence[int], spell: Spell) -> None:
        self._size = len(tokens)
        self._spell = spell
        self._first = spell(tokens[0])
        self._rest: list[ScoredToken] = []

    @property
    def missing(self) -> range:
        """Which tokens are still to be measured."""
        return range(1 + len(self._rest), self._size)

    @property
    def result(self) -> PromptLogprobs | None:
        """The whole prompt, None while some of it is missing."""
        return None if self.missing else PromptLogprobs(self._first, tuple(self._rest))

    def add(self, scores: Sequence[TokenScores]) -> None:
        """Take the next tokens."""
        for one in scores:
            token = self._spell(one.token)
            alternatives = _alternatives(one, self._spell)
            self._rest.append(ScoredToken(token.id, token.text, token.bytes, one.logprob, alternatives))


def _alternatives(scores: TokenScores, spell: Spell) -> tuple[TokenLogprob, ...]:
    likeliest = ((spell(token), logprob) for token, logprob in scores.likeliest)
    return tuple(TokenLogprob(token.id, token.text, token.bytes, logprob) for token, logprob in likeliest)

"""What the clients ask for, by name: short and long prompts, some that begin alike, come again, or are more urgent."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice

from llamalane.bench.peers.kinds import Traffic
from llamalane.bench.workload import SAMPLING, Question, Source, Span, Workload, random_text

_SPREAD = 0.3
_DEFAULTS = {
    Traffic.FRESH: (40, 48),
    Traffic.SHORT_CHAT: (12, 32),
    Traffic.LONG_PROMPT: (300, 32),
    Traffic.SHARED_PREFIX: (20, 32),
    Traffic.REPEATED: (200, 32),
    Traffic.MIXED: (40, 48),
}
"""Mean words in a prompt, and tokens in an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefixes:
    """Prompts that begin with one of a few texts, as with a system prompt, and go on differently."""

    questions_of: Workload
    prefixes: int = 2
    prefix_words: int = 200

    @property
    def sampling(self) -> Mapping[str, float]:
        """As that of what follows the prefix."""
        return self.questions_of.sampling

    def questions(self, seed: int, client: int) -> Iterator[Question]:
        """Give the questions of one client; all clients share the prefixes."""
        texts = random.Random(f"{seed}/prefixes")
        prefixes = [random_text(texts, self.prefix_words) for _ in range(self.prefixes)]
        generator = random.Random(f"{seed}/{client}/prefix")
        for question in self.questions_of.questions(seed, client):
            yield replace(question, prompt=f"{generator.choice(prefixes)} {question.prompt}")

    def __str__(self) -> str:
        return f"one of {self.prefixes} prefixes of {self.prefix_words} words and {self.questions_of}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedPrompts:
    """A number of prompts that come again and again, more of them than there are places."""

    questions_of: Workload
    prompts: int = 24

    @property
    def sampling(self) -> Mapping[str, float]:
        """As that of the prompts."""
        return self.questions_of.sampling

    def questions(self, seed: int, client: int) -> Iterator[Question]:
        """Give the questions of one client, each any of the prompts; their answers differ."""
        prompts = [one.prompt for one in islice(self.questions_of.questions(seed, -1), self.prompts)]
        generator = random.Random(f"{seed}/{client}/repeated")
        for question in self.questions_of.questions(seed, client):
            yield replace(question, prompt=generator.choice(prompts))

    def __str__(self) -> str:
        return f"any of {self.prompts} prompts, made as {self.questions_of}"


@dataclass(frozen=True, slots=True)
class RequestClass:
    """Requests of one kind: of `share` clients in a row, so many ask for it."""

    name: str
    level: int
    share: int
    asks: Workload


def _classes(words: int, tokens: int) -> tuple[RequestClass, ...]:
    short, long = workload(max(1, words // 3), max(1, tokens // 2)), workload(2 * words, 2 * tokens)
    return (
        RequestClass("interactive", 1, 1, short),
        RequestClass("normal", 3, 1, workload(words, tokens)),
        RequestClass("batch", 5, 2, long),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedPriorities:
    """Clients of several classes, each with its own level and lengths. Servers without priorities ignore the levels."""

    classes: tuple[RequestClass, ...]
    sampling: Mapping[str, float] = field(default_factory=lambda: SAMPLING)

    def questions(self, seed: int, client: int) -> Iterator[Question]:
        """Give the questions of one client, all of one class."""
        turns = [one for one in self.classes for _ in range(one.share)]
        own = turns[client % len(turns)]
        for question in own.asks.questions(seed, client):
            yield replace(question, kind=own.name, level=own.level)

    def __str__(self) -> str:
        total = sum(one.share for one in self.classes)
        return "; ".join(f"{one.name} (level {one.level}, {one.share} of {total}): {one.asks}" for one in self.classes)


def workload(words: int, tokens: int) -> Workload:
    """Return a workload with these means, whose lengths spread around them."""
    return Workload(words=Span.around(words, _SPREAD), output_tokens=Span.around(tokens, _SPREAD))


def make_source(traffic: Traffic, words: int | None, tokens: int | None) -> Source:
    """Return what the clients ask for; means that are not given are the traffic's own."""
    own_words, own_tokens = _DEFAULTS[traffic]
    words, tokens = words or own_words, tokens or own_tokens
    match traffic:
        case Traffic.SHARED_PREFIX:
            return SharedPrefixes(questions_of=workload(words, tokens))
        case Traffic.REPEATED:
            return RepeatedPrompts(questions_of=workload(words, tokens))
        case Traffic.MIXED:
            return MixedPriorities(classes=_classes(words, tokens))
        case _:
            return workload(words, tokens)

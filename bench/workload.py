"""What the clients ask for: fresh prompts of random words, the same again for the same seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

_TEXT = """
able above across action after again against agree air almost alone along already also always among amount
angle animal answer apple area arm army arrive art autumn back ball bank base bear beauty because become bed
before begin behind believe bell best better between beyond big bird black blood blow blue board boat body
bone book born both bottom bread break bridge bright bring brother brown build burn busy call captain car
carry catch cause centre chair chance change charge chief child church circle city class clean clear climb
clock cloud coast cold colour column come common company compare complete condition consider contain continue
control cook copper corner cotton country course cover cross crowd current dance danger dark daughter deal
death decide deep degree desert desire difference dinner direct distance divide doctor dollar door double
doubt draw dream dress drink drive during early earth east effect engine enough equal evening event every
example except expect experience face family famous farm father favour fear field fight figure final finger
finish fire first fish flat floor flower foot force foreign forest forget form forward four free fresh friend
front fruit full future game garden gentle glass gold good grass great green ground group grow guess guide
habit half hand happen harbour heart heavy height history hold horse hour house human hundred hunt idea
imagine island iron join journey judge jump keep kind king kitchen lady lake language large late laugh law
lead learn leave letter level light listen little machine manner market master matter meadow measure memory
metal middle minute modern moment money morning mother motion mountain mouth music narrow nation nature
neighbour never night noise north notice number object ocean offer office often open orange order other paint
paper parent party pattern people person picture piece plain planet plant point position possible power
prepare present press prince problem produce promise question quiet raise reach reason record region remember
repeat report result return river road rock round safe sail salt sand school science season second secret
serve settle seven shadow shape sharp shore short shoulder silent silver simple single sister skill sleep slow
smile smoke snow soft soldier song south space speak special spring square stand station steam steel stone
storm story stranger stream street strong subject sudden sugar summer supply surface system table teacher
thick thousand thread through thunder together touch toward trade train travel trouble twelve uncle under
valley value village visit voice wait wander warm watch water weather weight west wheel white window winter
wisdom wonder wood world wrong yellow young
"""
_WORDS = tuple(_TEXT.split())
SAMPLING: Mapping[str, float] = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
"""llama-server's defaults, which every request says."""


@dataclass(frozen=True, slots=True)
class Span:
    """A range of whole numbers, both ends included, from which each request takes one."""

    low: int
    high: int

    def draw(self, generator: random.Random) -> int:
        """Return one of them, all equally likely."""
        return generator.randint(self.low, self.high)

    @classmethod
    def around(cls, middle: int, share: float) -> Span:
        """Return the range from `middle` less its `share` to `middle` and its `share`; never below 1."""
        reach = round(middle * share)
        return cls(max(1, middle - reach), middle + reach)

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}-{self.high}"


@dataclass(frozen=True, slots=True)
class Question:
    """One request: its prompt, how many tokens its answer has, and the seed that chooses them.

    `kind` names the class of requests that it belongs to, if there are several; `level` is its priority, which servers
    that know none are told all the same.
    """

    prompt: str
    output_tokens: int
    seed: int
    kind: str = ""
    level: int | None = None


class Source(Protocol):
    """What clients ask for; `str()` says it in words, after "a completion for"."""

    @property
    def sampling(self) -> Mapping[str, float]:
        """Fields for every request's body."""

    def questions(self, seed: int, client: int) -> Iterator[Question]:
        """Give the questions of one client, without end; the same for the same `seed` and `client`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What every client asks for, again and again.

    Lengths vary, because clients whose requests are all equally long start and end them together, in waves.
    Each answer's length is fixed by `max_tokens` with `ignore_eos`, so that every server does the same
    work.

    Attributes:
        words: words in a prompt.
        output_tokens: tokens in an answer.
        sampling: fields for every request's body.
    """

    words: Span = Span(28, 52)
    output_tokens: Span = Span(32, 64)
    sampling: Mapping[str, float] = field(default_factory=lambda: SAMPLING)

    def questions(self, seed: int, client: int) -> Iterator[Question]:
        """Give the questions of one client, without end; the same for the same `seed` and `client`."""
        generator = random.Random(f"{seed}/{client}")
        while True:
            yield Question(
                prompt=random_text(generator, self.words.draw(generator)),
                output_tokens=self.output_tokens.draw(generator),
                seed=generator.getrandbits(31),
            )

    def __str__(self) -> str:
        return f"a fresh prompt of {self.words} words, answered with {self.output_tokens} tokens"


def random_text(generator: random.Random, words: int) -> str:
    """Return so many random words as a sentence."""
    return " ".join(generator.choices(_WORDS, k=words)).capitalize() + "."

"""Conversations: each turn comes when its user has read and thought, and repeats all that was said before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from llamalane.bench.simulator.gaps import POISSON
from llamalane.bench.simulator.lengths import Lengths, LogNormal, Scaled
from llamalane.bench.simulator.request import Picoseconds, SimulatedRequest, picoseconds
from llamalane.ids import MOST_URGENT, Level, RequestId

_MEAN_OF = 2000
"""So many conversations tell the mean lengths of all."""


@dataclass(frozen=True, kw_only=True)
class Conversations:
    """Users who begin a conversation each, independently.

    Attributes:
        level: the priority of every turn.
        turns: mean number of turns; after each, the user stops with the same probability.
        think: mean seconds from the end of an answer to the next question, exponentially distributed.
        question, answer: how long they are.
        limit: a conversation ends when its next turn would be longer than so many tokens, prompt and output together.
        scale: what all lengths are multiplied with.
    """

    level: Level = MOST_URGENT
    turns: float = 4.0
    think: float = 20.0
    question: Lengths = field(default=LogNormal(median=40, sigma=0.9, most=1024))
    answer: Lengths = field(default=LogNormal(median=120, sigma=0.7, most=1024))
    limit: int = 2048
    scale: float = 1.0

    def requests(self, rate: float, seed: int, count: int) -> Iterator[SimulatedRequest]:
        """Return the first turns of conversations, until these have `count` turns; each names the turn after it.

        `rate` counts all turns, so conversations begin less often. Later turns depend on when answers end.
        """
        times_seed, talk_seed = np.random.SeedSequence(seed).spawn(2)
        generator = np.random.default_rng(talk_seed)
        starts = POISSON.times(np.random.default_rng(times_seed), rate / self.turns)
        begun = 0
        for number, start in enumerate(starts, 1):
            first = self._conversation(f"session-{number}", picoseconds(start), generator)
            yield first
            begun += len(_turns(first))
            if begun >= count:
                return

    def mean_lengths(self) -> tuple[float, float]:
        """Return the means over the turns of many conversations; prompts count whole, kept or not."""
        generator = np.random.default_rng(0)
        firsts = [self._conversation("", 0, generator) for _ in range(_MEAN_OF)]
        turns = [turn for first in firsts for turn in _turns(first)]
        prompts = sum(turn.prompt_tokens for turn in turns)
        return prompts / len(turns), sum(turn.output_tokens for turn in turns) / len(turns)

    def _conversation(self, session: str, start: Picoseconds, generator: np.random.Generator) -> SimulatedRequest:
        turns = int(generator.geometric(1 / self.turns))
        questions = self._fitted(self.question).draw(generator, turns).tolist()
        answers = self._fitted(self.answer).draw(generator, turns).tolist()
        thinking = generator.exponential(self.think, turns).tolist()
        first = last = self._turn(session, 1, questions[0], answers[0], thinking[0])
        for turn in range(1, turns):
            prompt = last.prompt_tokens + last.output_tokens + questions[turn]
            if prompt + answers[turn] > self.limit:
                break
            following = self._turn(session, turn + 1, prompt, answers[turn], thinking[turn])
            last.next_turn = following
            last = following
        first.arrival = start
        return first

    def _turn(self, session: str, turn: int, prompt: int, output: int, think: float) -> SimulatedRequest:
        return SimulatedRequest(
            id=RequestId(f"{session}-{turn}"),
            arrival=0,
            level=self.level,
            prompt_tokens=prompt,
            output_tokens=output,
            session=session,
            think=picoseconds(think),
        )

    def _fitted(self, lengths: Lengths) -> Lengths:
        return Scaled(lengths, self.scale, max(1, self.limit // 4))


def _turns(first: SimulatedRequest) -> list[SimulatedRequest]:
    turns = [first]
    while (following := turns[-1].next_turn) is not None:
        turns.append(following)
    return turns

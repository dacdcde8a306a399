"""A request as the simulator sees it: lengths instead of tokens, and the moments of its life."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from llamalane.ids import MOST_URGENT, Level, RequestId

Picoseconds: TypeAlias = int
"""Simulated time, counted in whole picoseconds, so that the time of many steps is exactly the sum of theirs, though
each is longer by what one KV cell more takes. 64 bits hold 106 days of it."""
SECOND: Picoseconds = 10**12


def seconds(time: Picoseconds) -> float:
    """Return a time in seconds."""
    return time / SECOND


def picoseconds(time: float) -> Picoseconds:
    """Return a time given in seconds, rounded."""
    return round(time * SECOND)


@dataclass(slots=True, eq=False)
class SimulatedRequest:
    """A request: what arrives, and what becomes of it.

    Attributes:
        prompt_tokens: length of the prompt, at least 1.
        output_tokens: how many tokens it will get, at least 1; no policy but the oracle looks at it.
        tenant: whose request it is.
        session: the conversation that it belongs to, `""` for none. A request of a session begins with all that the
            one before it asked and got.
        next_turn: the request that the same client sends after this one has ended and `think` has passed.
        order: counts arrivals.
        key: its place in the order of waiting, given by the policy.
        rank: its level as its lane sees it; a policy that makes no difference on lanes gives all the same.
        sheltered: admitted by the guaranteed share: never displaced.
        admitted: when it first got a place; `first_token` and `ended` are the ends of the steps that computed them.
        lane: where it runs, or ran last.
        cached: prompt tokens that it found in its cells when it was first admitted.
        generated: tokens that it had got when it last left a lane.
        kept: while it is parked, how many of its tokens are in cells that it keeps; on the lane `kept_on`, or in host
            memory when that is None.
        parks: how often it was parked; `parks_in_a_row` without having got on in between.
    """

    id: RequestId
    arrival: Picoseconds
    level: Level
    prompt_tokens: int
    output_tokens: int
    tenant: str = ""
    session: str = ""
    next_turn: SimulatedRequest | None = None
    think: Picoseconds = 0
    order: int = 0
    key: tuple[int, float] = (0, 0.0)
    rank: Level = MOST_URGENT
    sheltered: bool = False
    admitted: Picoseconds | None = None
    first_token: Picoseconds | None = None
    ended: Picoseconds | None = None
    lane: int = 0
    cached: int = 0
    generated: int = 0
    kept: int = 0
    kept_on: int | None = None
    parks: int = 0
    parks_in_a_row: int = 0

    @property
    def tokens(self) -> int:
        """All tokens that it has while it waits: its prompt, and those generated so far."""
        return self.prompt_tokens + self.generated

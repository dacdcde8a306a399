"""One request on a simulated lane, as the lane, its books and the displacement policy see it."""

from __future__ import annotations

from typing import NamedTuple

from llamalane.bench.simulator.request import Picoseconds, SimulatedRequest
from llamalane.ids import Level, RequestId
from llamalane.scheduler.displacement import PROGRESS
from llamalane.scheduler.request import BLOCK, RequestState

_GROWTH = BLOCK - BLOCK // 2 + 1
"""With so many tokens more, a row is given cells for a block more, until it has all that it can come to need."""


class _Unanswered(NamedTuple):
    """What a row's client has been told: no row has an outcome."""

    outcome: None = None


class Row:
    """A request from the moment it gets a place to the moment it loses it.

    Attributes:
        level: its request's rank; `urgency`: rows with smaller values have their prompts computed first.
        sequence: the id that its lane has given it.
        size: how many tokens the lane has to compute before it chooses the row's first one.
        uncomputed: how many tokens are to be computed now: what is left of these, or the one chosen last.
        longest: how many tokens its request comes to have, prompt and output.
        left: how many tokens are still to be chosen; `since_join`: how many it has gained.
        sat_out: how many steps in a row it had no part in; of two rows, the one with the smaller `turn` had its last
            part earlier.
        charged: how many of its request's tokens were counted for its tenant.
        state: running, or to be parked; `parked_since_join` is what it had gained when that was decided.
    """

    delivery = _Unanswered()

    __slots__ = (
        "charged",
        "id",
        "lane",
        "left",
        "level",
        "longest",
        "order",
        "parked_since_join",
        "request",
        "sat_out",
        "sequence",
        "since_join",
        "size",
        "state",
        "turn",
        "uncomputed",
        "urgency",
    )

    def __init__(self, request: SimulatedRequest, lane: int, cached: int) -> None:
        self.request = request
        self.id: RequestId = request.id
        self.lane = lane
        self.level: Level = request.rank
        self.order = request.order
        self.urgency: tuple[float, ...] = (*request.key, request.order)
        self.size = self.uncomputed = request.tokens - cached
        self.left = request.output_tokens - request.generated
        self.longest = request.prompt_tokens + request.output_tokens
        self.since_join = 0
        self.sat_out = self.turn = self.sequence = 0
        self.charged = request.generated
        self.state = RequestState.RUNNING
        self.parked_since_join = 0

    @property
    def generated(self) -> int:
        """How many tokens its request has got in all."""
        return self.request.output_tokens - self.left

    @property
    def length(self) -> int:
        """How many tokens its request has, prompt and output."""
        return self.longest - self.left

    @property
    def sheltered(self) -> bool:
        """Whether it was admitted by the guaranteed share."""
        return self.request.sheltered

    @property
    def overdue(self) -> bool:
        """Whether it has to have a part in the next step."""
        return self.sheltered and self.sat_out > 0

    @property
    def parks_in_a_row(self) -> int:
        """How often it was parked without having got on in between."""
        return 0 if self.since_join >= PROGRESS else self.request.parks_in_a_row

    @property
    def until_change(self) -> int:
        """How many tokens it gains before anything about it changes."""
        if self.request.parks_in_a_row and self.since_join < PROGRESS:
            return min(self.left, PROGRESS - self.since_join)
        return self.left

    def grows(self, steps_ago: int = 0) -> bool:
        """Return whether the token that it gained so many steps ago made it run short of cells, so that it got more."""
        gained = self.since_join - steps_ago
        if not gained or gained % _GROWTH:
            return False
        granted = self.length - self.since_join + gained - _GROWTH + BLOCK
        return granted < self.length + self.left

    def park(self) -> None:
        """Note that it is to leave, and go on later."""
        self.request.parks_in_a_row = self.parks_in_a_row + 1
        self.request.parks += 1
        self.parked_since_join = self.since_join
        self.state = RequestState.PARKING

    def leave(self) -> None:
        """Note that it has left its lane, where its request may have got on at last."""
        self.request.generated = self.generated
        if self.parked_since_join < PROGRESS <= self.since_join:
            self.request.parks_in_a_row = 0

    def cells_to_fill(self) -> int:
        """Return how many tokens its lane had to compute before it chose the first one."""
        return self.size

    def advance(self, tokens: int) -> None:
        """Get so many tokens, none of them the first one."""
        self.left -= tokens
        self.since_join += tokens

    def gain(self, time: Picoseconds) -> None:
        """Get a token, perhaps the first one, at the end of a step."""
        self.uncomputed = 1
        self.advance(1)
        if self.request.first_token is None:
            self.request.first_token = time

"""What can be said of a request before it runs: how long it takes at least, and how much it is likely to use."""

from __future__ import annotations

import math

from llamalane.scheduler.growth import GrowingRow, GrowthPredictor
from llamalane.scheduler.ledger import LaneLedger
from llamalane.scheduler.request import Request
from llamalane.scheduler.roster import Roster


class Foresight:
    """Looks ahead from what the lanes hold and how quick they are, and from the lengths of outputs seen."""

    def __init__(self, roster: Roster, growth: GrowthPredictor) -> None:
        self._roster = roster
        self._growth = growth

    def latest_start(self, request: Request) -> float:
        """Return the moment by which a request must have started to meet its deadline; infinite without one.

        It has to compute what no lane holds of its prompt, and one token more, or all that it asked for if nothing
        else may end it. Once it was admitted, the moment is the deadline itself.
        """
        if request.deadline is None:
            return math.inf
        if request.admitted_at is not None:
            return request.deadline
        return request.deadline - min(self._fewest_seconds(request, ledger) for ledger in self._roster.ledgers.values())

    def tokens_wanted(self, request: Request) -> int:
        """Return what a request's tenant is charged until it is known better: without `max_tokens`, a likely output."""
        if request.sampling.max_tokens is not None:
            return len(request.tokens) + request.max_tokens
        row = GrowingRow(request.level, len(request.tokens), 0, request.max_tokens)
        return len(request.tokens) + self._growth.predict(row)

    def _fewest_seconds(self, request: Request, ledger: LaneLedger) -> float:
        """Return how long a request would have to run on a lane at least, alone and at the lane's usual speed."""
        held = ledger.lane.region.cached(request.findable, request.scope)
        steps = request.max_tokens if request.sampling.ignore_eos and not request.sampling.stop else 1
        return ledger.model.step_seconds(0, len(request.tokens) - held) + (steps - 1) * ledger.model.decode_seconds(1)

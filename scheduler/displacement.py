"""Who has to give way when there is no room. Pure: nothing here parks anybody."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from llamalane.ids import Level

PROGRESS = 32
"""After so many tokens more, a request that was parked counts as one that never was."""


class Displaceable(Protocol):
    """What has to be known of a running request."""

    @property
    def level(self) -> Level:
        """The level at which it was submitted."""

    @property
    def order(self) -> int:
        """Counts submissions."""

    @property
    def sheltered(self) -> bool:
        """Whether it was admitted by the guaranteed share."""

    @property
    def parks_in_a_row(self) -> int:
        """How often it was parked without having got on in between."""


R = TypeVar("R", bound=Displaceable)


class DisplacementPolicy:
    """A more urgent request takes the room of a less urgent one, comparing the levels at which they were submitted.

    Never between equals, which would take turns for ever; and not by what waiting has made of a level, for an old
    batch must not displace a young one. A sheltered request never gives way to a more urgent one, nor does one that
    was parked `most_parks` times in a row (0: nobody gives way).
    """

    def __init__(self, most_parks: int) -> None:
        self._most_parks = most_parks

    def victims(self, level: Level, running: Iterable[R], loss: Callable[[R], float]) -> list[R]:
        """Return who may have to give way to a request of `level`, in the order in which they should.

        The least urgent first, and among equals those that lose least, as `loss` says; then the youngest.
        """
        candidates = [
            request
            for request in running
            if request.level > level and not request.sheltered and request.parks_in_a_row < self._most_parks
        ]
        return sorted(candidates, key=lambda request: (-request.level, loss(request), -request.order))

    @staticmethod
    def first_to_yield(running: Iterable[R]) -> R | None:
        """Return who gives way when the KV cells run out under running requests; None when nobody runs.

        Somebody has to, so that the others can go on: the least urgent, and among equals the youngest. A sheltered
        request only does so when all others are. The oldest one thus always gets to its end.
        """
        return max(running, key=lambda request: (not request.sheltered, request.level, request.order), default=None)

"""What a new configuration changes, as whoever reloads it is told."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Changes:
    """What a new configuration changes, as names such as `scheduler.target_itl`, without values.

    Attributes:
        applied: what holds from now on.
        restart: what differs too, and holds only after a restart.
    """

    applied: tuple[str, ...] = ()
    restart: tuple[str, ...] = ()

    def __add__(self, other: Changes) -> Changes:
        return Changes(self.applied + other.applied, self.restart + other.restart)

"""Requests that start together or not at all: the choices of one prompt, which share its cells."""

from __future__ import annotations

from typing import Generic, TypeVar

MemberT = TypeVar("MemberT")


class Gang(Generic[MemberT]):
    """Requests of which none starts before there is room for all on one lane.

    Once they have started they are requests like others: one may be parked, or end, without the rest.
    """

    def __init__(self) -> None:
        self.waiting: list[MemberT] = []
        """Those that have not started, in the order in which they were submitted."""

    def join(self, member: MemberT) -> None:
        """Take in a member."""
        self.waiting.append(member)

    def leave(self, member: MemberT) -> None:
        """Note that a member has started or ended; nothing happens when it has before."""
        if member in self.waiting:
            self.waiting.remove(member)

"""The waiting requests that want the same lanes, level by level."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, Protocol

from llamalane.ids import Level
from llamalane.scheduler.fairness import Fairness, Weights
from llamalane.scheduler.level_queue import Head, LevelQueue, W
from llamalane.scheduler.priority import LEVELS


class Heads(Protocol[W]):
    """What has to be known of those who wait to choose one of them."""

    def heads(self) -> Iterator[Head[W]]:
        """Return the head of each level that has one."""


class WaitingLine(Generic[W]):
    """Requests that wait for lanes of one kind; its tenants' counters count what they got on those lanes.

    `weights` says how much of the service each tenant should get.
    """

    def __init__(self, weights: Weights) -> None:
        self.fairness = Fairness(weights)
        """Whose turn it is; whoever admits and runs requests charges it."""
        self.levels: dict[Level, LevelQueue[W]] = {level: LevelQueue(self.fairness.at(level)) for level in LEVELS}

    def __len__(self) -> int:
        return sum(map(len, self.levels.values()))

    def heads(self) -> Iterator[Head[W]]:
        """Return the head of each level that has one."""
        for queue in self.levels.values():
            head = queue.head()
            if head is not None:
                yield head

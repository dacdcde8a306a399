"""What happened, for whoever wants to follow: tests, logs, a live view."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass


class EventKind(enum.Enum):
    """What an event tells."""

    ACCEPTED = "accepted"
    """A request entered the queue."""
    ADMITTED = "admitted"
    """It got a place on a lane."""
    STARTED = "started"
    """A step computed its first rows."""
    ENDED = "ended"
    """Its outcome is known."""
    PARKED = "parked"
    """It had to give way, and waits again."""
    HANDED_OVER = "handed over"
    """Its prompt was computed on a lane for prompts, and it waits for one that computes its output."""
    REQUEUED = "requeued"
    """Its lane failed, and it waits again."""
    PRIORITIZED = "prioritized"
    """It got another priority."""
    STEP = "step"
    """A lane finished a step; the time is the one at which the step started."""
    LANE_FAILED = "lane failed"
    LANE_READY = "lane ready"


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened at `time` (seconds, as the engine's clock counts)."""

    time: float
    kind: EventKind
    request: str = ""
    lane: str = ""
    step: int = 0


Observer = Callable[[Event], None]
"""Called on the event loop for every event; must be quick and must not raise."""

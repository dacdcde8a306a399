"""How long requests wait, counted in the admissions of others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from llamalane.scheduler import Event, EventKind

SHARE = 10
"""One in so many admissions goes to whoever has waited longest, unless the configuration says otherwise."""


@dataclass(slots=True)
class Wait:
    """A request's time in the queue.

    Attributes:
        older: the requests that came before it and waited at some time meanwhile.
        admissions: those from its arrival on, its own among them.
        fewest: how many others waited at least when one of these was made.
        seconds: how long it was.
    """

    older: set[str] = field(default_factory=set)
    admissions: int = 0
    fewest: int = 10**9
    seconds: float = 0.0

    @property
    def bound(self) -> int:
        """The most admissions that it may take, by docs/scheduling.md."""
        return SHARE * (len(self.older) + 1)


def wait_of(request: str, events: Sequence[Event]) -> Wait:
    """Return how long a request waited until it was first admitted; raises `ValueError` if it never was."""
    waiting: set[str] = set()
    wait, arrival = Wait(), 0.0
    came_before, came = set[str](), False
    for event in events:
        match event.kind:
            case EventKind.ACCEPTED if event.request == request:
                came, arrival, wait.older = True, event.time, waiting.copy()
            case EventKind.ACCEPTED:
                waiting.add(event.request)
                if not came:
                    came_before.add(event.request)
            case EventKind.PARKED | EventKind.REQUEUED:
                waiting.add(event.request)
                if came and event.request in came_before:
                    wait.older.add(event.request)
            case EventKind.ADMITTED | EventKind.ENDED:
                waiting.discard(event.request)
                if came and event.kind is EventKind.ADMITTED:
                    wait.admissions += 1
                    wait.seconds = event.time - arrival
                    if event.request == request:
                        return wait
                    wait.fewest = min(wait.fewest, len(waiting))
            case _:
                pass
    raise ValueError(f"request {request} was never admitted")

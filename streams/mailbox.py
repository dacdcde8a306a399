"""The one-place mailbox between whoever plans and a lane."""

from __future__ import annotations

import threading

from llamalane.streams.steps import StepPlan


class Mailbox:
    """Room for one plan; a newer one replaces one that was not taken. Taking is atomic."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._plan: StepPlan | None = None
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether the lane shall end."""
        return self._closed

    def post(self, plan: StepPlan) -> None:
        """Lay a plan down."""
        with self._condition:
            self._plan = plan
            self._condition.notify()

    def take(self, timeout: float | None) -> StepPlan | None:
        """Take the plan out; sleep until there is one or it is closed, for `timeout` seconds at most, None for ever."""
        with self._condition:
            if timeout != 0:
                self._condition.wait_for(lambda: self._plan is not None or self._closed, timeout)
            plan, self._plan = self._plan, None
            return plan

    def close(self) -> None:
        """Wake the lane for its end."""
        with self._condition:
            self._closed = True
            self._condition.notify()

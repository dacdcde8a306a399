"""What the scheduler knows of one lane: its requests, its speed, and the edits that it has yet to take."""

from __future__ import annotations

from llamalane.ids import LEAST_URGENT, PlanVersion, RequestId
from llamalane.scheduler.pacing import StepTimeModel
from llamalane.scheduler.request import Request
from llamalane.streams import Edit, Join, LaneFailed, Leave, PoolLane, StepPlan, StepReport

NOTABLE_CHANGE = 0.25
"""A new prefill budget is worth a plan of its own when it differs by this share of the old one."""

UNPROTECTED = 4
"""With no output to protect, a step for prompts may be so many times as long as the target."""


class LaneLedger:
    """The scheduler's books of one lane. Every request that holds a lease of the lane is in `running`."""

    def __init__(self, lane: PoolLane) -> None:
        self.lane = lane
        self.running: dict[RequestId, Request] = {}
        self.model = StepTimeModel()
        self.down = False
        self.failures = 0
        self.steps = 0
        self.decode_seconds = 0.0
        self.sample_seconds = 0.0
        self.idle_seconds = 0.0
        self._epoch = 0
        self._version = PlanVersion(0)
        self._unacknowledged: list[Edit] = []
        self._fresh: list[Join | Leave] = []
        self._planned_tokens = 0

    def edit(self, change: Join | Leave) -> None:
        """Put `change` into the next plan."""
        self._fresh.append(change)

    def observe(self, report: StepReport) -> None:
        """Take note of a step: the plan that it acknowledges, and its times."""
        self._unacknowledged = [edit for edit in self._unacknowledged if edit.version > report.version]
        self.steps = report.step
        if report.times is not None:
            self.model.observe(report)
            self.decode_seconds += report.times.decode
            self.sample_seconds += report.times.sample
            self.idle_seconds += report.times.idle

    def fail(self, failure: LaneFailed) -> list[Request]:
        """Take note that the lane lost its context, and return the requests that ran on it."""
        self.failures += 1
        self.down = failure.down
        self._epoch = failure.epoch
        self._unacknowledged.clear()
        self._fresh.clear()
        lost = list(self.running.values())
        self.running.clear()
        return lost

    def next_plan(self, target: float) -> StepPlan | None:
        """Return the plan to post, None when the lane needs no new one.

        Every plan repeats the edits that were not acknowledged, since it replaces one that was perhaps not taken.
        """
        tokens = self._prefill_tokens(target)
        notable = abs(tokens - self._planned_tokens) > NOTABLE_CHANGE * self._planned_tokens
        if not self._fresh and not (notable and self._prompts_pending()):
            return None
        self._version = PlanVersion(self._version + 1)
        self._unacknowledged.extend(Edit(self._version, change) for change in self._fresh)
        self._fresh.clear()
        self._planned_tokens = tokens
        return StepPlan(self._epoch, self._version, tuple(self._unacknowledged), tokens)

    def _prefill_tokens(self, target: float) -> int:
        """Return how many prompt tokens a step may compute.

        The target protects running outputs from prompts. A prompt that is more urgent than all of them gets longer
        steps, in which no other prompt has a part.
        """
        largest = self.lane.backend.max_step_tokens
        prompts = [request for request in self.running.values() if not request.since_join]
        outputs = [request for request in self.running.values() if request.since_join]
        best = min((request.level for request in prompts), default=LEAST_URGENT)
        protected = sum(request.level <= best for request in outputs)
        if protected:
            return self.model.prefill_tokens(protected, target, largest)
        tokens = self.model.prefill_tokens(0, UNPROTECTED * target, largest)
        if outputs:
            tokens = min(tokens, sum(request.cells_to_fill() for request in prompts if request.level == best))
        return tokens

    def _prompts_pending(self) -> bool:
        return any(not request.since_join for request in self.running.values())

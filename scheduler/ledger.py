"""What the scheduler knows of one lane: its requests, its speed, and the edits that it has yet to take."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from llamalane.ids import LEAST_URGENT, Level, PlanVersion, RequestId, StepNumber
from llamalane.scheduler.histogram import Histogram
from llamalane.scheduler.pacing import StepTimeModel
from llamalane.scheduler.request import Request, RequestState
from llamalane.streams import Change, Copied, Device, Edit, Join, LaneFailed, PoolLane, StepPlan, StepReport, StepShare

NOTABLE_CHANGE = 0.25
"""A new prefill budget is worth a plan of its own when it differs by this share of the old one."""

UNPROTECTED = 4
"""With no output to protect, a step for prompts may be so many times as long as the target."""

LONG = 16
"""A prompt that takes more than so many steps of the target's length is long,"""
STRETCH = 1.8
"""and makes the steps only so many times as long as they are without it: it would stretch too many."""

COPY_WEIGHT = 0.2
"""How much the newest copy counts in a running mean."""

HOPELESS = 1.25
"""Rows that miss their target even when alone get steps so many times as long as those alone would be."""


STEP_BOUNDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75),
    *(1.0, 2.0, 5.0, 10.0, 30.0),
)
"""Seconds."""
ROW_BOUNDS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256)
TOKEN_BOUNDS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384)
"""vLLM's bounds for the tokens of a step."""


class LaneLedger:
    """The scheduler's books of one lane.

    Every request that holds a place of the lane is in `running`, and every one that the lane has been told to park,
    and has not confirmed, in `parking`. `targets` are the seconds between two tokens that each level should see. Of
    each step, its time is in `step_seconds`, its generated tokens' rows in `step_rows`, and all tokens in
    `step_tokens`.
    """

    def __init__(self, lane: PoolLane, targets: Mapping[Level, float]) -> None:
        self.lane = lane
        self.running: dict[RequestId, Request] = {}
        self.parking: dict[RequestId, Request] = {}
        self.model = StepTimeModel()
        self.down = False
        self.failures = 0
        self.steps = 0
        self.abandoned_steps = 0
        self.decode_seconds = 0.0
        self.sample_seconds = 0.0
        self.idle_seconds = 0.0
        self.drafted_tokens = 0
        self.accepted_tokens = 0
        self.threads = lane.stream.options.threads if lane.stream.options.device is Device.CPU else 0
        """CPU threads that the last step was computed with; 0 on a GPU, where they do little."""
        self.step_seconds = Histogram(STEP_BOUNDS)
        self.step_rows = Histogram(ROW_BOUNDS)
        self.step_tokens = Histogram(TOKEN_BOUNDS)
        self._targets = targets
        self._epoch = 0
        self._version = PlanVersion(0)
        self._unacknowledged: list[Edit] = []
        self._fresh: list[Change] = []
        self._planned_tokens = 0
        self._planned_share: StepShare | None = None
        self._planned_successors = False
        self._awaited = False
        """Whether the lane waits a moment for a plan, as a row has ended."""
        self.step_began = 0.0
        """About when the step under way did."""
        self._copy_seconds: float | None = None
        self._left_by_themselves: Counter[RequestId] = Counter()
        self._parked_in_vain: Counter[RequestId] = Counter()
        """How many requests of an id have ended that the lane was told to drop, or to park, and has yet to confirm."""
        self._interrupted: dict[RequestId, Request] = {}
        """Requests whose step was abandoned, and that have not got a token since."""

    def get(self, request: RequestId) -> Request | None:
        """Return the request of that id which the lane computes or is to park, None when there is none."""
        return self.running.get(request) or self.parking.get(request)

    def note_ended(self, request: Request) -> None:
        """Take note that a request has ended by itself, whatever the lane was told of it meanwhile.

        What the lane confirms of that later is not to be taken for news of another request of the same id.
        """
        if request.state is RequestState.LEAVING:
            self._left_by_themselves[request.id] += 1
        if request.id in self.parking:
            self._parked_in_vain[request.id] += 1

    def left(self, request: RequestId) -> Request | None:
        """Return the request that has left, as the lane confirms; None when it had ended by itself."""
        return None if _take_one(self._left_by_themselves, request) else self.get(request)

    def parked(self, request: RequestId) -> Request | None:
        """Return the request that was parked, as the lane confirms; None when it had ended, or is to be dropped."""
        found = None if _take_one(self._parked_in_vain, request) else self.parking.get(request)
        return found if found is not None and found.state is RequestState.PARKING else None

    def edit(self, change: Change) -> None:
        """Put `change` into the next plan."""
        self._fresh.append(change)

    def observe(self, report: StepReport, now: float) -> None:
        """Take note of a step: the plan that it acknowledges, and its times."""
        if self._unacknowledged:
            self._unacknowledged = [edit for edit in self._unacknowledged if edit.version > report.version]
        self.steps = report.step
        self.step_began = now
        if report.abandoned:
            self.abandoned_steps += 1
        self._awaited = self._planned_successors and any(output.ended for output in report.outputs)
        for output in report.outputs:
            self._interrupted.pop(output.request, None)
        times = report.times
        if times is not None:
            self.model.observe(report)
            self.decode_seconds += times.decode
            self.sample_seconds += times.sample
            self.idle_seconds += times.idle
            if self.threads:
                self.threads = times.threads or self.threads
            self.step_seconds.observe(times.decode + times.sample)
            self.step_rows.observe(report.decode_rows)
            self.step_tokens.observe(report.decode_rows + report.prefill_tokens + report.drafted_tokens)
            self.drafted_tokens += report.drafted_tokens
            self.accepted_tokens += report.accepted_tokens

    def step_age(self, now: float) -> float:
        """Return about how many seconds ago the step under way began; 0 while the lane has nothing to compute."""
        return max(0.0, now - self.step_began) if any(self._under_way()) else 0.0

    def observe_copy(self, copied: Copied) -> None:
        """Take note of how long it took to give a request a prefix that another sequence holds."""
        token_seconds = self.model.token_seconds
        if copied.length and token_seconds:
            mean = self._copy_seconds
            self._copy_seconds = copied.seconds if mean is None else mean + COPY_WEIGHT * (copied.seconds - mean)
            self.lane.region.note_copy_cost(math.ceil(self._copy_seconds / token_seconds))

    def fail(self, failure: LaneFailed) -> None:
        """Take note that the lane lost its context, and with it all that ran there."""
        self.failures += 1
        self.down = failure.down
        self._epoch = failure.epoch
        self._unacknowledged.clear()
        self._fresh.clear()
        self._interrupted.clear()
        self._left_by_themselves.clear()
        self._parked_in_vain.clear()
        self.running.clear()
        self.parking.clear()

    def next_plan(self, now: float, *, successors: bool = False) -> StepPlan | None:
        """Return the plan to post, None when the lane needs no new one; `successors` tells that requests wait.

        Every plan repeats the edits that were not acknowledged, since it replaces one that was perhaps not taken.
        """
        prompts, outputs = self._prompts(), self._output_levels()
        share = self._share(outputs)
        same = share == self._planned_share and (successors == self._planned_successors or not self.running)
        wanted = not same or bool(self._fresh) or self._awaited
        if not wanted and not prompts:
            return None
        tokens = self._prefill_tokens(prompts, outputs)
        if not wanted and abs(tokens - self._planned_tokens) <= NOTABLE_CHANGE * self._planned_tokens:
            return None
        if next(self._under_way(), None) is None:
            self.step_began = now
        self._version = PlanVersion(self._version + 1)
        self._unacknowledged.extend(Edit(self._version, change) for change in self._fresh)
        self._fresh.clear()
        self._planned_tokens, self._planned_share, self._planned_successors = tokens, share, successors
        self._awaited = False
        edits = tuple(self._unacknowledged)
        return StepPlan(self._epoch, self._version, edits, tokens, share, successors, StepNumber(self.steps))

    def step_to_abandon(self, now: float, abort_after: float | None) -> StepNumber | None:
        """Return the step under way if it should be broken off, and note that it is; None for `abort_after` is never.

        Either nobody wants its results any more; or some who are about to join are more urgent than all that it
        computes, and none of its rows has lost a step in this way without having got a token since. And its end must
        be more than `abort_after` seconds away.
        """
        if abort_after is None or not self._fresh:
            return None
        under_way = list(self._under_way())
        if not under_way:
            return None
        joining = [change.level for change in self._fresh if isinstance(change, Join)]
        unwanted = all(request.state is RequestState.LEAVING for request in under_way)
        overtaken = min(joining, default=LEAST_URGENT) < min(request.level for request in under_way)
        spared = any(request.id in self._interrupted for request in under_way)
        if (unwanted or (overtaken and not spared)) and self._seconds_left(under_way, now) > abort_after:
            interrupted = [*self._interrupted.values(), *under_way]
            self._interrupted = {request.id: request for request in interrupted if request.delivery.outcome is None}
            return StepNumber(self.steps + 1)
        return None

    def less_urgent_rows(self) -> int | None:
        """Return how many rows less urgent than the best a step may have, for the best to meet their target.

        None when there are none, or all of them fit.
        """
        return self._fitting_beside_best(self._output_levels())

    def best_output(self) -> Level:
        """Return the most urgent level that has rows in the decode steps."""
        return min(self._output_levels(), default=LEAST_URGENT)

    def admits(self, level: Level) -> bool:
        """Return whether one row more of `level` leaves those that are more urgent their target."""
        levels = self._output_levels()
        best = min(levels, default=LEAST_URGENT)
        rows = levels.count(best)
        return level <= best or self._fitting(best, rows, rows + 1) > 0

    def __iter__(self) -> Iterator[Request]:
        yield from self.running.values()
        yield from self.parking.values()

    def _under_way(self) -> Iterator[Request]:
        """Return the requests of which the lane knows."""
        joining = {change.request for change in self._fresh if isinstance(change, Join)}
        return (request for request in self if request.id not in joining)

    def _prompts(self) -> list[Request]:
        return [request for request in self.running.values() if not request.since_join]

    def _output_levels(self) -> list[Level]:
        return [request.level for request in self.running.values() if request.since_join]

    def _fitting(self, best: Level, rows: int, most: int) -> int:
        """Return how many rows, of `most` in all, fit beside `rows` of level `best`.

        Where these alone take longer than their target, a little more than they take is what is aimed at.
        """
        target = max(self._targets[best], HOPELESS * self.model.decode_seconds(rows))
        return max(0, self.model.rows_within(target, most) - rows)

    def _fitting_beside_best(self, levels: Sequence[Level]) -> int | None:
        """Return how many of the rows of these levels, less urgent than the best, fit; None when all do."""
        best = min(levels, default=LEAST_URGENT)
        urgent = levels.count(best)
        if urgent == len(levels):
            return None
        fitting = self._fitting(best, urgent, len(levels))
        return fitting if len(levels) - urgent > fitting else None

    def _share(self, outputs: Sequence[Level]) -> StepShare | None:
        fitting = self._fitting_beside_best(outputs)
        return None if fitting is None else StepShare(min(outputs), max(1, fitting))

    def _prefill_tokens(self, prompts: Sequence[Request], outputs: Sequence[Level]) -> int:
        """Return how many prompt tokens a step may compute, beside outputs of so many rows of these levels.

        The target protects running outputs from prompts. A prompt that is more urgent than all of them gets longer
        steps, in which no other prompt has a part.
        """
        largest = self.lane.backend.max_step_tokens
        best = min([request.level for request in prompts], default=LEAST_URGENT)
        protected = [level for level in outputs if level <= best]
        if protected:
            target = min([self._targets[level] for level in protected])
            tokens = self.model.prefill_tokens(len(protected), target, largest)
            if any(request.cells_to_fill() > LONG * tokens for request in prompts):
                target = min(target, STRETCH * self.model.decode_seconds(len(protected)))
                tokens = self.model.prefill_tokens(len(protected), target, largest)
            return tokens
        tokens = self.model.prefill_tokens(0, UNPROTECTED * self._targets[best], largest)
        if outputs:
            tokens = min(tokens, sum(request.cells_to_fill() for request in prompts if request.level == best))
        return tokens

    def _seconds_left(self, under_way: list[Request], now: float) -> float:
        prompts = sum(request.cells_to_fill() for request in under_way if not request.since_join)
        rows = sum(request.since_join > 0 for request in under_way)
        expected = self.model.step_seconds(rows, min(prompts, self._planned_tokens))
        return expected - (now - self.step_began)


def _take_one(counts: Counter[RequestId], request: RequestId) -> bool:
    """Count one of an id less, if there is one; returns whether there was."""
    if request not in counts:
        return False
    counts[request] -= 1
    if not counts[request]:
        del counts[request]
    return True

"""What a lane has done, entered into the books of those whom it concerns."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from llamalane.errors import LlamalaneError, RequestFailedError
from llamalane.scheduler.embedding_request import EmbeddingRequest
from llamalane.scheduler.events import Event, EventKind
from llamalane.scheduler.request import Request, RequestState
from llamalane.scheduler.request_books import UNFINISHED, RequestBooks, lane_down
from llamalane.streams import Copied, LaneFailed, Parked, RowOutput, StepReport

if TYPE_CHECKING:
    from llamalane.streams.llama import Vector

MAX_RESTARTS = 3
"""A request under which its lane failed so often is given up: it may be the cause."""


class LaneNews(RequestBooks):
    """Takes in what lanes tell of their steps, and of their failures."""

    def on_step(self, report: StepReport) -> None:
        """Take in what a lane has done."""
        now = self._clock.now()
        ledger = self.roster.ledgers[report.lane]
        self.recorder.note_step(report, ledger.step_began, now)
        ledger.observe(report, now)
        self.roster.roles.observe(report)
        if report.times is not None:
            self.note(Event(report.times.begin, EventKind.STEP, lane=report.lane, step=report.step))
        for request_id in report.started:
            request = ledger.get(request_id)
            if request is not None and request.state in UNFINISHED:
                request.events.append((EventKind.STARTED, now))
                self.recorder.note_change(request)
            self.note(Event(now, EventKind.STARTED, request_id, report.lane, report.step))
        for request_id in report.left:
            request = ledger.left(request_id)
            if request is not None:
                self._release(request)
        for copied in report.copied:
            ledger.observe_copy(copied)
            request = ledger.get(copied.request)
            if request is not None:
                self._on_copied(request, copied)
        for stowed in report.stowed:
            self.roster.stowage.note_stowed(stowed)
        for restored in report.restored:
            self.roster.stowage.note_restored(ledger, restored)
        for parked in report.parked:
            request = ledger.parked(parked.request)
            if request is not None:
                self._on_parked(request, parked)
        for told in report.prompt_scores:
            request = ledger.get(told.request)
            if request is not None and request.state in UNFINISHED:
                request.note_prompt(told.scores)
        for progress in report.prompts:
            request = ledger.get(progress.request)
            if request is not None:
                request.computed = progress.computed
        for output in report.outputs:
            request = ledger.get(output.request)
            if request is not None:
                self._on_output(request, output)

    def on_failure(self, failure: LaneFailed) -> None:
        """Let the requests of a lane that lost its context wait again."""
        now = self._clock.now()
        self.note(Event(now, EventKind.LANE_FAILED, lane=failure.lane))
        for request in self.roster.lose(failure):
            self.waits_for(request.model).observe_release(request.id, now, finished=False)
            if request.state in UNFINISHED:
                self._restart(request, failure.error)
            else:
                request.move(RequestState.DONE)
        model = self.roster.ledgers[failure.lane].lane.model
        if self.roster.is_down(model):
            self.end_all(lane_down(model), model)

    def _on_parked(self, request: Request, parked: Parked) -> None:
        if not self._rules.costs.observe(parked):
            parked = replace(parked, saved=None)
        if parked.saved is not None:
            self.counters.parked_bytes_out += len(parked.saved.data)
        request.note_parked(parked)
        self.roster.note_parked(request)
        self.queue.requeue(request)
        self.counters.handovers += request.handed_over
        request.handovers += request.handed_over
        self.tell(EventKind.HANDED_OVER if request.handed_over else EventKind.PARKED, request)

    def _on_copied(self, request: Request, copied: Copied) -> None:
        """Take back what was counted as cached and is not: it has gone before the request could have it."""
        missing = request.reused - copied.length
        first_time = not (request.generated or request.parks or request.restarts)
        if missing > 0 and first_time:
            self.counters.cached_tokens -= missing
            request.cached -= missing
        request.reused = request.computed = copied.length

    def _on_output(self, request: Request, output: RowOutput) -> None:
        unfinished = request.state in UNFINISHED
        if unfinished:
            if output.error is not None:
                self.counters.failed += 1
                self._conclude(request, output.error)
            elif output.vector is not None:
                self._on_vector(request, output.vector)
            else:
                self._on_token(request, output)
        if output.ended:
            self.roster.ledger(request).note_ended(request)
            # A row that should have left went on past what the books know.
            exact = unfinished and output.error is None and not request.shifting
            self._release(request, exact=exact, trimmed=bool(request.model))

    def _on_vector(self, request: Request, vector: Vector) -> None:
        assert isinstance(request, EmbeddingRequest)
        self.counters.embedded += 1
        result = request.embedding(vector, self._clock.now())
        self.measurements.at(request.level).note_text(result)
        self._conclude(request, result)

    def _on_token(self, request: Request, output: RowOutput) -> None:
        now = self._clock.now()
        self.counters.completion_tokens += 1
        measurements = self.measurements.at(request.level)
        measurements.note_token(request, now)
        if request.first_token_at is None:
            self._count_hits(request)
        self.queue.fairness.charge(request.level, request.tenant, output_tokens=1)
        self.recorder.note_token(request, now)
        finish = request.accept(output.token, output.finish, now, output.scores)
        if request.since_join == 1 and request.state is RequestState.RUNNING and request.lease is not None:
            request.lease.note_computed()
        if finish is None:
            if self.roster.roles.hands_over(request):
                self.waits_for(request.model).observe_release(request.id, now, finished=False)
                self.roster.hand_over(request)
            return
        self.counters.finished += 1
        self.counters.finish_reasons[finish.value] += 1
        self._rules.growth.observe(request.level, len(request.generated))
        result = request.result(finish, now)
        in_time = result.timings.per_token <= self._targets[request.level]
        self.counters.in_time += in_time
        measurements.note_result(request, result, in_time=in_time)
        self._conclude(request, result)
        if not output.ended:  # a stop string, which the lane does not know of
            self.roster.stop(request)

    def _count_hits(self, request: Request) -> None:
        """Count what a prompt found in the cache; before its first token, that may turn out to be less."""
        self.counters.queried_tokens += len(request.tokens)
        self.counters.hit_tokens += request.cached
        self.counters.hits += request.cached > 0

    def _restart(self, request: Request, error: LlamalaneError) -> None:
        if request.state is RequestState.RUNNING or request.gives_way:
            request.restarts += 1
        request.handed_over = False
        if request.restarts >= MAX_RESTARTS and not self.roster.is_down(request.model):
            self.counters.failed += 1
            request.move(RequestState.DONE)
            failed = RequestFailedError(f"its lane failed {request.restarts} times under request {request.id}: {error}")
            self._conclude(request, failed)
            return
        self.counters.restarts += 1
        request.move(RequestState.WAITING)
        self.queue.requeue(request)
        self.tell(EventKind.REQUEUED, request)

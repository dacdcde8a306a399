"""A lane that embeds, on its own thread: what it computes when, and what it says of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

from llamalane.errors import DecodeError, RequestFailedError, StepAbandonedError
from llamalane.ids import StepNumber
from llamalane.streams import CpuStream, FinishReason, Join, Parking, Stow
from llamalane.streams.embedding_lane import EmbeddingLane
from llamalane.streams.gate import Gate
from llamalane.streams.lane_thread import MAX_FAILURES
from llamalane.streams.llama import Batch, Vector
from tests.streams.fakes import stream_options
from tests.streams.lane_rig import TIMEOUT, Hold, Inbox
from tests.streams.plans import join, leave, park, plan, rank

CAPACITY = 12
"""Tokens of a step."""


class SumContext:
    """The vector of a text is the sum of its tokens, and their number; `before_step` sees each step's texts."""

    def __init__(self, before_step: Callable[[int], None] = lambda _: None) -> None:
        self.steps: list[list[list[int]]] = []
        self.closed = 0
        self.interrupted = False
        self._before_step = before_step

    def embed(self, batch: Batch) -> list[Vector]:
        ends = np.cumsum([end - start for _, start, end in batch.parts])
        texts = [part.tolist() for part in np.split(batch.tokens, ends[:-1])]
        if texts != [[0]]:  # the first one, which only warms up
            self.steps.append(texts)
            self._before_step(len(self.steps))
        if self.interrupted:
            raise StepAbandonedError
        return [np.array([np.nan if 99 in text else sum(text), len(text)], np.float32) for text in texts]

    def interrupt(self, on: bool) -> None:
        self.interrupted = on

    def set_threads(self, threads: int) -> None:
        raise AssertionError("one thread is all that it has")

    def close(self) -> None:
        self.closed += 1


Start = Callable[..., EmbeddingLane]


@pytest.fixture
def start(inbox: Inbox) -> Iterator[Start]:
    lanes: list[EmbeddingLane] = []
    contexts: list[SumContext] = []

    def start_lane(*given: SumContext) -> EmbeddingLane:
        waiting = list(given)

        def open_context() -> SumContext:
            contexts.append(waiting.pop(0))
            return contexts[-1]

        stream = CpuStream(stream_options("lane"))
        lane = EmbeddingLane(stream, open_context, max_step_tokens=CAPACITY, gate=Gate(), can_abandon=True)
        lanes.append(lane)
        lane.start(inbox)
        return lane

    yield start_lane
    for lane in lanes:
        lane.close()
    assert [context.closed for context in contexts] == [1] * len(contexts)


def text(request: str, sequence: int, tokens: Sequence[int], level: int = 3, **more: bool) -> Join:
    return join(request, sequence, tokens, max_tokens=0, level=level, urgency=(level, sequence), **more)  # type: ignore[arg-type]


def test_several_texts_share_a_step_and_each_gets_its_vector(start: Start, inbox: Inbox) -> None:
    context = SumContext()
    lane = start(context)
    lane.post(plan(1, text("a", 0, [1, 2]), text("b", 1, [3]), text("c", 2, [4, 5, 6]), prefill_tokens=CAPACITY))
    report = inbox.report()
    assert {output.request: output.vector.tolist() for output in report.outputs if output.vector is not None} == {
        "a": [3, 2],
        "b": [3, 1],
        "c": [15, 3],
    }
    assert all(output.finish is FinishReason.STOP and output.ended for output in report.outputs)
    assert (report.started, report.prefill_tokens, report.decode_rows) == (("a", "b", "c"), 6, 0)
    assert report.times is not None
    assert len(context.steps) == 1


def test_a_step_holds_what_fits_and_what_the_plan_allows_the_urgent_first(start: Start, inbox: Inbox) -> None:
    hold = Hold(1)
    context = SumContext(hold)
    lane = start(context)
    lane.post(plan(1, text("first", 0, [1])))
    hold.wait()
    texts = [text("long", 1, [2] * 8), text("does not fit", 2, [3] * 6), text("fits", 3, [4] * 4)]
    lane.post(plan(2, *texts, prefill_tokens=CAPACITY))
    hold.let_go()
    inbox.reports_until("long", "does not fit", "fits")
    assert context.steps == [[[1]], [[2] * 8, [4] * 4], [[3] * 6]]


def test_a_text_longer_than_the_plan_allows_is_computed_alone(start: Start, inbox: Inbox) -> None:
    context = SumContext()
    lane = start(context)
    lane.post(plan(1, text("a", 0, [1] * 10), text("b", 1, [2] * 2), text("c", 2, [3] * 2), prefill_tokens=4))
    inbox.reports_until("a", "b", "c")
    assert context.steps == [[[1] * 10], [[2] * 2, [3] * 2]]


def test_less_urgent_texts_sit_out_every_second_step(start: Start, inbox: Inbox) -> None:
    hold = Hold(1)
    context = SumContext(hold)
    lane = start(context)
    lane.post(plan(1, text("first", 0, [1], level=1)))
    hold.wait()
    urgent = [text(f"urgent {number}", 1 + number, [2], level=1) for number in range(3)]
    others = [text("background", 4, [4], level=4), text("batch", 5, [5], level=5)]
    lane.post(plan(2, *others, *urgent, prefill_tokens=2))
    hold.let_go()
    inbox.reports_until("urgent 2", "background", "batch")
    assert context.steps == [[[1]], [[2], [2]], [[2], [4]], [[5]]]


def test_an_overdue_sheltered_text_goes_before_urgent_ones(start: Start, inbox: Inbox) -> None:
    hold = Hold(1)
    context = SumContext(hold)
    lane = start(context)
    lane.post(plan(1, text("first", 0, [1], level=1)))
    hold.wait()
    urgent = [text(f"urgent {number}", 1 + number, [2], level=1) for number in range(2)]
    lane.post(plan(2, *urgent, text("sheltered", 4, [4], level=5, sheltered=True), prefill_tokens=1))
    hold.let_go()
    inbox.reports_until("urgent 1", "sheltered")
    assert context.steps == [[[1]], [[2]], [[4]], [[2]]]


def test_whoever_leaves_or_is_parked_before_its_step_is_not_computed(start: Start, inbox: Inbox) -> None:
    hold = Hold(1)
    context = SumContext(hold)
    lane = start(context)
    lane.post(plan(1, text("first", 0, [1])))
    hold.wait()
    edits = [text("gone", 1, [2]), text("parked", 2, [3]), text("stays", 3, [4])]
    lane.post(plan(2, *edits, leave("gone"), park("parked", 2, Parking.RECOMPUTE), prefill_tokens=CAPACITY))
    hold.let_go()
    inbox.report()
    report = inbox.report()
    assert (report.left, [(one.request, one.computed) for one in report.parked]) == (("gone",), [("parked", 0)])
    assert context.steps == [[[1]], [[4]]]


def test_it_tells_of_who_left_when_nothing_is_to_be_computed(start: Start, inbox: Inbox) -> None:
    lane = start(SumContext())
    lane.post(plan(1, leave("nobody"), Stow(1, text("a", 0, [1]).sequence)))
    report = inbox.report()
    assert (report.left, report.outputs, report.times) == (("nobody",), (), None)


def test_a_text_can_become_urgent(start: Start, inbox: Inbox) -> None:
    hold = Hold(1)
    context = SumContext(hold)
    lane = start(context)
    lane.post(plan(1, text("first", 0, [1])))
    hold.wait()
    lane.post(plan(2, text("a", 1, [2], level=4), text("b", 2, [3], level=4), rank("b", 1), rank("unknown", 1)))
    hold.let_go()
    inbox.reports_until("a", "b")
    assert context.steps == [[[1]], [[3]], [[2]]]


def test_an_abandoned_step_is_computed_again(start: Start, inbox: Inbox) -> None:
    hold = Hold(1)
    context = SumContext(hold)
    lane = start(context)
    lane.post(plan(1, text("a", 0, [1], level=5)))
    hold.wait()
    lane.abandon(StepNumber(1))
    lane.post(plan(2, text("urgent", 1, [2], level=1)))
    hold.let_go()
    report = inbox.report()
    assert (report.abandoned, report.step, report.started, report.outputs) == (True, 1, (), ())
    inbox.reports_until("a", "urgent")
    assert context.steps == [[[1]], [[2]], [[1]]]


def test_a_vector_that_is_no_number_fails_its_own_text_only(start: Start, inbox: Inbox) -> None:
    lane = start(SumContext())
    lane.post(plan(1, text("good", 0, [1]), text("bad", 1, [99]), prefill_tokens=CAPACITY))
    good, bad = inbox.report().outputs
    assert (good.error, good.vector is None) == (None, False)
    assert isinstance(bad.error, RequestFailedError)
    assert bad.vector is None


def test_a_failed_step_costs_the_context_and_the_lane_goes_on_with_another(start: Start, inbox: Inbox) -> None:
    def fail(_: int) -> None:
        raise DecodeError(-3)

    second = SumContext()
    lane = start(SumContext(fail), second)
    lane.post(plan(1, text("a", 0, [1])))
    failure = inbox.failure()
    assert (failure.epoch, failure.down) == (1, False)
    inbox.ready()
    lane.post(plan(2, text("b", 0, [1])))  # made before the failure
    lane.post(plan(3, text("c", 0, [2]), epoch=1))
    (output,) = inbox.report().outputs
    assert output.request == "c"
    assert second.steps == [[[2]]]


def test_after_failures_in_a_row_it_gives_up(start: Start, inbox: Inbox) -> None:
    def fail(_: int) -> None:
        raise DecodeError(-3)

    lane = start(*(SumContext(fail) for _ in range(MAX_FAILURES)))
    for epoch in range(MAX_FAILURES):
        lane.post(plan(epoch + 1, text("a", 0, [1]), epoch=epoch))
        failure = inbox.failure()
        if not failure.down:
            inbox.ready()
    assert failure.down


def test_a_context_that_cannot_be_opened_is_told_at_once() -> None:
    def refuse() -> SumContext:
        raise MemoryError("no room")

    with pytest.raises(MemoryError, match="no room"):
        EmbeddingLane(CpuStream(stream_options("lane")), refuse, max_step_tokens=4, gate=Gate())
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("llamalane-")]
    assert TIMEOUT

"""Texts to be embedded in the queue: beside each other, beside requests that generate, and on every way out."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import anyio.to_thread
import numpy as np
import pytest

from llamalane.errors import (
    DeadlineExceededError,
    DecodeError,
    EngineClosedError,
    InvalidRequestError,
    LaneDownError,
    QueueFullError,
    RequestCancelledError,
    RequestFailedError,
    RequestShedError,
    TenantLimitError,
)
from llamalane.ids import LEAST_URGENT, RequestId
from llamalane.scheduler import EmbeddingResult, Engine, EventKind, RequestState, TenantConfig
from tests.engine.embedding_rig import PLACES, embedding_config, embedding_engine
from tests.engine.running import Follower, Gate, WatchedEngine, greedy, intercepted
from tests.models.tiny_embedders import tokens_of

pytestmark = pytest.mark.anyio

MANY = [f"text number {number}" for number in range(40)]


class Steps:
    """Notes the texts of each step, and lets a gate hold them."""

    def __init__(self, gate: Gate) -> None:
        self.texts: list[list[list[int]]] = []
        self._gate = gate
        self._news = threading.Condition()

    def __call__(self, texts: list[list[int]]) -> None:
        with self._news:
            self.texts.append(texts)
            self._news.notify_all()
        self._gate.pass_through()

    async def reach(self, step: int) -> None:
        """Wait until the lane is within that step, counted from 1."""

        def wait() -> None:
            with self._news:
                assert self._news.wait_for(lambda: len(self.texts) >= step, 60)

        await anyio.to_thread.run_sync(wait)

    def first_with(self, text: str) -> int:
        """The number of the first step that computed a text, counted from 1."""
        return next(number for number, texts in enumerate(self.texts, 1) if tokens_of(text) in texts)


Make = Callable[..., WatchedEngine]


@pytest.fixture
def make(engines: list[WatchedEngine], tiny_encoder: Path) -> Make:
    """Makes engines that embed; takes what `embedding_engine` and `embedding_config` take."""

    def make_engine(
        before_step: Callable[[list[list[int]]], None] = lambda _: None,
        *,
        observer: Follower | None = None,
        open_context: Any = None,
        **options: Any,
    ) -> WatchedEngine:
        config = embedding_config([{"name": "enc", "path": tiny_encoder, "task": "embed"}], **options)
        more = {} if open_context is None else {"open_context": open_context}
        return embedding_engine(config, engines, before_step, observer, **more)

    return make_engine


class Call:
    """A call of `embed` beside the test, and how it ended."""

    def __init__(self) -> None:
        self.results: list[EmbeddingResult] = []
        self.error: Exception | None = None
        self.ended = anyio.Event()
        self.scope = anyio.CancelScope()

    async def run(self, work: Callable[[], Awaitable[list[EmbeddingResult]]]) -> None:
        with self.scope:
            try:
                self.results = await work()
            except Exception as error:
                self.error = error
        self.ended.set()


def call(tasks: anyio.abc.TaskGroup, engine: Engine, texts: str | Sequence[str], **options: Any) -> Call:
    one = Call()

    async def work() -> list[EmbeddingResult]:
        return await engine.embed(texts, **options)

    tasks.start_soon(one.run, work)
    return one


def check_tenants(engine: WatchedEngine) -> None:
    accounts = engine.scheduler._life._limits._accounts.values()
    assert not any(account.permits for account in accounts), "a tenant is still charged for a call"


async def test_many_texts_of_one_call_let_another_call_in_between(make: Make) -> None:
    gate, follower = Gate(), Follower()
    steps = Steps(gate)
    async with make(steps, observer=follower) as engine, anyio.create_task_group() as tasks:
        with gate:
            many = call(tasks, engine, MANY)
            await steps.reach(1)
            single = call(tasks, engine, "single")
            await follower.wait_for(EventKind.ACCEPTED, times=PLACES + 1)
            gate.let(2)
            await single.ended.wait()
            assert not many.ended.is_set()
        await many.ended.wait()
    assert steps.first_with("single") == 2
    assert len(many.results) == 40
    assert max(map(len, steps.texts)) == PLACES
    assert len(steps.texts) <= 12


async def test_calls_share_steps_and_each_gets_its_own_vectors(make: Make) -> None:
    async with make() as engine:
        alone = [(await engine.embed(text))[0].vector for text in MANY]
        async with anyio.create_task_group() as tasks:
            calls = [call(tasks, engine, MANY[start : start + 8], tenant=str(start)) for start in range(0, 40, 8)]
        steps = engine.stats().lanes[0].steps
    together = [one.vector for each in calls for one in each.results]
    assert all(np.abs(one - other).max() < 1e-4 for one, other in zip(together, alone, strict=True))
    assert steps < 40 + 40


async def test_an_urgent_text_overtakes_and_takes_a_place(make: Make) -> None:
    gate, follower = Gate(), Follower()
    steps = Steps(gate)
    async with make(steps, observer=follower, abort_after=None) as engine, anyio.create_task_group() as tasks:
        with gate:
            batch = call(tasks, engine, MANY, priority="batch")
            await steps.reach(1)
            urgent = call(tasks, engine, "urgent", priority="interactive")
            await follower.wait_for(EventKind.ADMITTED, times=PLACES + 1)
            gate.let(2)
            await urgent.ended.wait()
            assert not batch.ended.is_set()
        await batch.ended.wait()
        parks = engine.stats().counters.parks
    assert steps.texts[1] == [tokens_of("urgent")], "less urgent texts made its step longer"
    assert steps.texts[2] != [tokens_of("urgent")]
    assert dict(parks) == {"recompute": 1}
    assert len(batch.results) == 40
    assert urgent.results[0].level == 1


async def test_a_step_on_the_cpu_is_broken_off_for_an_urgent_text(make: Make) -> None:
    gate, follower = Gate(), Follower()
    steps = Steps(gate)
    async with make(steps, observer=follower) as engine, anyio.create_task_group() as tasks:
        engine.scheduler.ledgers["enc-lane"].model._token_seconds = 100.0  # as if the lane were slow
        with gate:
            batch = call(tasks, engine, MANY[:2], priority="batch")
            await steps.reach(1)
            urgent = call(tasks, engine, "urgent", priority="interactive")
            await follower.wait_for(EventKind.ADMITTED, times=3)
        await urgent.ended.wait()
        await batch.ended.wait()
        assert engine.stats().lanes[0].abandoned_steps == 1
    assert [one.vector.shape for one in batch.results] == [(48,)] * 2
    assert steps.texts[1] == [tokens_of("urgent")]


async def test_generation_and_embedding_do_not_wait_for_each_other(make: Make, tiny_model: Path) -> None:
    """Whichever of the two is stuck, the other one is served."""
    embedding_gate, generating_gate = Gate(), Gate()
    async with (
        make(
            Steps(embedding_gate), generating=tiny_model, open_context=intercepted(generating_gate.pass_through)
        ) as engine,
        anyio.create_task_group() as tasks,
    ):
        with embedding_gate, generating_gate:
            handles = [await engine.submit(f"prompt {number}", sampling=greedy(4)) for number in range(9)]
            stuck = call(tasks, engine, MANY)
            generating_gate.let(500)
            assert all([(await handle).usage.completion_tokens == 4 for handle in handles])
            assert not stuck.ended.is_set()
            handles = [await engine.submit("stuck", sampling=greedy(400), priority=5) for _ in range(9)]
            embedding_gate.let(500)
            await stuck.ended.wait()
            assert (await engine.embed("one more", priority="batch"))[0].prompt_tokens == len(tokens_of("one more"))
            assert engine.stats().waiting[LEAST_URGENT] > 0
            for handle in handles:
                handle.cancel()
    assert len(stuck.results) == 40


async def test_both_under_load_with_all_levels(make: Make, tiny_model: Path) -> None:
    async with make(generating=tiny_model) as engine:
        undisturbed = [(await engine.generate(f"prompt {n}", sampling=greedy(12))).tokens for n in range(10)]
        vectors = [one.vector for one in await engine.embed(MANY)]
        async with anyio.create_task_group() as tasks:
            calls = [call(tasks, engine, MANY, priority=1 + number % 5, tenant=f"{number % 3}") for number in range(10)]
            handles = [
                await engine.submit(f"prompt {number}", sampling=greedy(12), priority=1 + number % 5)
                for number in range(10)
            ]
            disturbed = [(await handle).tokens for handle in handles]
        counters = engine.stats().counters
    assert disturbed == undisturbed
    for one in calls:
        assert all(np.abs(a.vector - b).max() < 1e-4 for a, b in zip(one.results, vectors, strict=True))
    assert (counters.embedded, counters.failed) == (11 * 40, 0)


async def test_whoever_goes_away_takes_all_texts_along(make: Make) -> None:
    gate, follower = Gate(), Follower()
    async with make(Steps(gate), observer=follower) as engine, anyio.create_task_group() as tasks:
        with gate:
            gone = call(tasks, engine, MANY, tenant="t")
            stays = call(tasks, engine, MANY[:6])
            await follower.wait_for(EventKind.ADMITTED, times=PLACES)
            gone.scope.cancel()
            await gone.ended.wait()
            gate.let(1)
        await stays.ended.wait()
        assert engine.stats().counters.cancelled == PLACES
        check_tenants(engine)
    assert len(stays.results) == 6


async def test_cancelled_by_an_administrator(make: Make) -> None:
    gate, follower = Gate(), Follower()
    async with make(Steps(gate), observer=follower) as engine, anyio.create_task_group() as tasks:
        with gate:
            one = call(tasks, engine, MANY, request_id="call")
            await follower.wait_for(EventKind.ADMITTED, times=PLACES)
            assert {entry.request for entry in engine.queue()} == {f"call/{number}" for number in range(PLACES)}
            engine.cancel(RequestId("call/2"))
            await one.ended.wait()
        assert isinstance(one.error, RequestCancelledError)
        assert len(await engine.embed(MANY)) == 40
        check_tenants(engine)


async def test_a_new_priority_holds_for_the_texts_to_come(make: Make) -> None:
    gate, follower = Gate(), Follower()
    async with make(Steps(gate), observer=follower, places=1) as engine, anyio.create_task_group() as tasks:
        with gate:
            one = call(tasks, engine, MANY[:3], request_id="call", priority="batch")
            await follower.wait_for(EventKind.ADMITTED)
            engine.set_priority(RequestId("call/0"), 2)
        await one.ended.wait()
    assert [result.level for result in one.results] == [2, 2, 2]


async def test_a_call_ends_at_its_deadline(make: Make) -> None:
    gate, follower = Gate(), Follower()
    async with make(Steps(gate), observer=follower) as engine, anyio.create_task_group() as tasks:
        with gate:
            one = call(tasks, engine, MANY, deadline=0.05)
            await one.ended.wait()
            assert isinstance(one.error, DeadlineExceededError)
            gate.let(1)
        assert len(await engine.embed(MANY, deadline=60)) == 40
        check_tenants(engine)


async def test_a_full_queue_refuses_at_once_and_a_small_one_serves_large_calls(make: Make) -> None:
    gate, follower = Gate(), Follower()
    queue = {"max_requests": 1}
    async with (
        make(Steps(gate), observer=follower, places=1, queue=queue) as engine,
        anyio.create_task_group() as tasks,
    ):
        with gate:
            running = call(tasks, engine, MANY)
            await follower.wait_for(EventKind.ADMITTED)
            waiting = call(tasks, engine, MANY)
            await follower.wait_for(EventKind.ACCEPTED, times=2)
            with pytest.raises(QueueFullError) as caught:
                await engine.embed("refused")
            assert (caught.value.reason, caught.value.limit) == ("requests", 1)
            assert caught.value.retry_after > 0
        await running.ended.wait()
        await waiting.ended.wait()
        assert engine.stats().counters.rejected["requests"] == 1
        check_tenants(engine)
    assert len(running.results) == len(waiting.results) == 40


async def test_300_calls_on_a_queue_of_10_are_served_or_told_to_come_back(make: Make) -> None:
    async with make(queue={"max_requests": 10}) as engine:
        async with anyio.create_task_group() as tasks:
            calls = [call(tasks, engine, f"call {number}") for number in range(300)]
        errors = [one.error for one in calls if one.error is not None]
        assert all(isinstance(error, QueueFullError) and error.retry_after > 0 for error in errors)
        assert len(errors) + sum(len(one.results) for one in calls) == 300
        assert engine.stats().counters.embedded >= 10


async def test_the_bound_in_tokens_holds_for_the_first_text_of_a_call(make: Make) -> None:
    gate, follower = Gate(), Follower()
    async with (
        make(Steps(gate), observer=follower, places=1, queue={"max_tokens": 30}) as engine,
        anyio.create_task_group() as tasks,
    ):
        with gate:
            running = call(tasks, engine, "running")
            await follower.wait_for(EventKind.ADMITTED)
            waiting = call(tasks, engine, ["a " * 20, "b " * 20])
            await follower.wait_for(EventKind.ACCEPTED, times=2)
            with pytest.raises(QueueFullError) as caught:
                await engine.embed("c " * 20)
            assert caught.value.reason == "tokens"
        await running.ended.wait()
        await waiting.ended.wait()
        check_tenants(engine)
    assert len(waiting.results) == 2


async def test_a_call_counts_as_one_request_of_its_tenant(make: Make) -> None:
    gate, follower = Gate(), Follower()
    length = sum(len(tokens_of(text)) for text in MANY)
    tenants = {"one": TenantConfig(concurrent=1), "few": TenantConfig(tokens_per_minute=length)}
    async with (
        make(Steps(gate), observer=follower, tenants=tenants) as engine,
        anyio.create_task_group() as tasks,
    ):
        with gate:
            first = call(tasks, engine, MANY, tenant="one")
            await follower.wait_for(EventKind.ADMITTED)
            with pytest.raises(TenantLimitError) as caught:
                await engine.embed("refused", tenant="one")
            assert caught.value.reason == "concurrent"
        await first.ended.wait()
        assert len(await engine.embed("later", tenant="one")) == 1
        with pytest.raises(InvalidRequestError, match=f"the inputs have {length + 3} tokens") as refused:
            await engine.embed([*MANY, "x"], tenant="few")
        assert refused.value.param == "input"
        assert len(await engine.embed(MANY, tenant="few")) == 40
        with pytest.raises(TenantLimitError) as caught:
            await engine.embed("x" * 20, tenant="few")
        assert caught.value.reason == "tokens_per_minute"
        assert engine.stats().counters.rejected == {"concurrent": 1, "tokens_per_minute": 1}
        check_tenants(engine)
    assert len(first.results) == 40


async def test_what_was_not_computed_is_refunded(make: Make) -> None:
    gate, follower = Gate(), Follower()
    length = sum(len(tokens_of(text)) for text in MANY)
    tenants = {"few": TenantConfig(tokens_per_minute=length)}
    async with (
        make(Steps(gate), observer=follower, places=2, tenants=tenants) as engine,
        anyio.create_task_group() as tasks,
    ):
        with gate:
            gone = call(tasks, engine, MANY, tenant="few")
            await follower.wait_for(EventKind.ADMITTED, times=2)
            gone.scope.cancel()
            await gone.ended.wait()
        assert len(await engine.embed(MANY[2:], tenant="few")) == 38


async def test_tenants_of_a_level_take_turns(make: Make) -> None:
    gate, follower = Gate(), Follower()
    steps = Steps(gate)
    async with make(steps, observer=follower, places=2) as engine, anyio.create_task_group() as tasks:
        with gate:
            many = [call(tasks, engine, MANY[start : start + 4], tenant="many") for start in range(0, 16, 4)]
            await follower.wait_for(EventKind.ACCEPTED, times=8)
            other = call(tasks, engine, ["one", "two"], tenant="other")
            await follower.wait_for(EventKind.ACCEPTED, times=10)
            gate.let(4)
            await other.ended.wait()
            assert not any(one.ended.is_set() for one in many[1:])
    assert steps.first_with("two") <= 4


async def test_a_failed_context_changes_no_vector(make: Make) -> None:
    count = 0

    def fail_once(_: list[list[int]]) -> None:
        nonlocal count
        count += 1
        if count == 2:
            raise DecodeError(-3)

    async with make() as engine:
        expected = await engine.embed(MANY)
    follower = Follower()
    async with make(fail_once, observer=follower) as engine:
        results = await engine.embed(MANY)
        statistics = engine.stats()
        check_tenants(engine)
    assert all(np.abs(a.vector - b.vector).max() < 1e-4 for a, b in zip(results, expected, strict=True))
    assert follower.count(EventKind.LANE_FAILED) == follower.count(EventKind.LANE_READY) == 1
    assert (statistics.counters.restarts, statistics.lanes[0].failures) == (PLACES, 1)


async def test_a_text_under_which_its_lane_fails_each_time_is_given_up(make: Make) -> None:
    bad = tokens_of("bad")
    failures = 0

    def fail_on_bad(texts: list[list[int]]) -> None:
        nonlocal failures
        if bad in texts:
            failures += 1
            if failures < 3:  # a step of others between keeps the lane from giving up
                raise DecodeError(-3)
            raise DecodeError(-2)

    async with make(fail_on_bad, lanes=1, places=1) as engine, anyio.create_task_group() as tasks:
        one = call(tasks, engine, ["bad"])
        await one.ended.wait()
        assert isinstance(one.error, RequestFailedError | LaneDownError)
        check_tenants(engine)


async def test_a_lane_that_gave_up_leaves_the_other_model_alone(make: Make, tiny_model: Path) -> None:
    def fail(_: list[list[int]]) -> None:
        raise DecodeError(-3)

    async with make(fail, generating=tiny_model) as engine, anyio.create_task_group() as tasks:
        calls = [call(tasks, engine, MANY) for _ in range(3)]
        for one in calls:
            await one.ended.wait()
            assert isinstance(one.error, LaneDownError | RequestFailedError)
        with pytest.raises(LaneDownError, match="every lane of the model 'enc'"):
            await engine.embed("x")
        assert not engine.down
        assert (await engine.generate("hello", sampling=greedy(3))).usage.completion_tokens == 3
        assert [lane.down for lane in engine.stats().lanes] == [False, True]
        check_tenants(engine)


async def test_lanes_of_generation_that_gave_up_leave_embedding_alone(make: Make, tiny_model: Path) -> None:
    def fail() -> None:
        raise DecodeError(-3)

    async with make(generating=tiny_model, open_context=intercepted(fail)) as engine:
        for _ in range(2):
            with pytest.raises((LaneDownError, RequestFailedError)):
                await engine.generate("hello")
        with pytest.raises(LaneDownError):
            await engine.generate("hello")
        assert len(await engine.embed(MANY)) == 40


async def test_a_paused_lane_keeps_texts_waiting_and_tells_why(make: Make, tiny_model: Path) -> None:
    follower = Follower()
    async with make(observer=follower, generating=tiny_model) as engine, anyio.create_task_group() as tasks:
        engine.pause_lane("enc-lane")
        one = call(tasks, engine, MANY[:2], request_id="call")
        await follower.wait_for(EventKind.ACCEPTED, times=2)
        first, second = engine.queue()
        assert (first.state, first.position, second.position) == (RequestState.WAITING, 0, 1)
        assert first.reason == "every lane that has a context is paused"
        assert (await engine.generate("hello", sampling=greedy(3))).usage.completion_tokens == 3
        engine.resume_lane("enc-lane")
        await one.ended.wait()
    assert len(one.results) == 2


async def test_positions_count_those_only_who_wait_for_the_same_model(make: Make, tiny_model: Path) -> None:
    embedding_gate, generating_gate, follower = Gate(), Gate(), Follower()
    open_context = intercepted(generating_gate.pass_through)
    async with (
        make(Steps(embedding_gate), observer=follower, generating=tiny_model, open_context=open_context) as engine,
        anyio.create_task_group() as tasks,
    ):
        with embedding_gate, generating_gate:
            handles = [await engine.submit("x", sampling=greedy(2)) for _ in range(PLACES + 3)]
            calls = [call(tasks, engine, "y") for _ in range(PLACES + 2)]
            await follower.wait_for(EventKind.ADMITTED, times=2 * PLACES)
            await follower.wait_for(EventKind.ACCEPTED, times=2 * PLACES + 5)
            waiting = [entry for entry in engine.queue() if entry.position is not None]
            embedding = [entry.position for entry in waiting if entry.request.startswith("embd")]
            generating = [entry.position for entry in waiting if not entry.request.startswith("embd")]
            assert (embedding, generating) == ([0, 1], [0, 1, 2])
            assert all(entry.estimated_start is not None for entry in waiting)
            assert engine.explain(waiting[-1].request).position == waiting[-1].position
    assert [len(one.results) for one in calls] == [1] * (PLACES + 2)
    assert len(handles) == PLACES + 3


async def test_a_call_turned_out_of_a_full_queue_is_told_so(make: Make) -> None:
    gate, follower = Gate(), Follower()
    queue = {"max_requests": 1, "overflow": "shed"}
    async with (
        make(Steps(gate), observer=follower, places=1, queue=queue, max_parks=0) as engine,
        anyio.create_task_group() as tasks,
    ):
        with gate:
            running = call(tasks, engine, MANY[:3], priority="batch")
            await follower.wait_for(EventKind.ADMITTED)
            shed = call(tasks, engine, MANY, priority="batch")
            await follower.wait_for(EventKind.ACCEPTED, times=2)
            urgent = call(tasks, engine, "urgent", priority="interactive")
            await shed.ended.wait()
            assert isinstance(shed.error, RequestShedError)
        await running.ended.wait()
        await urgent.ended.wait()
        check_tenants(engine)
    assert len(running.results) == 3, "who had begun was turned out"


async def test_closing_finishes_what_is_there(make: Make) -> None:
    async with anyio.create_task_group() as tasks, make() as engine:
        one = call(tasks, engine, MANY)
        await anyio.wait_all_tasks_blocked()
    assert len(one.results) == 40


async def test_closing_ends_what_takes_too_long(make: Make) -> None:
    gate = Gate()
    async with anyio.create_task_group() as tasks:
        with gate:
            async with make(Steps(gate), drain_timeout=0) as engine:
                one = call(tasks, engine, MANY)
                await anyio.wait_all_tasks_blocked()
                timer = threading.Timer(0.05, gate.open)  # the lane cannot end within a step
                timer.start()
            timer.join()
    assert isinstance(one.error, EngineClosedError)
    with pytest.raises(EngineClosedError):
        await engine.embed("x")

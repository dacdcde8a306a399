"""Requests from code without an event loop."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import anyio.to_thread
import pytest

from llamalane.errors import (
    BlockingCallError,
    EngineClosedError,
    InvalidPriorityError,
    QueueFullError,
    RequestCancelledError,
)
from llamalane.ids import RequestId
from llamalane.scheduler import BlockingRequestHandle, Event, EventKind, Grammar, QueueConfig, RequestState, Result
from tests.engine.conftest import MakeBlockingEngine
from tests.engine.running import Gate, WatchedBlockingEngine, greedy, intercepted, seeded

PROMPT = "the quick brown fox"
MESSAGES = [{"role": "user", "content": "Hello"}]
ENDLESS = greedy(900)


@pytest.fixture
def engine(make_blocking_engine: MakeBlockingEngine) -> Iterator[WatchedBlockingEngine]:
    with make_blocking_engine() as engine:
        yield engine


def nothing_is_left(engine: WatchedBlockingEngine) -> bool:
    """Wait until what was cancelled is gone, and tell whether all places are back."""
    engine.drain(60)
    statistics = engine.stats()
    return statistics.free_places == statistics.places and engine.queue() == []


def test_every_way_of_asking_answers(engine: WatchedBlockingEngine) -> None:
    sampling = greedy(5)
    assert len(engine.generate(PROMPT, sampling=sampling).tokens) == 5
    assert len(engine.chat(MESSAGES, sampling=sampling).tokens) == 5
    handles = [
        engine.submit(PROMPT, sampling=sampling),
        engine.submit_chat(MESSAGES, sampling=sampling),
        engine.submit_tokens_nowait([5, 6, 7], sampling=sampling),
        *engine.submit_choices(PROMPT, [RequestId("a"), RequestId("b")], sampling=seeded(1, 5)),
        *engine.submit_chat_choices(MESSAGES, [RequestId("c"), RequestId("d")], sampling=seeded(1, 5)),
    ]
    results = [handle.result() for handle in handles]
    assert [len(result.tokens) for result in results] == [5] * 7
    assert [handle.id for handle in handles[3:]] == ["a", "b", "c", "d"]


def test_iterating_gives_the_text_of_the_result(engine: WatchedBlockingEngine) -> None:
    handle = engine.submit(PROMPT, sampling=greedy(40), priority="agent")
    pieces = list(handle)
    result = handle.result()
    assert "".join(pieces) == result.text
    assert len(pieces) > 1
    assert (handle.id, handle.level, handle.seed) == (result.id, 2, result.seed)
    assert handle.prompt_tokens == result.usage.prompt_tokens
    assert list(handle) == []


def test_many_threads_ask_at_once(engine: WatchedBlockingEngine) -> None:
    def ask(number: int) -> str:
        return engine.generate(f"{PROMPT} {number}", sampling=greedy(20), tenant=str(number)).text

    alone = [ask(number) for number in range(12)]
    with ThreadPoolExecutor(12) as threads:
        assert list(threads.map(ask, range(12))) == alone


def test_the_engine_is_looked_into_and_administered(make_blocking_engine: MakeBlockingEngine) -> None:
    gate = Gate()
    with make_blocking_engine(places=1, open_context=intercepted(gate.pass_through)) as engine, gate:
        running = engine.submit(PROMPT, sampling=greedy(20))
        waiting = engine.submit(PROMPT, sampling=greedy(20), priority="batch")
        assert {explanation.request for explanation in engine.queue()} == {running.id, waiting.id}
        engine.set_priority(waiting.id, "normal")
        assert waiting.level == 3
        assert engine.explain(waiting.id).position == 0
        engine.pause_lane("lane-0")
        assert engine.stats().lanes[0].paused
        engine.resume_lane("lane-0")
        engine.cancel(waiting.id)
        with pytest.raises(RequestCancelledError):
            waiting.result()
        with pytest.raises(KeyError):
            engine.explain(waiting.id)
        changes = engine.reload(engine.config.model_copy(update={"scheduler": engine.config.scheduler}))
        assert changes.applied == ()
        gate.open()
        assert len(running.result().tokens) == 20
        engine.drain()
        with pytest.raises(EngineClosedError, match="draining"):
            engine.submit(PROMPT)


def test_a_grammar_is_compiled_beforehand(engine: WatchedBlockingEngine) -> None:
    grammar = Grammar.choice(["yes", "no"])
    engine.compile_grammar(grammar)
    sampling = greedy(8, grammar=grammar)
    assert engine.submit_tokens_nowait([5, 6], sampling=sampling).result().text in ("yes", "no")


def test_waiting_for_a_result_has_a_limit(make_blocking_engine: MakeBlockingEngine) -> None:
    gate = Gate()
    with make_blocking_engine(open_context=intercepted(gate.pass_through)) as engine, gate:
        handle = engine.submit(PROMPT, sampling=greedy(10))
        with pytest.raises(TimeoutError, match=r"within 0\.01 s, and goes on"):
            handle.result(timeout=0.01)
        gate.open()
        assert len(handle.result(timeout=60).tokens) == 10


def test_cancelling_ends_the_request(engine: WatchedBlockingEngine) -> None:
    handle = engine.submit(PROMPT, sampling=ENDLESS)
    handle.cancel()
    handle.cancel()
    with pytest.raises(RequestCancelledError):
        handle.result()
    with pytest.raises(RequestCancelledError):
        list(handle)
    assert nothing_is_left(engine)
    handle.cancel()


def leave_by_break(handle: BlockingRequestHandle) -> None:
    for _ in handle:
        break


def leave_by_an_error(handle: BlockingRequestHandle) -> None:
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012  (it is about leaving the loop)
        for _ in handle:
            raise KeyboardInterrupt


def leave_by_closing(handle: BlockingRequestHandle) -> None:
    texts = iter(handle)
    next(texts)
    texts.close()


def leave_by_forgetting(handle: BlockingRequestHandle) -> None:
    texts = iter(handle)
    next(texts)


def leave_in_a_cycle(handle: BlockingRequestHandle) -> None:
    texts = iter(handle)
    next(texts)
    cycle: list[object] = [texts]
    cycle.append(cycle)
    del texts, cycle
    gc.collect()


@pytest.mark.parametrize(
    "leave", [leave_by_break, leave_by_an_error, leave_by_closing, leave_by_forgetting, leave_in_a_cycle]
)
def test_a_request_whose_iterator_is_left_is_cancelled(
    engine: WatchedBlockingEngine, leave: Callable[[BlockingRequestHandle], None]
) -> None:
    handle = engine.submit(PROMPT, sampling=ENDLESS)
    leave(handle)
    with pytest.raises(RequestCancelledError):
        handle.result()
    assert nothing_is_left(engine)


def test_an_iterator_that_was_never_used_cancels_nothing(engine: WatchedBlockingEngine) -> None:
    handle = engine.submit(PROMPT, sampling=greedy(5))
    iter(handle)
    gc.collect()
    assert len(handle.result().tokens) == 5


class Interruption:
    """An observer that interrupts the main thread, as Ctrl-C does, when something of a kind has happened."""

    def __init__(self, kind: EventKind) -> None:
        self._kind: EventKind | None = kind

    def __call__(self, event: Event) -> None:
        if event.kind is self._kind:
            self._kind = None
            self.interrupt()

    @staticmethod
    def interrupt() -> None:
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGINT)


def generate(engine: WatchedBlockingEngine) -> object:
    return engine.generate(PROMPT, sampling=ENDLESS)


def iterate(engine: WatchedBlockingEngine) -> object:
    return list(engine.submit(PROMPT, sampling=ENDLESS))


@pytest.mark.parametrize("ask", [generate, iterate])
@pytest.mark.parametrize("kind", [EventKind.ADMITTED, EventKind.STARTED])
def test_ctrl_c_cancels_what_is_waited_for_and_nothing_else(
    make_blocking_engine: MakeBlockingEngine, ask: Callable[[WatchedBlockingEngine], object], kind: EventKind
) -> None:
    with make_blocking_engine(observer=Interruption(kind)) as engine:
        with pytest.raises(KeyboardInterrupt):
            ask(engine)
        other = engine.submit(PROMPT, sampling=greedy(10))
        assert len(other.result().tokens) == 10
        assert nothing_is_left(engine)
        assert engine.stats().counters.cancelled == 1


def submit_again_and_again(engine: WatchedBlockingEngine) -> None:
    while True:
        engine.submit(PROMPT, sampling=ENDLESS).cancel()


def test_ctrl_c_while_requests_are_submitted_leaves_none(make_blocking_engine: MakeBlockingEngine) -> None:
    with make_blocking_engine(observer=Interruption(EventKind.ACCEPTED)) as engine:
        with pytest.raises(KeyboardInterrupt):
            submit_again_and_again(engine)
        assert nothing_is_left(engine)
        assert engine.stats().counters.finished == 0


def test_a_wrong_request_fails_where_it_is_made(engine: WatchedBlockingEngine) -> None:
    with pytest.raises(InvalidPriorityError) as caught:
        engine.submit(PROMPT, priority="yesterday")
    told = "".join(traceback.format_exception(caught.value))
    assert 'engine.submit(PROMPT, priority="yesterday")' in told
    assert len(caught.traceback) == 3
    with pytest.raises(TypeError, match="unknown options: max_tokens"):
        engine.submit(PROMPT, max_tokens=5)  # type: ignore[call-arg]
    assert nothing_is_left(engine)


def test_a_full_queue_is_told_at_once(make_blocking_engine: MakeBlockingEngine) -> None:
    gate = Gate()
    config = {"queue": QueueConfig(max_requests=1)}
    with make_blocking_engine(places=1, open_context=intercepted(gate.pass_through), **config) as engine, gate:
        engine.submit(PROMPT, sampling=greedy(5))
        engine.submit(PROMPT, sampling=greedy(5))
        with pytest.raises(QueueFullError):
            engine.submit(PROMPT, sampling=greedy(5))
        gate.open()


def test_results_outlive_the_engine(make_blocking_engine: MakeBlockingEngine) -> None:
    with make_blocking_engine() as engine:
        handle = engine.submit(PROMPT, sampling=greedy(20))
    assert handle.state is RequestState.DONE
    assert "".join(handle) == handle.result().text
    handle.cancel()
    assert len(handle.result(timeout=0).tokens) == 20


def test_the_observer_may_not_wait_for_the_engine(make_blocking_engine: MakeBlockingEngine) -> None:
    refused: list[str] = []

    def observe(event: Event) -> None:
        for wait in (running.stats, running.close):
            with pytest.raises(BlockingCallError, match="own thread") as caught:
                wait()
            refused.append(str(caught.value))

    running = make_blocking_engine(observer=observe)
    with running:
        assert len(running.generate(PROMPT, sampling=greedy(5)).tokens) == 5
    assert refused


def test_the_observer_may_cancel(make_blocking_engine: MakeBlockingEngine) -> None:
    handles: list[BlockingRequestHandle] = []

    def observe(event: Event) -> None:
        if event.kind is EventKind.STEP and handles:
            handles[0].cancel()

    with make_blocking_engine(observer=observe) as engine:
        handles.append(engine.submit(PROMPT, sampling=ENDLESS))
        with pytest.raises(RequestCancelledError):
            handles[0].result()


@pytest.mark.anyio
async def test_event_loops_are_not_stopped(make_blocking_engine: MakeBlockingEngine) -> None:
    with pytest.raises(BlockingCallError, match="allow_event_loop"):
        make_blocking_engine().start()
    engine = make_blocking_engine()
    await anyio.to_thread.run_sync(engine.start)
    with pytest.raises(BlockingCallError, match="allow_event_loop"):
        engine.generate(PROMPT)
    result = await anyio.to_thread.run_sync(lambda: engine.generate(PROMPT, sampling=greedy(3)))
    assert len(result.tokens) == 3
    engine.close()  # whoever has to clean up may


@pytest.mark.anyio
async def test_an_engine_may_allow_to_stop_event_loops(make_blocking_engine: MakeBlockingEngine) -> None:
    with make_blocking_engine(allow_event_loop=True) as engine:
        assert len(engine.generate(PROMPT, sampling=greedy(3)).tokens) == 3
        assert "".join(engine.submit(PROMPT, sampling=greedy(3)))


@pytest.mark.asyncio
async def test_worker_threads_of_asyncio_may_wait(make_blocking_engine: MakeBlockingEngine) -> None:
    def work() -> Result:
        with make_blocking_engine() as engine:
            return engine.generate(PROMPT, sampling=greedy(3))

    assert len((await asyncio.to_thread(work)).tokens) == 3

"""How an engine begins and ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from llamalane.errors import ContextError, EngineClosedError, InvalidRequestError, ModelLoadError
from llamalane.scheduler import Engine, EngineState, EventKind
from llamalane.streams.lane import StepContext
from llamalane.streams.llama import Context, ContextOptions, Model
from tests.engine.conftest import MakeEngine
from tests.engine.running import Follower, Gate, greedy, intercepted, lane_threads
from tests.engine.test_lanes import as_if_each_lane_had_its_cores

pytestmark = pytest.mark.anyio

PROMPT = "the quick brown fox"

Submit = Callable[[Engine], Awaitable[object]]


async def generate(engine: Engine) -> object:
    return await engine.generate(PROMPT)


async def submit_tokens(engine: Engine) -> object:
    return engine.submit_tokens_nowait([5])


async def chat(engine: Engine) -> object:
    return await engine.chat([{"role": "user", "content": "Hello"}])


in_every_way = pytest.mark.parametrize("submit", [generate, submit_tokens, chat])


@in_every_way
async def test_requests_need_a_running_engine(make_engine: MakeEngine, submit: Submit) -> None:
    engine = make_engine()
    states = [engine.state]
    with pytest.raises(EngineClosedError, match="new"):
        await submit(engine)
    async with engine:
        states.append(engine.state)
    states.append(engine.state)
    assert states == [EngineState.NEW, EngineState.READY, EngineState.CLOSED]
    with pytest.raises(EngineClosedError, match="closed"):
        await submit(engine)


async def test_who_waits_for_a_state_hears_of_it(make_engine: MakeEngine) -> None:
    engine = make_engine()
    seen: list[EngineState] = []

    async def follow() -> None:
        for states in ((EngineState.READY, EngineState.CLOSED), (EngineState.DRAINING,), (EngineState.CLOSED,)):
            seen.append(await engine.wait_for(*states))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(follow)
        async with engine:
            assert await engine.wait_for(EngineState.READY) is EngineState.READY
            while not seen:
                await checkpoint()
            await engine.drain()
            while len(seen) < 2:
                await checkpoint()
    assert seen == [EngineState.READY, EngineState.DRAINING, EngineState.CLOSED]


async def test_who_waits_for_an_engine_that_cannot_start_hears_of_it(make_engine: MakeEngine, tmp_path: Path) -> None:
    engine = make_engine(tmp_path / "missing.gguf")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(engine.wait_for, EngineState.CLOSED)
        with pytest.raises(ModelLoadError):
            await engine.__aenter__()


async def test_an_engine_without_a_model_still_answers(make_engine: MakeEngine) -> None:
    engine = make_engine()
    for state in (EngineState.NEW, EngineState.CLOSED):
        assert engine.state is engine.stats().state is state
        assert engine.stats().lanes == ()
        assert engine.model_name == "tiny"
        assert not engine.down
        with pytest.raises(EngineClosedError):
            _ = engine.limit
        with pytest.raises(EngineClosedError):
            _ = engine.model_info
        await engine.drain()
        if state is EngineState.NEW:
            async with engine:
                pass


async def test_an_engine_starts_once(make_engine: MakeEngine) -> None:
    engine = make_engine()
    async with engine:
        with pytest.raises(EngineClosedError, match="once"):
            async with engine:
                pass
        assert engine.state is EngineState.READY
        assert await engine.generate(PROMPT, sampling=greedy(2))
    with pytest.raises(EngineClosedError, match="once"):
        async with engine:
            pass


async def test_leaving_lets_requests_finish(make_engine: MakeEngine) -> None:
    async with make_engine(places=1) as engine:
        handles = [await engine.submit(PROMPT, sampling=greedy(30)) for _ in range(3)]
    for handle in handles:
        assert len((await handle).tokens) == 30


@in_every_way
async def test_draining_finishes_what_is_there_and_takes_nothing_new(make_engine: MakeEngine, submit: Submit) -> None:
    gate = Gate()
    async with make_engine(places=1, open_context=intercepted(gate.pass_through)) as engine:
        with gate:
            handles = [await engine.submit(PROMPT, sampling=greedy(10)) for _ in range(3)]
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(engine.drain)
                await anyio.wait_all_tasks_blocked()
                assert engine.state is engine.stats().state is EngineState.DRAINING
                with pytest.raises(EngineClosedError, match="draining"):
                    await submit(engine)
                gate.open()
        for handle in handles:
            assert len((await handle).tokens) == 10
        with pytest.raises(EngineClosedError):
            await submit(engine)


async def test_draining_an_idle_engine_returns_at_once(make_engine: MakeEngine) -> None:
    async with make_engine() as engine:
        await engine.drain()
        await engine.drain(0)


async def test_a_request_tokenized_while_draining_begins_is_refused(make_engine: MakeEngine) -> None:
    """A text so long that it is tokenized beside the event loop; the names of tokens make few tokens of it."""
    async with make_engine(part=2048) as engine:
        refused = anyio.Event()

        async def submit() -> None:
            with pytest.raises(EngineClosedError):
                await engine.submit("<unk>" * 1000)
            refused.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(submit)
            tasks.start_soon(engine.drain)
        assert refused.is_set()


async def test_what_outlasts_the_patience_ends_with_an_error(make_engine: MakeEngine) -> None:
    gate, follower = Gate(), Follower()
    async with make_engine(places=1, observer=follower, open_context=intercepted(gate.pass_through)) as engine:
        with gate:
            running = await engine.submit(PROMPT, sampling=greedy(100))
            waiting = await engine.submit(PROMPT, sampling=greedy(100))
            await follower.wait_for(EventKind.ADMITTED, running.id)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(engine.drain, 0.01)
                for handle in (running, waiting):
                    with pytest.raises(EngineClosedError, match="shutting down"):
                        await handle
                gate.open()
        assert engine.stats().free_places == 1


async def test_leaving_waits_no_longer_than_configured(make_engine: MakeEngine) -> None:
    gate = Gate()
    engine = make_engine(places=1, drain_timeout=0.01, open_context=intercepted(gate.pass_through))
    ended = anyio.Event()
    with gate:
        async with anyio.create_task_group() as tasks:

            async def use() -> None:
                async with engine:
                    handle = await engine.submit(PROMPT, sampling=greedy(100))
                    tasks.start_soon(see_the_end_of, handle.result)

            async def see_the_end_of(result: Callable[[], Awaitable[object]]) -> None:
                with pytest.raises(EngineClosedError):
                    await result()
                ended.set()

            tasks.start_soon(use)
            await ended.wait()
            gate.open()
    assert engine.state is EngineState.CLOSED


async def test_an_error_in_the_block_ends_requests_and_comes_out_as_it_is(make_engine: MakeEngine) -> None:
    engine = make_engine(places=1)
    handles = []

    async def use() -> None:
        async with engine:
            handles.extend([await engine.submit(PROMPT, sampling=greedy(200)) for _ in range(3)])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await use()
    assert engine.state is EngineState.CLOSED
    for handle in handles:
        with pytest.raises(EngineClosedError):
            await handle


async def test_cancelling_the_block_ends_everything(make_engine: MakeEngine) -> None:
    gate = Gate()
    engine = make_engine(places=1, open_context=intercepted(gate.pass_through))
    with anyio.CancelScope() as scope, gate:
        async with engine:
            handle = await engine.submit(PROMPT, sampling=greedy(100))
            scope.cancel()
            gate.open()
            await handle
    assert scope.cancelled_caught
    assert engine.state is EngineState.CLOSED
    with pytest.raises(EngineClosedError):
        await handle


async def test_cancelling_while_it_drains_ends_everything(make_engine: MakeEngine) -> None:
    gate = Gate()
    engine = make_engine(places=1, open_context=intercepted(gate.pass_through))
    leaving = anyio.Event()
    with gate:
        async with anyio.create_task_group() as tasks:

            async def use() -> None:
                async with engine:
                    await engine.submit(PROMPT, sampling=greedy(100))
                    leaving.set()

            tasks.start_soon(use)
            await leaving.wait()
            assert engine.state is EngineState.DRAINING
            tasks.cancel_scope.cancel()
            gate.open()
    assert engine.state is EngineState.CLOSED


@pytest.mark.parametrize("content", [b"", b"nonsense", b"GGUF", b"GGUF" + bytes(100)])
async def test_a_file_that_is_no_model_is_told(make_engine: MakeEngine, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    engine = make_engine(path)
    with pytest.raises(ModelLoadError, match=r"model\.gguf"):
        async with engine:
            pass
    assert engine.state is EngineState.CLOSED


@pytest.fixture
def half_a_model(tiny_model: Path, tmp_path: Path) -> Path:
    path = tmp_path / "half.gguf"
    content = tiny_model.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    return path


async def test_a_truncated_model_is_told(make_engine: MakeEngine, half_a_model: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"half\.gguf"):
        async with make_engine(half_a_model):
            pass


async def test_a_missing_model_is_told(make_engine: MakeEngine, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="nowhere"):
        async with make_engine(tmp_path / "nowhere.gguf"):
            pass


async def test_lanes_that_opened_are_closed_when_another_one_does_not(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Context] = []

    def open_context(model: Model, options: ContextOptions) -> StepContext:
        if len(opened) == 2:
            raise ContextError("no memory for a third one")
        opened.append(Context(model, options))
        return opened[-1]

    as_if_each_lane_had_its_cores(monkeypatch)
    engine = make_engine(lanes=3, open_context=open_context)
    with pytest.raises(ContextError, match="third"):
        async with engine:
            pass
    assert engine.state is EngineState.CLOSED
    assert not lane_threads()
    for context in opened:
        with pytest.raises(ContextError, match="closed"):
            context.remove(0)  # type: ignore[arg-type]


async def leave(engine: Engine, tasks: TaskGroup) -> None:
    """Begin to drain, and fail in the engine's block while that goes on."""
    async with engine:
        await engine.submit(PROMPT, sampling=greedy(200))
        tasks.start_soon(engine.drain, 60)
        while engine.state is not EngineState.DRAINING:
            await checkpoint()
        raise KeyError


async def test_a_drain_ends_when_the_block_is_left_meanwhile(make_engine: MakeEngine) -> None:
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            with pytest.raises(KeyError):
                await leave(make_engine(), tasks)


async def test_options_that_nobody_knows_are_refused(make_engine: MakeEngine) -> None:
    async with make_engine() as engine:
        with pytest.raises(TypeError, match="unknown options: max_tokens"):
            await engine.generate(PROMPT, max_tokens=5)  # type: ignore[call-arg]


@pytest.mark.parametrize("messages", [[], "hi", [{"role": "user"}], [{"content": "no role"}], [17]])
async def test_messages_that_are_none_are_refused(make_engine: MakeEngine, messages: Any) -> None:
    async with make_engine() as engine:
        with pytest.raises(InvalidRequestError, match="message") as caught:
            await engine.chat(messages)
        assert caught.value.param == "messages"

"""How an engine for code without an event loop begins and ends."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from llamalane.errors import ContextError, EngineClosedError, ModelLoadError, RequestCancelledError
from llamalane.scheduler import BlockingEngine, BlockingRequestHandle, EngineConfig, EngineState, EventKind
from llamalane.streams.lane import StepContext
from llamalane.streams.llama import Context, ContextOptions, Model
from tests.engine.conftest import MakeBlockingEngine
from tests.engine.running import Gate, greedy, intercepted, lane_threads
from tests.engine.test_blocking import ENDLESS, PROMPT, Interruption

ROOT = Path(__file__).parents[2]


def test_an_engine_that_does_not_run_says_so(make_blocking_engine: MakeBlockingEngine) -> None:
    engine = make_blocking_engine()
    for state in (EngineState.NEW, EngineState.CLOSED):
        assert engine.state is engine.stats().state is state
        assert repr(engine) == f"<BlockingEngine tiny: {state.value}>"
        with pytest.raises(EngineClosedError, match=state.value):
            engine.submit(PROMPT)
        with pytest.raises(EngineClosedError, match=state.value):
            engine.queue()
        with pytest.raises(EngineClosedError, match=state.value):
            _ = engine.limit
        engine.drain()
        engine.close()
        if state is EngineState.NEW:
            engine.start()
            engine.close()


def test_an_engine_starts_once(make_blocking_engine: MakeBlockingEngine) -> None:
    with make_blocking_engine() as engine:
        with pytest.raises(EngineClosedError, match="once"):
            engine.start()
        assert engine.generate(PROMPT, sampling=greedy(2))
    with pytest.raises(EngineClosedError, match="once"), engine:
        pass


def test_leaving_lets_requests_finish(make_blocking_engine: MakeBlockingEngine) -> None:
    with make_blocking_engine(places=1) as engine:
        handles = [engine.submit(PROMPT, sampling=greedy(30)) for _ in range(3)]
    for handle in handles:
        assert len(handle.result().tokens) == 30


def leave_with_an_error(engine: BlockingEngine, handles: list[BlockingRequestHandle]) -> None:
    with engine:
        handles.extend(engine.submit(PROMPT, sampling=ENDLESS) for _ in range(3))
        raise KeyError("mine")


def test_an_error_that_leaves_the_block_ends_what_is_there(make_blocking_engine: MakeBlockingEngine) -> None:
    engine = make_blocking_engine(drain_timeout=3600)
    handles: list[BlockingRequestHandle] = []
    with pytest.raises(KeyError, match="mine") as caught:
        leave_with_an_error(engine, handles)
    assert [entry.name for entry in caught.traceback][1:] == ["leave_with_an_error"]
    for handle in handles:
        with pytest.raises(EngineClosedError):
            handle.result()
    assert engine.state is EngineState.CLOSED
    assert not lane_threads()


def open_and_close(gate: Gate, engine: BlockingEngine) -> None:
    gate.open()
    engine.close()


def test_ctrl_c_ends_the_draining(make_blocking_engine: MakeBlockingEngine) -> None:
    gate = Gate()
    interruption = Interruption(EventKind.STARTED)
    engine = make_blocking_engine(
        drain_timeout=3600, observer=interruption, open_context=intercepted(gate.pass_through)
    )
    engine.start()
    with gate:
        handle = engine.submit(PROMPT, sampling=ENDLESS)
        with pytest.raises(KeyboardInterrupt):
            open_and_close(gate, engine)
    with pytest.raises(EngineClosedError):
        handle.result()
    assert engine.state is EngineState.CLOSED


def test_ctrl_c_while_the_model_loads_ends_the_engine(make_blocking_engine: MakeBlockingEngine) -> None:
    interruption = Interruption(EventKind.STARTED)
    loading = Gate()

    def open_context(model: Model, options: ContextOptions) -> StepContext:
        interruption.interrupt()
        loading.pass_through()
        return Context(model, options)

    engine = make_blocking_engine(open_context=open_context)
    with loading, pytest.raises(KeyboardInterrupt):
        engine.start()
    engine.close()
    assert engine.state is EngineState.CLOSED


def test_closing_while_the_model_loads_ends_the_engine_after_that(make_blocking_engine: MakeBlockingEngine) -> None:
    loading, reached = Gate(), threading.Event()

    def open_context(model: Model, options: ContextOptions) -> StepContext:
        reached.set()
        loading.pass_through()
        return Context(model, options)

    engine = make_blocking_engine(open_context=open_context)
    starting = threading.Thread(target=engine.start)
    starting.start()
    with loading:
        reached.wait()
        with pytest.raises(EngineClosedError, match="loading"):
            engine.generate(PROMPT)
        closing = threading.Thread(target=engine.close)
        closing.start()
    starting.join()
    closing.join()
    assert engine.state is EngineState.CLOSED


def test_several_threads_close_at_once(make_blocking_engine: MakeBlockingEngine) -> None:
    engine = make_blocking_engine()
    engine.start()
    handle = engine.submit(PROMPT, sampling=greedy(20))
    threads = [threading.Thread(target=engine.close) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert engine.state is EngineState.CLOSED
    assert len(handle.result().tokens) == 20


def test_whoever_waits_while_the_engine_closes_gets_an_answer(make_blocking_engine: MakeBlockingEngine) -> None:
    engine = make_blocking_engine(drain_timeout=0)
    engine.start()
    handle = engine.submit(PROMPT, sampling=ENDLESS)
    closing = threading.Thread(target=engine.close)
    closing.start()
    with pytest.raises(EngineClosedError):
        list(handle)
    with pytest.raises(EngineClosedError):
        handle.result()
    closing.join()


def test_a_model_that_cannot_be_loaded_is_told_where_it_is_started(tmp_path: Path) -> None:
    engine = BlockingEngine(EngineConfig.for_model(tmp_path / "nowhere.gguf"))
    with pytest.raises(ModelLoadError, match="nowhere"):
        engine.start()
    assert engine.state is EngineState.CLOSED
    engine.close()
    with pytest.raises(EngineClosedError, match="closed"):
        engine.submit(PROMPT)


def test_a_context_that_cannot_be_made_leaves_nothing(make_blocking_engine: MakeBlockingEngine) -> None:
    def open_context(model: Model, options: ContextOptions) -> StepContext:
        raise ContextError("no memory")

    with pytest.raises(ContextError, match="no memory"), make_blocking_engine(open_context=open_context):
        pass
    assert not lane_threads()


def test_forgetting_to_close_is_warned_of_and_ends_the_engine(make_blocking_engine: MakeBlockingEngine) -> None:
    engines = [make_blocking_engine()]
    engines[0].start()
    handle = engines[0].submit(PROMPT, sampling=ENDLESS)
    thread = engines[0]._thread
    with pytest.warns(ResourceWarning, match="tiny: ready> was not closed"):
        engines.clear()
    with pytest.raises(EngineClosedError):
        handle.result()
    thread.join()
    assert not lane_threads()


def test_an_engine_that_was_never_started_is_forgotten_silently(make_blocking_engine: MakeBlockingEngine) -> None:
    make_blocking_engine()
    gc.collect()


SETUP = """
import os, sys
from llamalane import BlockingEngine, SamplingParameters
from llamalane.errors import EngineForkedError
from tests.engine.running import config_for

engine = BlockingEngine(config_for(sys.argv[1]))
engine.start()
endless = SamplingParameters(max_tokens=900, ignore_eos=True)
"""


def run(program: str, model: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *options, "-c", SETUP + program, str(model)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_the_interpreter_ends_though_the_engine_was_not_closed(tiny_model: Path) -> None:
    done = run("texts = iter(engine.submit('Hello', sampling=endless)); print(len(next(texts)) > 0)", tiny_model)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


def test_the_interpreter_warns_at_its_end_of_an_engine_that_was_not_closed(tiny_model: Path) -> None:
    done = run("engine.submit('Hello', sampling=endless)", tiny_model, "-W", "default::ResourceWarning")
    assert done.returncode == 0
    assert "was not closed" in done.stderr


FORK = """
handle = engine.submit("Hello", sampling=endless)
child = os.fork()
if not child:
    for use in (engine.stats, engine.start, handle.result, lambda: list(handle), lambda: engine.generate("Hello")):
        try:
            use()
        except EngineForkedError as error:
            assert error.owner == os.getppid()
        else:
            os._exit(1)
    handle.cancel()
    engine.close()
    with BlockingEngine(engine.config) as mine:
        assert mine.generate("Hello", sampling=SamplingParameters(max_tokens=3, ignore_eos=True)).text
    sys.exit(17)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 17
texts = iter(handle)
print(len(next(texts)) > 0)
texts.close()
engine.close()
"""


def test_a_forked_process_cannot_use_the_engine_and_may_have_its_own(tiny_model: Path) -> None:
    done = run(FORK, tiny_model)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_a_request_of_a_closed_engine_stays_cancelled(make_blocking_engine: MakeBlockingEngine) -> None:
    with make_blocking_engine() as engine:
        handle = engine.submit(PROMPT, sampling=ENDLESS)
        handle.cancel()
    with pytest.raises(RequestCancelledError):
        handle.result()
    with pytest.raises(RequestCancelledError):
        list(handle)

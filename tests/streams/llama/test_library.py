from __future__ import annotations

import ctypes
import json
import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from llamalane.errors import DecodeError, ModelLoadError
from llamalane.ids import SequenceId
from llamalane.streams.llama import Batch, Context, Model, ModelOptions, library
from llamalane.streams.llama.library import SPIN_COUNT, _Log
from tests.streams.llama.conftest import OPTIONS, PROMPT, step

SPIN = "GOMP_SPINCOUNT"
POLICY = "OMP_WAIT_POLICY"

CODE = f"""
import json, os
from llamalane.streams.llama import library
library()
print(json.dumps({{name: os.environ.get(name) for name in ({SPIN!r}, {POLICY!r})}}))
"""


def load_in_a_process(**environment: str) -> tuple[Mapping[str, str | None], str]:
    """Load llama.cpp anew; return what is left in the environment, and what OpenMP found in it."""
    clean = {name: value for name, value in os.environ.items() if name not in (SPIN, POLICY)}
    run = subprocess.run(
        [sys.executable, "-c", CODE],
        env={**clean, "OMP_DISPLAY_ENV": "VERBOSE", **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    if SPIN not in run.stderr:
        pytest.skip("this build of llama.cpp does not use GNU OpenMP")
    return json.loads(run.stdout), run.stderr


def test_openmp_finds_a_bounded_spin_and_the_environment_stays_as_it_was() -> None:
    environment, openmp = load_in_a_process()
    assert f"{SPIN} = '{SPIN_COUNT}'" in openmp
    assert environment == {SPIN: None, POLICY: None}


def test_a_spin_that_the_user_has_set_is_left_alone() -> None:
    environment, openmp = load_in_a_process(GOMP_SPINCOUNT="77")
    assert f"{SPIN} = '77'" in openmp
    assert environment == {SPIN: "77", POLICY: None}


def test_a_wait_policy_that_the_user_has_set_decides() -> None:
    environment, openmp = load_in_a_process(OMP_WAIT_POLICY="passive")
    assert f"{SPIN} = '0'" in openmp
    assert environment == {SPIN: None, POLICY: "passive"}


def test_llama_cpp_is_loaded_once() -> None:
    assert library() is library()


def test_what_llama_cpp_says_goes_to_logging_line_by_line(
    tiny_model: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.DEBUG, "llamalane.llama"), Model(ModelOptions(path=tiny_model)):
        pass
    records = [record for record in caplog.records if record.name == "llamalane.llama"]
    assert any("llama_model_loader" in record.message for record in records)
    assert {record.levelno for record in records} == {logging.DEBUG}, "a page of detail for each model is no news"
    assert all(record.message.strip() and "\n" not in record.message for record in records)
    output = capfd.readouterr()
    assert "llama_model_loader" not in output.out + output.err


def test_a_line_that_comes_in_pieces_is_one_message_of_the_first_piece_s_level(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = _Log()
    pieces = [(4, b"broken: "), (5, b"out of "), (5, b"luck\nand "), (5, b"more\n"), (3, b"\n"), (3, b"\xff\n")]
    with caplog.at_level(logging.DEBUG, "llamalane.llama"):
        for level, text in pieces:
            log.receive(level, text, None)
    assert [(record.levelno, record.message) for record in caplog.records] == [
        (logging.ERROR, "broken: out of luck"),
        (logging.ERROR, "and more"),
        (logging.WARNING, "\ufffd"),
    ]


def test_lines_of_two_threads_are_not_mixed(caplog: pytest.LogCaptureFixture) -> None:
    log = _Log()
    with caplog.at_level(logging.DEBUG, "llamalane.llama"), ThreadPoolExecutor(1) as executor:
        log.receive(3, b"one ", None)
        executor.submit(log.receive, 4, b"two\n", None).result()
        log.receive(5, b"line\n", None)
    assert caplog.messages == ["two", "one line"]


def test_messages_are_gathered_from_the_asking_thread_only(caplog: pytest.LogCaptureFixture) -> None:
    log = _Log()
    with log.collect(logging.ERROR) as errors, ThreadPoolExecutor(1) as executor:
        log.receive(4, b"mine\n", None)
        log.receive(3, b"a warning\n", None)
        executor.submit(log.receive, 4, b"another thread's\n", None).result()
    log.receive(4, b"later\n", None)
    assert errors == ["mine"]
    assert caplog.messages == ["a warning", "another thread's", "later"]


def test_warnings_are_gathered_with_the_errors_when_asked(caplog: pytest.LogCaptureFixture) -> None:
    log = _Log()
    with caplog.at_level(logging.DEBUG, "llamalane.llama"), log.collect(logging.WARNING) as messages:
        log.receive(2, b"a detail\n", None)
        log.receive(3, b"a warning\n", None)
        log.receive(4, b"an error\n", None)
    assert messages == ["a warning", "an error"]
    assert caplog.messages == ["a detail"]


def test_what_llama_cpp_says_of_a_step_that_fails_is_logged(model: Model, caplog: pytest.LogCaptureFixture) -> None:
    context = Context(model, OPTIONS)
    batch = Batch(OPTIONS.max_step_tokens)

    def overfill() -> None:
        for start in range(0, OPTIONS.cells + 1, batch.capacity):
            batch.clear()
            batch.add(SequenceId(0), [5] * batch.capacity, start, output=True)
            context.decode(batch)

    with caplog.at_level(logging.DEBUG, "llamalane.llama"), pytest.raises(DecodeError):
        overfill()
    assert any("memory slot" in record.message for record in caplog.records)
    context.close()


def test_the_reason_that_an_exception_tells_is_not_logged_too(
    tmp_path: Path, tiny_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(tiny_model.read_bytes()[:-100])
    with caplog.at_level(logging.DEBUG, "llamalane.llama"), pytest.raises(ModelLoadError, match="file bounds"):
        Model(ModelOptions(path=path))
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_quick_functions_are_llama_cpps_own_and_keep_the_interpreter(context: Context) -> None:
    step(context, (SequenceId(1), PROMPT))
    lib = library()
    for name, function in vars(lib.quick).items():
        assert function.argtypes == getattr(lib.api, name).argtypes
        assert function._flags_ & ctypes._FUNCFLAG_PYTHONAPI  # type: ignore[attr-defined]
    memory = lib.api.llama_get_memory(context._pointer)
    assert lib.quick.llama_memory_seq_pos_max(memory, 1) == lib.api.llama_memory_seq_pos_max(memory, 1) == 20
    assert lib.quick.llama_memory_seq_rm(memory, 1, 10, -1)
    assert lib.api.llama_memory_seq_pos_max(memory, 1) == 9

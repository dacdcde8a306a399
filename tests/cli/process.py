"""The command line in processes of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import llamalane

_COMMAND = [sys.executable, "-m", "llamalane"]
Process = subprocess.Popen[str]


def environment(**variables: str) -> dict[str, str]:
    """Return this process's environment, in which nothing configures llamalane, with `variables` added."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LLAMALANE_")}
    source = str(Path(llamalane.__file__).parents[1])
    return {**kept, "PYTHONPATH": source, "PYTHONUNBUFFERED": "1", "NO_COLOR": "1", "COLUMNS": "120", **variables}


def run(*arguments: str | Path, stdin: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [*_COMMAND, *map(str, arguments)],
        input=stdin,
        capture_output=True,
        encoding="utf-8",
        env=environment(**variables),
        timeout=120,
        check=False,
    )


@contextmanager
def started(*arguments: str | Path, **variables: str) -> Iterator[Process]:
    """Start a command; whatever is left of it at the end of the block is killed."""
    with subprocess.Popen(
        [*_COMMAND, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        env=environment(**variables),
        # A test run in the background of a shell ignores SIGINT, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for_line(process: Process, text: str) -> str:
    """Read what the process says on standard error up to a line that contains `text`, and return that line."""
    said = []
    for line in errors_of(process):
        if text in line:
            return line
        said.append(line)
    raise AssertionError(f"the process ended without saying {text!r}; it said: {''.join(said)}")


def errors_of(process: Process) -> IO[str]:
    """Return the process's standard error."""
    assert process.stderr is not None
    return process.stderr

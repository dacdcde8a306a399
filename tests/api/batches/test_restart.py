"""Batches outlive a process that is killed, wherever it is."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

import llamalane
from llamalane.api.batches.records import BatchStatus
from tests.api.batches.lines import jsonl, record
from tests.api.batches.running import batches_on
from tests.api.batches.storing import add_batch, opened
from tests.api.fake_engine import ScriptedEngine

NAMES = [f"item-{number:04}" for number in range(400)]

_PROGRAM = """
import sys
from pathlib import Path

import anyio

from tests.api.batches.running import batches_on
from tests.api.fake_engine import ScriptedEngine


async def main() -> None:
    async with batches_on(ScriptedEngine(), Path(sys.argv[1])) as batches:
        while True:
            for batch in await batches.store.batches_under_way():
                print(batch.status, batch.completed, flush=True)


anyio.run(main, backend=sys.argv[2])
"""


@contextmanager
def running(folder: Path, backend: str) -> Iterator[Iterator[tuple[str, int]]]:
    """Run the batches of a folder in a process that is killed at the end of the block; gives what it tells."""
    root, source = Path(__file__).parents[3], Path(llamalane.__file__).parents[1]
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(folder), backend],
        stdout=subprocess.PIPE,
        encoding="utf-8",
        env={**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{root}"},
    ) as process:
        assert process.stdout is not None
        lines = (line.split() for line in process.stdout)
        try:
            yield ((status, int(completed)) for status, completed in lines)
        finally:
            process.kill()


async def prepare(folder: Path) -> str:
    async with opened(folder) as store:
        return (await add_batch(store, jsonl(*map(record, NAMES)))).id


async def completed(folder: Path, batch_id: str) -> int:
    async with opened(folder) as store:
        return (await store.find_batch(batch_id, None)).completed


async def finish(folder: Path, batch_id: str) -> tuple[int, int, list[str]]:
    """Run the batch to its end; return how many items it had, how many were served now, and the output's names."""
    engine = ScriptedEngine()
    async with batches_on(engine, folder) as batches:
        batch = await batches.ended(await batches.store.find_batch(batch_id, None))
        assert (batch.status, batch.completed, batch.failed) == (BatchStatus.COMPLETED, len(NAMES), 0)
        return batch.total, engine.submissions, list(batches.lines(batch.output_file_id))


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_batch_that_is_killed_again_and_again_loses_and_repeats_nothing(tmp_path: Path, backend: str) -> None:
    batch = anyio.run(prepare, tmp_path)
    done = 0
    for _ in range(2):
        with running(tmp_path, backend) as states:
            told = next(count for status, count in states if status == "in_progress" and count > done + 20)
        done = anyio.run(completed, tmp_path, batch)
        assert told <= done < len(NAMES)
    total, served, names = anyio.run(finish, tmp_path, batch)
    assert (total, served, names) == (len(NAMES), len(NAMES) - done, NAMES)


def test_a_batch_that_is_killed_while_it_ends_has_its_output_once(tmp_path: Path) -> None:
    batch = anyio.run(prepare, tmp_path)
    with running(tmp_path, "asyncio") as states:
        next(count for status, count in states if status == "finalizing" or count == len(NAMES))
    _, _, names = anyio.run(finish, tmp_path, batch)
    assert names == NAMES
    assert len(list((tmp_path / "files").iterdir())) == 2

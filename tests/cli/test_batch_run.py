"""How a batch runs its tasks, with a stand-in for the engine."""

from __future__ import annotations

import io
import json
import resource
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from rich.console import Console

from llamalane.api.batches.input import BatchInput
from llamalane.cli.batch import BatchRun, Serve
from llamalane.cli.batch_file import BatchOutput
from llamalane.cli.batch_progress import BatchProgress
from llamalane.errors import LaneDownError, LlamalaneError

pytestmark = pytest.mark.anyio

LEVEL = 5
Answer = tuple[int, dict[str, Any]]


class Batch:
    """Tasks with the names given, and the file of their results."""

    def __init__(self, path: Path, names: list[str]) -> None:
        self.output = BatchOutput(path)
        self._path = path
        text = "".join(f"{self._line(name)}\n" for name in names).encode()
        self._entries = BatchInput(io.BytesIO(text), self.output.done)
        self.progress = BatchProgress(Console(file=io.StringIO()), len(text), self.output.done)

    @staticmethod
    def _line(name: str) -> str:
        return json.dumps({"custom_id": name, "method": "POST", "url": "/v1/x", "body": {"prompt": name}})

    async def run(self, serve: Serve, width: int = 3) -> None:
        await BatchRun(serve, self._entries, self.output, LEVEL, self.progress).run(width)

    def statuses(self) -> dict[str, int]:
        lines = map(json.loads, self._path.read_bytes().splitlines())
        return {line["custom_id"]: line["response"]["status_code"] for line in lines}


@pytest.fixture
def batch(tmp_path: Path) -> Iterator[Batch]:
    batch = Batch(tmp_path / "out.jsonl", list("abcdefgh"))
    with batch.output:
        yield batch


def answer(body: Mapping[str, Any]) -> Answer:
    return 200, {"id": f"cmpl-{body['prompt']}", "usage": {"completion_tokens": 2}}


async def test_every_task_is_answered_once(batch: Batch) -> None:
    asked = []

    async def serve(method: str, url: str, body: dict[str, Any]) -> Answer:
        asked.append((method, url, body["prompt"]))
        return answer(body)

    await batch.run(serve)
    assert sorted(asked) == [("POST", "/v1/x", name) for name in "abcdefgh"]
    assert batch.statuses() == dict.fromkeys("abcdefgh", 200)
    assert batch.progress.summary().startswith("8 done, 0 failed; 16 tokens in ")


async def test_as_many_run_at_once_as_the_width_says(batch: Batch) -> None:
    running: set[str] = set()
    full = anyio.Event()
    most = 0

    async def serve(method: str, url: str, body: dict[str, Any]) -> Answer:
        nonlocal most
        running.add(body["prompt"])
        most = max(most, len(running))
        if len(running) == 3:
            full.set()
        await full.wait()
        running.remove(body["prompt"])
        return answer(body)

    with anyio.fail_after(60):
        await batch.run(serve, width=3)
    assert most == 3
    assert len(batch.statuses()) == 8


async def test_failed_tasks_are_told_and_do_not_stop_the_others(batch: Batch) -> None:
    async def serve(method: str, url: str, body: dict[str, Any]) -> Answer:
        return (400, {"error": {"message": "no"}}) if body["prompt"] == "c" else answer(body)

    await batch.run(serve)
    assert batch.statuses() == {**dict.fromkeys("abcdefgh", 200), "c": 400}
    assert batch.progress.failed == 1


async def test_a_full_queue_is_tried_again_when_another_task_has_ended(batch: Batch) -> None:
    running = 0
    refused = anyio.Event()
    refusals = 0

    async def serve(method: str, url: str, body: dict[str, Any]) -> Answer:
        nonlocal running, refusals
        if running == 2:
            refusals += 1
            refused.set()
            return 429, {"error": {"message": "full"}}
        running += 1
        await refused.wait()
        running -= 1
        return answer(body)

    with anyio.fail_after(60):
        await batch.run(serve, width=3)
    assert batch.statuses() == dict.fromkeys("abcdefgh", 200)
    assert refusals > 0


async def test_a_task_that_alone_overfills_the_queue_fails(batch: Batch) -> None:
    async def serve(method: str, url: str, body: dict[str, Any]) -> Answer:
        await anyio.lowlevel.checkpoint()
        return (429, {"error": {"message": "full"}}) if body["prompt"] in "bc" else answer(body)

    with anyio.fail_after(60):
        await batch.run(serve)
    assert batch.statuses() == {**dict.fromkeys("abcdefgh", 200), "b": 429, "c": 429}


async def test_a_dead_engine_ends_the_batch_and_leaves_its_tasks_open(batch: Batch) -> None:
    async def serve(method: str, url: str, body: dict[str, Any]) -> Answer:
        return (503, {"error": {"message": "no lane is left"}}) if body["prompt"] == "d" else answer(body)

    with pytest.raises(LaneDownError, match="no lane is left"):
        await batch.run(serve, width=1)
    assert batch.statuses() == dict.fromkeys("abc", 200)


async def test_results_that_cannot_be_written_end_the_batch(batch: Batch) -> None:
    async def serve(method: str, url: str, body: dict[str, Any]) -> Answer:
        return answer(body)

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with pytest.raises(LlamalaneError, match=r"^cannot write .*out\.jsonl: File too large$"):
            await batch.run(serve)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    ("body", "priority"),
    [({}, LEVEL), ({"priority": None}, LEVEL), ({"priority": 2}, 2), ({"service_tier": "priority"}, None)],
)
async def test_a_task_without_a_priority_gets_that_of_the_batch(
    tmp_path: Path, body: dict[str, Any], priority: int | None
) -> None:
    asked = []

    async def serve(method: str, url: str, body: dict[str, Any]) -> Answer:
        asked.append(body.get("priority"))
        return 200, {}

    line = json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/x", "body": body}).encode()
    with BatchOutput(tmp_path / "out.jsonl") as output:
        progress = BatchProgress(Console(file=io.StringIO()), len(line), output.done)
        await BatchRun(serve, BatchInput(io.BytesIO(line), output.done), output, LEVEL, progress).run(1)
    assert asked == [priority]

"""Batches that run on an engine without a model."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
from anyio.lowlevel import checkpoint

from llamalane.api.batch import ItemTerms
from llamalane.api.batches.records import Batch, BatchOrder
from llamalane.api.batches.runner import BatchRunner, RunnerSettings
from llamalane.api.batches.store import BatchStore
from llamalane.api.keys import Caller
from llamalane.clock import MonotonicClock
from tests.api.batches.lines import jsonl, record
from tests.api.batches.storing import NOW, add_batch, opened
from tests.api.fake_engine import ScriptedEngine, as_engine

SETTINGS = RunnerSettings(concurrent_items=None, max_items=1000, max_line=10_000, retention=None)


def terms_of(order: BatchOrder) -> ItemTerms:
    caller = Caller(order.key, order.tenant, most_urgent=order.most_urgent, separate_users=order.separate_users)
    return ItemTerms(caller=caller, level=order.level)


class Batches:
    """A store whose batches run on `engine`."""

    def __init__(self, store: BatchStore, runner: BatchRunner, engine: ScriptedEngine) -> None:
        self.store = store
        self.runner = runner
        self.engine = engine

    async def add(self, *names: str, tenant: str = "", body: dict[str, Any] | None = None, **changes: Any) -> Batch:
        """Add a batch of completions of prompts that are called as they are."""
        records = [record(name, body={"prompt": name, **(body or {})}) for name in names]
        batch = await add_batch(self.store, jsonl(*records), tenant=tenant, **changes)
        self.runner.wake()
        return batch

    async def ended(self, batch: Batch) -> Batch:
        """Wait until a batch has ended, and return what it is then."""
        with anyio.fail_after(30):
            while not batch.status.ended:
                batch = await self.store.find_batch(batch.id, None)
        await self.settled()
        return batch

    async def submitted(self, count: int) -> list[object]:
        """Wait until so many requests have been submitted, and no more are; return their prompts."""
        with anyio.fail_after(30):
            while len(self.engine.handles) < count:
                await checkpoint()
        await self.settled()
        return sorted(str(handle.prompt) for handle in self.engine.handles)  # type: ignore[return-value]

    async def settled(self) -> None:
        """Let everybody go as far as they get; reading an item takes a worker thread."""
        for _ in range(50):
            await anyio.to_thread.run_sync(int)

    def lines(self, file_id: str | None) -> dict[str, dict[str, Any]]:
        """Return the lines of an output by their custom_id, of which there may be one each."""
        if file_id is None:
            return {}
        lines = [json.loads(line) for line in self.store.path(file_id).read_bytes().splitlines()]
        found = {line["custom_id"]: line for line in lines}
        assert len(found) == len(lines)
        return found


@contextlib.asynccontextmanager
async def batches_on(
    engine: ScriptedEngine,
    folder: Path,
    settings: RunnerSettings = SETTINGS,
    *,
    now: float = NOW,
    kind: type[BatchStore] = BatchStore,
) -> AsyncIterator[Batches]:
    async with opened(folder, kind) as store:
        runner = BatchRunner(store, settings, terms_of, now=lambda: now, clock=MonotonicClock())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(runner.run, as_engine(engine))
            yield Batches(store, runner, engine)
            tasks.cancel_scope.cancel()

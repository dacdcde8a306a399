"""Runs batches: validates them, serves their items as there is room, and ends them."""

from __future__ import annotations

import contextlib
import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import anyio
import anyio.to_thread
from starlette.exceptions import HTTPException

from llamalane.api.batch import ENDPOINTS, ItemTerms, error_line, response_line, run_item
from llamalane.api.batches.batch_rows import ItemResult
from llamalane.api.batches.expiry import WallClock, earliest, remove_expired
from llamalane.api.batches.gate import Gate, Turn
from llamalane.api.batches.input import BatchInput, FinishedWork, InvalidLine
from llamalane.api.batches.output import Unserved
from llamalane.api.batches.records import Batch, BatchError, BatchOrder, BatchStatus, ItemUsage
from llamalane.api.batches.store import BatchStore
from llamalane.api.batches.turns import Claim
from llamalane.api.batches.validation import InputRules, Verdict, check_input
from llamalane.api.errors import answer_for
from llamalane.clock import Clock
from llamalane.errors import (
    BatchConflictError,
    BatchStoreError,
    EngineClosedError,
    LaneDownError,
    LlamalaneError,
    QueueFullError,
    RequestShedError,
    TenantLimitError,
)
from llamalane.scheduler import Engine, EngineState

logger = logging.getLogger("llamalane.api.batches")

TermsOf = Callable[[BatchOrder], ItemTerms]
"""Returns on whose behalf the items of a batch are served."""

_UNSERVED: Mapping[BatchStatus, Unserved] = {
    BatchStatus.EXPIRED: Unserved("batch_expired", "the completion window ended before this item was served"),
    BatchStatus.CANCELLED: Unserved("batch_cancelled", "the batch was cancelled before this item was served"),
}
_ENDINGS: Mapping[BatchStatus, BatchStatus] = {
    BatchStatus.FINALIZING: BatchStatus.COMPLETED,
    BatchStatus.CANCELLING: BatchStatus.CANCELLED,
    # Nothing else takes a batch away from its items.
    BatchStatus.VALIDATING: BatchStatus.EXPIRED,
    BatchStatus.IN_PROGRESS: BatchStatus.EXPIRED,
}
"""How a batch ends that is left with a status."""


@dataclass(frozen=True, slots=True)
class RunnerSettings:
    """How batches are run.

    Attributes:
        concurrent_items: how many items are under way at once, at each level; None for what keeps the lanes busy.
        max_items: the most items of a batch.
        max_line: the longest line of an input, in bytes.
        retention: how long files are kept, and ended batches remembered, in seconds; None for always.
    """

    concurrent_items: int | None
    max_items: int
    max_line: int
    retention: float | None


@dataclass(frozen=True, slots=True)
class _Item:
    """An item that is to be served; `body` is in JSON."""

    line: int
    custom_id: str
    method: str
    url: str
    body: bytes


class BatchRunner:
    """Runs the batches of a store on an engine, each in a task of its own, for as long as `run` runs.

    Items wait for turns, and have none before the engine takes requests, or once it drains. What is under way then and
    does not finish has no result, and is served anew when the batches are run the next time.
    """

    def __init__(
        self, store: BatchStore, settings: RunnerSettings, terms_of: TermsOf, *, now: WallClock, clock: Clock
    ) -> None:
        self.outcomes: Counter[str] = Counter()
        """How many items have been completed, have failed, have expired and were cancelled."""
        self._store = store
        self._settings = settings
        self._terms_of = terms_of
        self._now = now
        self._gate = Gate(clock)
        self._one_check = anyio.CapacityLimiter(1)
        """Of inputs: two at once would take twice as much from whatever else runs."""
        self._scopes: dict[str, anyio.CancelScope] = {}
        self._arrived = anyio.Event()

    def wake(self) -> None:
        """Look for batches that are not run yet."""
        self._arrived.set()

    def break_off(self, batch_id: str) -> None:
        """Let a batch whose status says so be cancelled now."""
        if batch_id in self._scopes:
            self._scopes[batch_id].cancel()

    async def run(self, engine: Engine) -> None:
        """Run batches, those that are left from before first, until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._gate.run)
            tasks.start_soon(self._follow, engine)
            tasks.start_soon(remove_expired, self._store, self._settings.retention, self._now)
            while True:
                self._arrived = anyio.Event()
                for batch in await self._under_way():
                    if batch.id not in self._scopes:
                        self._scopes[batch.id] = anyio.CancelScope()
                        tasks.start_soon(self._conduct, engine, batch.id)
                await self._arrived.wait()

    async def _follow(self, engine: Engine) -> None:
        """Give turns while the engine takes requests."""
        if await engine.wait_for(EngineState.READY, EngineState.CLOSED) is EngineState.READY:
            places = engine.stats().places
            self._gate.open(self._settings.concurrent_items or places + max(1, places // 2))
            await engine.wait_for(EngineState.DRAINING, EngineState.CLOSED)
        self._gate.close()

    async def _under_way(self) -> list[Batch]:
        try:
            return await self._store.batches_under_way()
        except BatchStoreError as error:
            logger.error("no batch is started: %s", error)
            return []

    async def _conduct(self, engine: Engine, batch_id: str) -> None:
        """Bring a batch to its end. What goes wrong about it stays its own."""
        try:
            await self._lead(engine, await self._store.find_batch(batch_id, None))
        except* (BatchStoreError, OSError) as group:
            logger.error("batch %s stays as it is until batches are looked for again: %s", batch_id, _first(group))
        except* Exception:
            logger.exception("batch %s stays as it is until batches are looked for again", batch_id)
        finally:
            del self._scopes[batch_id]

    async def _lead(self, engine: Engine, batch: Batch) -> None:
        if batch.status.ended:
            return
        left = batch.order.expires_at - self._now()
        # A client may cancel the batch at any time: what its status does not allow any more is not done then.
        with self._scopes[batch.id], anyio.move_on_after(left), contextlib.suppress(BatchConflictError):
            if batch.status is BatchStatus.VALIDATING:
                batch = await self._validate(engine, batch)
            if batch.status is BatchStatus.IN_PROGRESS:
                await self._run_items(engine, batch)
                batch = await self._store.begin_finalizing(batch, self._seconds())
        while not (batch := await self._store.find_batch(batch.id, None)).status.ended:
            with contextlib.suppress(BatchConflictError):
                await self._end(batch, _ENDINGS[batch.status])

    async def _validate(self, engine: Engine, batch: Batch) -> Batch:
        models = [name for model in engine.config.models for name in model.names]
        rules = InputRules(batch.order.endpoint, models, self._settings.max_items, max_line=self._settings.max_line)
        source = self._store.path(batch.order.input_file_id)
        try:
            verdict = await anyio.to_thread.run_sync(check_input, source, rules, limiter=self._one_check)
        except OSError as error:
            verdict = Verdict(0, (BatchError("input_unreadable", f"the file cannot be read: {error.strerror}"),))
        if verdict.errors:
            logger.info("batch %s has an input that cannot be used", batch.id)
            return await self._store.fail_batch(batch, verdict.errors, self._seconds())
        logger.info("batch %s has %d items", batch.id, verdict.total)
        # Items for vectors or scores may each be for another model.
        model = engine.model_name if batch.order.endpoint in ENDPOINTS else None
        return await self._store.start_batch(batch, verdict.total, model, self._seconds())

    async def _run_items(self, engine: Engine, batch: Batch) -> None:
        """Serve the items that have no result yet, each when it has its turn."""
        order = batch.order
        claim = Claim(order.level, order.tenant, batch.number)
        terms = self._terms_of(order)
        done = FinishedWork(lines=await self._store.finished_lines(batch))
        with await anyio.to_thread.run_sync(self._store.path(order.input_file_id).open, "rb") as file:
            entries = BatchInput(file, done, max_line=self._settings.max_line)
            async with anyio.create_task_group() as items:
                while True:
                    with contextlib.ExitStack() as stack:
                        turn = stack.enter_context(await self._gate.enter(claim))
                        item = await anyio.to_thread.run_sync(_read, entries)
                        if item is None:
                            break
                        stack.pop_all()  # the turn is the item's from here on
                    items.start_soon(self._serve, engine, batch, terms, item, turn)

    async def _serve(
        self, engine: Engine, batch: Batch, terms: ItemTerms, item: _Item | InvalidLine, turn: Turn
    ) -> None:
        """Serve an item and note its result; when it is sent back, again at its next turn."""
        while True:
            with turn:
                result = await self._answer(engine, terms, item, turn)
                if result is not None:
                    if await self._store.record_result(batch, result):
                        self.outcomes["completed" if result.succeeded else "failed"] += 1
                    return
            turn = await self._gate.enter(turn.claim, again=True)

    async def _answer(
        self, engine: Engine, terms: ItemTerms, item: _Item | InvalidLine, turn: Turn
    ) -> ItemResult | None:
        """Return what comes of an item, None for nothing yet."""
        if isinstance(item, InvalidLine):  # the file was changed after it had been validated
            error = {"code": item.code, "message": item.message}
            return ItemResult(item.line, succeeded=False, text=error_line(item.custom_id, error))
        try:
            body = await run_item(engine, item.method, item.url, item.body, terms, turn.accept)
        except (QueueFullError, RequestShedError, TenantLimitError) as error:
            turn.send_back(error)
            return None
        except (EngineClosedError, LaneDownError) as error:
            logger.info("batches wait for the next start: %s", error)
            self._gate.close()
            return None
        except Exception as error:
            if not isinstance(error, LlamalaneError | HTTPException):
                logger.exception("an item of a batch failed")
            answer = answer_for(error)
            text = response_line(item.custom_id, answer.status, answer.body)
            return ItemResult(item.line, succeeded=False, text=text)
        text = response_line(item.custom_id, 200, body)
        return ItemResult(item.line, succeeded=True, text=text, usage=ItemUsage.of_answer(body))

    async def _end(self, batch: Batch, ending: BatchStatus) -> None:
        now = self._seconds()
        unserved = _UNSERVED.get(ending) if batch.total else None
        kept_until = earliest(now, batch.order.output_seconds, self._settings.retention)
        left = batch.total - batch.completed - batch.failed
        await self._store.end_batch(batch, ending, now, kept_until=kept_until, unserved=unserved)
        if unserved is not None:
            self.outcomes[ending] += left
        logger.info("batch %s is %s: %d items completed, %d failed", batch.id, ending, batch.completed, batch.failed)

    def _seconds(self) -> int:
        return int(self._now())


def _first(group: BaseExceptionGroup[Exception]) -> Exception:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


def _read(entries: BatchInput) -> _Item | InvalidLine | None:
    entry = entries.next()
    if entry is None or isinstance(entry, InvalidLine):
        return entry
    return _Item(entry.line, entry.custom_id, entry.method, entry.url, json.dumps(entry.body).encode())

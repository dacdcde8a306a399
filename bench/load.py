"""Clients in a closed loop: each sends its next request when the answer to the one before has ended."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import anyio

from llamalane.bench.exchange import Recording, Target, exchange
from llamalane.bench.reading import Record, read
from llamalane.bench.summary import LoadSummary, Objective, Window, summarize
from llamalane.bench.workload import Question, Source


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What a run recorded; `generator_cpu` is the clients' own CPU time, as a share of one core."""

    records: tuple[Record, ...]
    window: Window
    generator_cpu: float

    def summary(self, objective: Objective | None = None) -> LoadSummary:
        """Sum it up."""
        return summarize(self.records, self.window, self.generator_cpu, objective)


class Asker:
    """Sends questions to a server and keeps what comes, in `recordings`; each try is one."""

    def __init__(self, target: Target, source: Source) -> None:
        self._target = target
        self._source = source
        self.recordings: list[Recording] = []

    async def ask(self, client: int, question: Question) -> Recording:
        """Ask until there is an answer, and return the last try: whoever is told when to come again does so."""
        request = self._target.encode(question, self._source)
        asked = started = time.monotonic()
        while True:
            recording = Recording(client, question.output_tokens, started, asked=asked, kind=question.kind)
            self.recordings.append(recording)
            await exchange(self._target, request, recording)
            pause = read(recording).retry_after if recording.turned_down else None
            if pause is None:
                return recording
            await anyio.sleep(pause)
            started = time.monotonic()

    def records(self) -> tuple[Record, ...]:
        """Take apart all that came."""
        return tuple(read(recording) for recording in self.recordings)


class ClosedLoop:
    """Some clients of one server, for one run.

    `settled` is set when as many requests as there are clients have ended, or the run has: by then the
    first rush is over, and the server's queue is as long as it stays.
    """

    def __init__(self, target: Target, workload: Source, *, clients: int, seed: int) -> None:
        self._asker = Asker(target, workload)
        self._workload = workload
        self._clients = clients
        self._seed = seed
        self._ended = 0
        self._first_idle = math.inf
        self._stop = anyio.CancelScope()
        self.settled = anyio.Event()

    async def run(
        self, *, requests: int | None = None, seconds: float | None = None, warm_up: float = 0.0
    ) -> LoadResult:
        """Run every client for `requests` requests, or all for `seconds`, or until `stop` is called.

        Requests under way at that time are cut. The first `warm_up` seconds do not count, nor does what
        comes after the first client has run out of work. A client whose connection fails sends nothing
        more. One that is refused with `Retry-After` waits as long, and asks the same again. Called once.
        """
        start = time.monotonic()
        cpu = time.process_time()
        if seconds is not None:
            self._stop.deadline = anyio.current_time() + seconds
        with self._stop:
            async with anyio.create_task_group() as group:
                for client in range(self._clients):
                    questions = islice(self._workload.questions(self._seed, client), requests)
                    group.start_soon(self._run_client, client, questions)
        end = time.monotonic()
        self.settled.set()
        share = (time.process_time() - cpu) / (end - start)
        window = Window(start + warm_up, min(end, self._first_idle))
        return LoadResult(self._asker.records(), window, share)

    def stop(self) -> None:
        """Cut what is under way and end the run."""
        self._stop.cancel()

    async def _run_client(self, client: int, questions: Iterator[Question]) -> None:
        for question in questions:
            recording = await self._asker.ask(client, question)
            if recording.fault is not None:
                break
            self._ended += 1
            if self._ended == self._clients:
                self.settled.set()
        self._first_idle = min(self._first_idle, time.monotonic())

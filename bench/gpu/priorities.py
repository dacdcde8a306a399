"""The time between tokens on an urgent lane, while another lane of the same device computes long prompts."""

from __future__ import annotations

import enum
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from llamalane.bench.gpu.streams import Bench, decode_rows, opened, prefill, streams
from llamalane.ids import SequenceId
from llamalane.streams import Stream
from llamalane.streams.cuda import StreamClass, describe
from llamalane.streams.llama import Batch, Context

_STEP = 512
"""Tokens in a step of a prompt."""
_HEAD = 128
"""Tokens that an urgent sequence has at first."""


class Arrangement(enum.Enum):
    """What runs, and on which streams."""

    ALONE = "alone"
    OWN_STREAMS = "on llama.cpp's own streams"
    EQUAL = "on the pool's streams, of one priority"
    PRIORITIES = "on the pool's streams, most and least urgent"
    PARTITIONS = "on halves of the multiprocessors"


ON_CPU = (Arrangement.ALONE, Arrangement.OWN_STREAMS)
"""What there is on a machine without a GPU: there its streams are threads."""


@dataclass(frozen=True, slots=True)
class Latencies:
    """Seconds between the urgent lane's steps, and what the other lane did meanwhile.

    Attributes:
        enforced: whether the device itself runs the urgent stream first.
        problem: what a lane said against its stream; empty when there was nothing to say.
        prompt_tokens_per_second: of the other lane.
    """

    arrangement: str
    steps: int
    median: float
    p99: float
    slowest: float
    prompt_tokens_per_second: float
    enforced: bool
    problem: str


def measure_priorities(
    path: Path, *, on_gpu: bool, steps: int = 500, rows: int = 4, prompt: int = 8000, device: int = 0
) -> list[Latencies]:
    """Measure each arrangement: `rows` sequences decode `steps` steps beside prompts of `prompt` tokens."""
    results = []
    with opened(path, on_gpu=on_gpu) as bench:
        half = describe(device).multiprocessors // 2 if on_gpu else 0
        for arrangement in Arrangement if on_gpu else ON_CPU:
            with streams(bench, _classes(arrangement, half // 8 * 8)) as (urgent, bulk):
                results.append(_Measurement(bench, arrangement, urgent, bulk, steps, rows, prompt).run())
    return results


def _classes(arrangement: Arrangement, part: int) -> list[StreamClass]:
    wanted = arrangement in (Arrangement.PRIORITIES, Arrangement.PARTITIONS)
    size = part if arrangement is Arrangement.PARTITIONS else None
    return [
        StreamClass(name="urgent", priority=1 if wanted else 5, multiprocessors=size),
        StreamClass(name="bulk", priority=5, multiprocessors=size),
    ]


class _Measurement:
    """Two threads with a context each. Contexts are made before the first step and freed after the last one."""

    def __init__(
        self, bench: Bench, arrangement: Arrangement, urgent: Stream, bulk: Stream, steps: int, rows: int, prompt: int
    ) -> None:
        self._bench = bench
        self._arrangement = arrangement
        self._urgent, self._bulk = urgent, bulk
        self._steps, self._rows, self._prompt = steps, rows, prompt
        self._one_at_a_time = threading.Lock()
        self._stop = threading.Event()
        parties = 1 if arrangement is Arrangement.ALONE else 2
        self._ready, self._done = threading.Barrier(parties), threading.Barrier(parties)
        self._seconds: list[float] = []
        self._prompt_tokens = 0
        self._enforced = False
        self._kind = ""
        self._error: BaseException | None = None

    def run(self) -> Latencies:
        """Measure."""
        jobs: list[Callable[[Context], None]] = [self._decode]
        if self._arrangement is not Arrangement.ALONE:
            jobs.append(self._prefill)
        threads = [threading.Thread(target=self._run, args=(job,)) for job in jobs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._error is not None:
            raise self._error
        times = sorted(self._seconds)
        return Latencies(
            arrangement=self._arrangement.value,
            steps=len(times),
            median=times[len(times) // 2],
            p99=times[min(len(times) - 1, int(0.99 * len(times)))],
            slowest=times[-1],
            prompt_tokens_per_second=self._prompt_tokens / sum(times),
            enforced=self._enforced,
            problem=self._kind,
        )

    def _run(self, job: Callable[[Context], None]) -> None:
        try:
            context = self._open(job)
            self._ready.wait()
            try:
                job(context)
            finally:
                self._stop.set()
                self._done.wait()
                with self._one_at_a_time:
                    context.close()
        except threading.BrokenBarrierError:
            pass  # the other thread says why
        except BaseException as error:
            self._error = self._error or error
            self._ready.abort()
            self._done.abort()

    def _open(self, job: Callable[[Context], None]) -> Context:
        decodes = job == self._decode
        length = _HEAD + self._steps + 1 if decodes else self._prompt
        rows = self._rows if decodes else 1
        options = self._bench.options(rows, -(-rows * length // 256) * 256, _STEP)
        with self._one_at_a_time:
            if self._arrangement in ON_CPU:
                return Context(self._bench.model, options)
            stream = self._urgent if decodes else self._bulk
            with stream.lend():
                context = Context(self._bench.model, options)
            if decodes:
                self._enforced = stream.priority_enforced
            if not stream.kind.startswith("CUDA stream"):
                self._kind = stream.kind
            return context

    def _decode(self, context: Context) -> None:
        batch = Batch(_STEP)
        for row in range(self._rows):
            prefill(context, batch, row, self._bench.tokens(_HEAD, row))
        token = self._bench.tokens(1, 0)[0]
        self._prompt_tokens = 0  # what was computed before does not count
        last = time.perf_counter()
        for step in range(self._steps):
            decode_rows(context, batch, [_HEAD + step] * self._rows, token)
            now = time.perf_counter()
            self._seconds.append(now - last)
            last = now

    def _prefill(self, context: Context) -> None:
        batch = Batch(_STEP)
        tokens = self._bench.tokens(self._prompt, 99)
        while not self._stop.is_set():
            for start in range(0, len(tokens), _STEP):
                if self._stop.is_set():
                    return
                chunk = tokens[start : start + _STEP]
                batch.clear()
                batch.add(SequenceId(0), chunk, start, output=start + len(chunk) == len(tokens))
                context.decode(batch)
                self._prompt_tokens += len(chunk)
            context.remove(SequenceId(0))


def priorities_markdown(results: list[Latencies]) -> str:
    """Write what was measured as a table."""
    lines = [
        "| arrangement | median | p99 | slowest | prompt tokens/s beside it | priority enforced |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {one.arrangement} | {one.median * 1e3:.2f} ms | {one.p99 * 1e3:.2f} ms | {one.slowest * 1e3:.2f} ms | "
        f"{one.prompt_tokens_per_second:.0f} | {'yes' if one.enforced else 'no'} |"
        for one in results
    ]
    return "\n".join(lines + [f"\n{one.arrangement}: {one.problem}" for one in results if one.problem])

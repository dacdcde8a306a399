"""Contexts on streams of their own, without an engine: what the measurements of streams have in common."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from llamalane.errors import DeviceUnavailableError
from llamalane.ids import SequenceId
from llamalane.streams import Device, Stream, StreamOptions, create_stream
from llamalane.streams.cores import available_cores
from llamalane.streams.cuda import CudaStreamPool, StreamClass, load_shim, probe
from llamalane.streams.llama import Batch, Context, ContextOptions, Model, ModelOptions

_FIRST_TOKEN = 300
"""Tokens above this one are words in every vocabulary that is measured."""


@dataclass(frozen=True, slots=True)
class Bench:
    """A loaded model, and where it computes."""

    model: Model
    device: Device

    def options(self, sequences: int, cells: int, step: int) -> ContextOptions:
        """Return options for a context of one cache."""
        return ContextOptions(
            cells=cells,
            sequences=sequences,
            max_step_tokens=step,
            micro_batch=step,
            threads=max(1, len(available_cores()) // 2) if self.device is Device.CPU else 1,
        )

    def tokens(self, count: int, seed: int) -> list[int]:
        """Return a random prompt."""
        drawn = random.Random(seed)
        size = self.model.vocabulary.size
        lowest = _FIRST_TOKEN if size > 2 * _FIRST_TOKEN else 3
        return [drawn.randrange(lowest, size) for _ in range(count)]


@contextlib.contextmanager
def opened(path: Path, *, on_gpu: bool) -> Iterator[Bench]:
    """Load a model; raises `DeviceUnavailableError` when it is to be on a GPU that cannot be used."""
    found = probe()  # before llama.cpp is loaded
    if on_gpu and not found.lends:
        raise DeviceUnavailableError("cuda", f"{found.reason}; {found.state.remedy}")
    device = Device.GPU if on_gpu else Device.CPU
    with Model(ModelOptions(path=path, gpu_layers=-1 if on_gpu else 0)) as model:
        yield Bench(model, device)


@contextlib.contextmanager
def streams(bench: Bench, classes: Sequence[StreamClass]) -> Iterator[list[Stream]]:
    """Give one stream for each class: the pool's on a GPU, else the CPU's."""
    if bench.device is Device.CPU:
        yield [create_stream(_options(bench, entry)) for entry in classes]
        return
    with CudaStreamPool(classes, load_shim()) as pool, contextlib.ExitStack() as holds:
        held = [holds.enter_context(pool.acquire(entry.name)) for entry in classes]
        yield [
            create_stream(StreamOptions(name=one.name, device=Device.GPU, places=1, cores=(), threads=1, cuda=one))
            for one in held
        ]


def _options(bench: Bench, entry: StreamClass) -> StreamOptions:
    return StreamOptions(name=entry.name, device=bench.device, places=1, cores=(), threads=1)


def prefill(context: Context, batch: Batch, sequence: int, tokens: Sequence[int]) -> None:
    """Compute a prompt in steps as large as `batch`."""
    for start in range(0, len(tokens), batch.capacity):
        chunk = tokens[start : start + batch.capacity]
        batch.clear()
        batch.add(SequenceId(sequence), chunk, start, output=start + len(chunk) == len(tokens))
        context.decode(batch)


def decode_rows(context: Context, batch: Batch, positions: Sequence[int], token: int) -> None:
    """Compute one token for each sequence from 0 on, which stand at `positions`."""
    batch.clear()
    for sequence, position in enumerate(positions):
        batch.add(SequenceId(sequence), [token], position, output=True)
    context.decode(batch)

"""Runs a bare loop in a process of its own.

OpenMP's threads wait for one another in another way where a process has more of them than there are cores: they soon
sleep instead of looking again. A loop beside an engine's idle threads would not be what the same loop is alone.
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import anyio

from llamalane.bench.floor.raw_loop import BareContext, RawLoop
from llamalane.bench.floor.times import LaneTimes
from llamalane.bench.workload import Workload
from llamalane.errors import LlamalaneError
from llamalane.streams.llama import ContextOptions, Model, ModelOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class RawRun:
    """What a process is to do; the fields are those of `RawLoop` and its `run`."""

    model: Path
    options: ContextOptions
    workload: Workload
    chunk: int
    seed: int
    limit: int
    seconds: float
    warm_up: float

    def carry_out(self) -> LaneTimes:
        """Run the loop in this process."""
        with (
            Model(ModelOptions(path=self.model)) as model,
            closing(BareContext(model, self.options)) as context,
        ):
            loop = RawLoop(
                model,
                context,
                self.workload,
                places=self.options.sequences,
                chunk=self.chunk,
                seed=self.seed,
                limit=self.limit,
            )
            return loop.run(self.seconds, self.warm_up)


async def run_in_process(run: RawRun) -> LaneTimes:
    """Carry `run` out in a new process; raises `LlamalaneError` with what it said when it fails."""
    command = [sys.executable, "-m", "llamalane.bench.floor.raw_process"]
    try:
        done = await anyio.run_process(command, input=pickle.dumps(run))
    except subprocess.CalledProcessError as error:
        raise LlamalaneError(f"the bare loop failed: {error.stderr.decode(errors='replace')[-1000:]}") from error
    return LaneTimes(**json.loads(done.stdout))


if __name__ == "__main__":
    print(json.dumps(asdict(pickle.load(sys.stdin.buffer).carry_out())))

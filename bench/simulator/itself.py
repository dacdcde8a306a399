"""What the simulator itself costs: how long it takes for each request, and how much memory."""

from __future__ import annotations

import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from llamalane.bench.simulator.measured import DEFAULT_SPEED
from llamalane.bench.simulator.published import WorkloadOptions, poisson
from llamalane.bench.simulator.simulation import Simulation
from llamalane.bench.simulator.study import POLICIES, machine_of
from llamalane.scheduler import EngineConfig, ModelConfig, QueueConfig, SchedulerConfig

_UNBOUNDED = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnCost:
    """What one simulation took.

    Attributes:
        steps: steps of all lanes, those computed at once included.
        memory: the most memory that the process has used, in bytes.
    """

    requests: int
    lanes: int
    load: float
    policy: str
    seconds: float
    steps: int
    memory: int

    @property
    def microseconds_each(self) -> float:
        """Microseconds for each request."""
        return self.seconds / self.requests * 1e6


def measure_itself(requests: int, lanes: int, *, load: float = 0.9, policy: str = "ours", seed: int = 1) -> OwnCost:
    """Simulate the workload `poisson` on `lanes` lanes of 8 places, arrivals included, and tell what that took."""
    queue = QueueConfig(max_requests=_UNBOUNDED, max_tokens=_UNBOUNDED)
    config = EngineConfig(models=[ModelConfig(path=Path("model.gguf"))], scheduler=SchedulerConfig(queue=queue))
    machine = machine_of(config, DEFAULT_SPEED, lanes=lanes)
    source = poisson(WorkloadOptions())
    rate = load * machine.capacity(*source.mean_lengths())
    begin = time.perf_counter()
    outcomes = Simulation(machine, POLICIES[policy].make(config), source.requests(rate, seed, requests)).run()
    return OwnCost(
        requests=len(outcomes),
        lanes=lanes,
        load=load,
        policy=policy,
        seconds=time.perf_counter() - begin,
        steps=outcomes.steps,
        memory=_most_memory(),
    )


def _most_memory() -> int:
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024

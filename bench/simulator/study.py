"""Policies side by side: the same arrivals, on the same lanes, under each policy and each load."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from llamalane.bench.simulator.machine import Machine
from llamalane.bench.simulator.measures import Measures, Objective, measure
from llamalane.bench.simulator.outcomes import Outcomes
from llamalane.bench.simulator.policies import Ours, Policy, RoundRobin, Sorted, by_level, first_come, shortest
from llamalane.bench.simulator.simulation import Simulation
from llamalane.bench.simulator.speed import Speed
from llamalane.bench.simulator.timeline import Timeline
from llamalane.bench.simulator.workload import Source
from llamalane.errors import ConfigError, LlamalaneError
from llamalane.kvcache import Layout
from llamalane.scheduler import EngineConfig
from llamalane.scheduler.memory_plan import choose_layout, tokens_of
from llamalane.scheduler.priority import LEVELS
from llamalane.scheduler.rules import rules_of
from llamalane.streams import Device, DeviceChoice


@dataclass(frozen=True, slots=True)
class NamedPolicy:
    """A policy that can be studied: what it is, and how it is made for a configuration."""

    meaning: str
    make: Callable[[EngineConfig], Policy]


def _bound(config: EngineConfig) -> int:
    return config.scheduler.queue.max_requests


POLICIES: Mapping[str, NamedPolicy] = {
    "ours": NamedPolicy("llamalane, as configured", lambda config: Ours(rules_of(config))),
    "fifo": NamedPolicy(
        "a free place takes the oldest request, as llama-server does",
        lambda config: Sorted(first_come, max_requests=_bound(config)),
    ),
    "priority": NamedPolicy(
        "the best level first, without aging and displacement, as vLLM does while memory lasts",
        lambda config: Sorted(by_level, max_requests=_bound(config)),
    ),
    "round-robin": NamedPolicy("tenants take turns", lambda config: RoundRobin(max_requests=_bound(config))),
    "shortest": NamedPolicy(
        "the shortest request first, for an oracle that knows each output's length",
        lambda config: Sorted(shortest, max_requests=_bound(config)),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """What is simulated.

    Attributes:
        rates: requests in each second, for each load to be simulated.
        count: about how many requests arrive under each load.
    """

    config: EngineConfig
    machine: Machine
    source: Source
    rates: Sequence[float]
    count: int
    seed: int
    objective: Objective
    policies: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One policy under one load."""

    policy: str
    rate: float
    measures: Measures
    outcomes: Outcomes
    timeline: Timeline


def simulate(study: Study) -> Iterator[Run]:
    """Run each policy under each load, one after the other."""
    for rate in study.rates:
        for name in study.policies:
            timeline = Timeline()
            arrivals = study.source.requests(rate, study.seed, study.count)
            policy = POLICIES[name].make(study.config)
            outcomes = Simulation(study.machine, policy, arrivals, timeline=timeline).run()
            if not len(outcomes):
                raise LlamalaneError("no request was served; the queue's bounds refuse them all")
            measures = measure(outcomes, study.objective)
            yield Run(policy=name, rate=rate, measures=measures, outcomes=outcomes, timeline=timeline)


def machine_of(config: EngineConfig, speed: Speed, *, lanes: int | None = None) -> Machine:
    """Return the machine that a configuration describes; with `lanes`, so many copies of its first lane.

    It is one without a GPU, unless the device is `cuda` by name.
    """
    places = [lane.places for lane in config.streams.lanes]
    budget = tokens_of(config)
    if budget is None:
        raise ConfigError(f"kv.budget: a simulation has no model, so it needs tokens; got {config.kv.budget}")
    device = Device.GPU if config.streams.device is DeviceChoice.CUDA else Device.CPU
    layout = choose_layout(config.kv.layout, device, budget // (sum(places) + (config.kv.spare_sequences or 0)))
    spare = config.kv.spare_sequences
    if spare is None and layout is Layout.PARTITIONED:
        spare = 0
    return Machine(
        places=places if lanes is None else places[:1] * lanes,
        speed=speed,
        max_step_tokens=config.streams.max_step_tokens,
        targets={level: config.scheduler.target_of(level) for level in LEVELS},
        cells=budget // sum(places),
        spare=spare,
        partitioned=layout is Layout.PARTITIONED,
        micro_batch=config.streams.micro_batch,
        can_abandon=device is Device.CPU,
    )

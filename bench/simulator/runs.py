"""What the commands do: read what they are given, simulate, and print the report."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import anyio

from llamalane.bench.simulator import plots, tables
from llamalane.bench.simulator.calibration import calibrate, merge
from llamalane.bench.simulator.comparison import RealRun, run_real
from llamalane.bench.simulator.itself import measure_itself
from llamalane.bench.simulator.machine import Machine
from llamalane.bench.simulator.measured import DEFAULT_SPEED
from llamalane.bench.simulator.measures import Objective, measure
from llamalane.bench.simulator.published import WORKLOADS, WorkloadOptions
from llamalane.bench.simulator.replay import Replay
from llamalane.bench.simulator.speed import Speed, load_speed, save_speed
from llamalane.bench.simulator.study import POLICIES, Run, Study, machine_of, simulate
from llamalane.bench.simulator.verdicts import judge
from llamalane.bench.simulator.workload import Source
from llamalane.errors import ConfigError
from llamalane.scheduler import EngineConfig, ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a user wants to be simulated; the fields are the options of the command."""

    target: Path | None
    workload: str
    replay: Path | None
    requests: int
    loads: Sequence[float]
    rates: Sequence[float]
    lanes: int | None
    policies: Sequence[str]
    speed: Path | None
    tenants: int
    scale: float
    seed: int | None
    slo: Objective


def run_study(wanted: Wanted, out: Path | None) -> None:
    """Simulate, print the tables, and write numbers and pictures into the folder `out`."""
    pyplot = plots.load_pyplot() if out is not None else None
    study, name = _study(wanted, _speed(wanted))
    runs: list[Run] = []
    for run in simulate(study):
        _tell(f"{run.policy} at {run.rate:.4g} requests/s: {len(run.outcomes)} requests")
        runs.append(run)
    print(tables.markdown(study, name, runs))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "results.json").write_text(tables.to_json(study, name, runs))
        for file in plots.draw(study, runs, out, pyplot):
            _tell(str(file))


def run_comparison(wanted: Wanted, runs: int, *, calibrating: bool) -> None:
    """Run the requests of the first load on the real engine so many times, simulate them, and print both.

    With `calibrating` the steps are measured before, between and after the real runs. The simulated machine is as slow
    as the real one was for the steps of the real runs: one factor, the median of the runs.
    """
    config = read_config(wanted.target)
    speeds = [calibrate(config, _tell) if calibrating else _speed(wanted)]
    study, name = _study(wanted, speeds[0])
    rate = study.rates[0]
    real: list[RealRun] = []
    for number in range(1, runs + 1):
        arrivals = list(study.source.requests(rate, study.seed, study.count))
        _tell(f"run {number} of {runs}: {len(arrivals)} requests at {rate:.4g}/s on {config.models[0].path}")
        real.append(anyio.run(run_real, config, arrivals))
        if calibrating:
            speeds.append(calibrate(config, _tell))
    speed = merge(speeds)
    slowness = [run.slowness(study.machine, speed) for run in real]
    machine = replace(study.machine, speed=speed.scaled(median(slowness)))
    simulated = next(simulate(replace(study, machine=machine)))
    verdicts = list(judge(simulated.measures, [measure(run.outcomes, study.objective) for run in real]))
    print(tables.comparison_markdown(study, name, verdicts, slowness))


def run_calibration(target: Path | None, file: Path | None) -> None:
    """Measure the model's steps on this machine, and write them to `file`, or print them."""
    config = read_config(target)
    speed = calibrate(config, _tell)
    if file is None:
        print(tables.speed_markdown(speed))
    else:
        save_speed(speed, file, f"{config.models[0].path.name}, {config.streams.lanes[0].places} places")
        _tell(f"written to {file}")


def run_itself(requests: int, lanes: int, load: float, policy: str) -> None:
    """Measure what the simulator costs, and print it."""
    print(tables.own_cost_markdown(measure_itself(requests, lanes, load=load, policy=policy)))


def read_config(target: Path | None) -> EngineConfig:
    """Return the configuration in a YAML file, or the one for a GGUF model with all else as it is by default."""
    if target is None:
        return EngineConfig(models=[ModelConfig(path=Path("model.gguf"))])
    if target.suffix == ".gguf":
        return EngineConfig.for_model(target)
    return EngineConfig.from_yaml(target)


def _speed(wanted: Wanted) -> Speed:
    return DEFAULT_SPEED if wanted.speed is None else load_speed(wanted.speed)


def _study(wanted: Wanted, speed: Speed) -> tuple[Study, str]:
    config = read_config(wanted.target)
    machine = machine_of(config, speed, lanes=wanted.lanes)
    source, name = _source(wanted, machine)
    unknown = [policy for policy in wanted.policies if policy not in POLICIES]
    if unknown:
        raise ConfigError(f"there is no policy {unknown[0]!r}; there are {', '.join(POLICIES)}")
    study = Study(
        config=config,
        machine=machine,
        source=source,
        rates=_rates(wanted, machine, source),
        count=wanted.requests,
        seed=secrets.randbits(32) if wanted.seed is None else wanted.seed,
        objective=wanted.slo,
        policies=wanted.policies,
    )
    return study, name


def _source(wanted: Wanted, machine: Machine) -> tuple[Source, str]:
    if wanted.replay is not None:
        return Replay(wanted.replay, limit=machine.cells), wanted.replay.name
    options = WorkloadOptions(tenants=wanted.tenants, limit=machine.cells, scale=wanted.scale)
    if wanted.workload not in WORKLOADS:
        raise ConfigError(f"there is no workload {wanted.workload!r}; there are {', '.join(WORKLOADS)}")
    return WORKLOADS[wanted.workload](options), wanted.workload


def _rates(wanted: Wanted, machine: Machine, source: Source) -> Sequence[float]:
    """Return the wanted rates, or those of the wanted loads; a log without either is replayed as it was recorded."""
    if wanted.rates:
        return sorted(set(wanted.rates))
    if isinstance(source, Replay) and source.rate is not None and not wanted.loads:
        return [source.rate]
    capacity = machine.capacity(*source.mean_lengths())
    return [load * capacity for load in sorted(set(wanted.loads or [0.9]))]


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)

"""The commands of the simulator: their options. What they need is imported when they run."""
# ruff: noqa: PLC0415

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from llamalane.errors import ConfigError

app = typer.Typer(
    name="simulate", pretty_exceptions_enable=False, add_completion=False, help="Try scheduling out on simulated lanes."
)


@app.command()
def simulate(
    target: Annotated[
        Path | None,
        typer.Argument(
            metavar="[CONFIG.yaml|MODEL.gguf]",
            help="The engine to simulate; a model stands for its default configuration.",
            show_default="the default configuration",
        ),
    ] = None,
    workload: Annotated[
        str,
        typer.Option(help="poisson, bursts, burstgpt, azure-conversation, azure-code or chat.", metavar="NAME"),
    ] = "poisson",
    replay: Annotated[
        Path | None,
        typer.Option(
            metavar="LOG.jsonl",
            help="Replay a log instead, whose lines hold arrival (in s), prompt_tokens, output_tokens, level, tenant.",
        ),
    ] = None,
    requests: Annotated[int, typer.Option(help="About how many requests arrive.", metavar="N", min=1)] = 2000,
    load: Annotated[
        list[float] | None,
        typer.Option(
            help="The load, as a share of the estimated capacity; may be repeated.", metavar="X", show_default="0.9"
        ),
    ] = None,
    rate: Annotated[
        list[float] | None,
        typer.Option(help="The load in requests per second instead; may be repeated.", metavar="X"),
    ] = None,
    lanes: Annotated[
        int | None,
        typer.Option(help="So many lanes like the first one.", metavar="N", min=1, show_default="as configured"),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="ours, fifo, priority, round-robin or shortest; may be repeated.", metavar="NAME", show_default="all"
        ),
    ] = None,
    speed: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Measured times of steps, in JSON or YAML; with --calibrate, where they are written.",
            show_default="SmolLM2-135M on 2 cores",
        ),
    ] = None,
    tenants: Annotated[int, typer.Option(help="How many tenants send requests.", metavar="N", min=1)] = 1,
    scale: Annotated[float, typer.Option(help="What prompt and output lengths are multiplied with.", min=0.001)] = 1.0,
    seed: Annotated[
        int | None, typer.Option(help="Chooses the requests.", metavar="N", min=0, show_default="a new one")
    ] = None,
    slo_first: Annotated[float, typer.Option(help="Seconds in which a first token should come.", min=0.0)] = 2.0,
    slo_inter: Annotated[float, typer.Option(help="Mean seconds between a request's tokens.", min=0.0)] = 0.2,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also write numbers (JSON) and pictures (PNG) there.")
    ] = None,
    calibrate: Annotated[
        bool,
        typer.Option(
            "--calibrate",
            help="Measure the real model's steps on this machine, and simulate nothing; with --real, around each run.",
        ),
    ] = False,
    real: Annotated[
        bool,
        typer.Option("--real", help="Run the workload on the real model too, in real time, and compare first tokens."),
    ] = False,
    runs: Annotated[int, typer.Option(help="With --real, how many real runs.", metavar="N", min=1)] = 3,
) -> None:
    """Run a workload through scheduling policies, on simulated lanes, and print what each request would see."""
    from llamalane.bench.simulator import runs as commands
    from llamalane.bench.simulator.measures import Objective
    from llamalane.bench.simulator.study import POLICIES

    if calibrate and not real:
        commands.run_calibration(target, speed)
        return
    if load and rate:
        raise ConfigError("give either --load or --rate")
    for value in [*(load or []), *(rate or [])]:
        if not 0 < value < math.inf:
            raise ConfigError(f"a load or a rate must be a number greater than 0; got {value}")
    wanted = commands.Wanted(
        target=target,
        workload=workload,
        replay=replay,
        requests=requests,
        loads=load or [],
        rates=rate or [],
        lanes=lanes,
        policies=["ours"] if real else list(dict.fromkeys(policy or POLICIES)),
        speed=speed,
        tenants=tenants,
        scale=scale,
        seed=seed,
        slo=Objective(first_token=slo_first, inter_token=slo_inter),
    )
    if real:
        commands.run_comparison(wanted, runs, calibrating=calibrate)
    else:
        commands.run_study(wanted, out)


def measure(
    requests: Annotated[int, typer.Option(help="How many requests arrive.", metavar="N", min=1)] = 50_000,
    lanes: Annotated[int, typer.Option(help="How many lanes of 8 places.", metavar="N", min=1)] = 1000,
    load: Annotated[float, typer.Option(help="The load, as a share of the estimated capacity.", min=0.01)] = 0.9,
    policy: Annotated[str, typer.Option(help="Under which policy.", metavar="NAME")] = "ours",
) -> None:
    """Measure what the simulator itself costs."""
    from llamalane.bench.simulator.runs import run_itself

    run_itself(requests, lanes, load, policy)

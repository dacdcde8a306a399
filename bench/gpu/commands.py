"""The commands of `python -m llamalane.bench.gpu`. What a measurement needs is imported when it runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from llamalane.bench.model import find_model

app = typer.Typer(
    name="gpu",
    help="Measure streams, on a GPU or on CPU lanes. Nothing else should run meanwhile.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

Model = Annotated[Path | None, typer.Argument(metavar="MODEL.gguf", help="The model.", show_default="SmolLM2")]
Device = Annotated[Literal["cuda", "cpu"], typer.Option(help="What computes.")]
JsonFile = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Also write the numbers to FILE.")]


@app.command()
def synthetic(
    path: Annotated[Path, typer.Argument(metavar="OUT.gguf", help="Where the model is written.")],
    size: Annotated[Literal["tiny", "1b", "7b"], typer.Option(help="How large it is.")] = "1b",
    kind: Annotated[Literal["q4_k", "f16"], typer.Option("--type", help="How weights are stored.")] = "q4_k",
) -> None:
    """Write a model with random weights."""
    from llamalane.bench.gpu.synthetic import SHAPES, WeightType, write_synthetic  # noqa: PLC0415

    write_synthetic(path, SHAPES[size], WeightType(kind))
    typer.echo(f"{path}: {path.stat().st_size / 1e9:.2f} GB")


@app.command()
def costs(
    model: Model = None,
    device: Device = "cuda",
    tries: Annotated[int, typer.Option(help="How often each.", metavar="N", min=1)] = 50,
    json_file: JsonFile = None,
) -> None:
    """Making a stream and a context, beside taking a place of a pool of 1 to 8 lanes."""
    from llamalane.bench.gpu.costs import costs_markdown, measure_costs  # noqa: PLC0415

    measured = measure_costs(find_model(model), on_gpu=device == "cuda", tries=tries)
    _write(json_file, measured)
    typer.echo(costs_markdown(measured))


@app.command()
def priorities(
    model: Model = None,
    device: Device = "cuda",
    steps: Annotated[int, typer.Option(help="Steps of the urgent lane.", metavar="N", min=10)] = 500,
    prompt: Annotated[int, typer.Option(help="Tokens in a prompt of the other.", metavar="N", min=1)] = 8000,
    json_file: JsonFile = None,
) -> None:
    """The time between tokens on an urgent lane, while another one computes long prompts."""
    from llamalane.bench.gpu.priorities import measure_priorities, priorities_markdown  # noqa: PLC0415

    measured = measure_priorities(find_model(model), on_gpu=device == "cuda", steps=steps, prompt=prompt)
    _write(json_file, measured)
    typer.echo(priorities_markdown(measured))


@app.command()
def throughput(
    llama_server: Annotated[Path, typer.Argument(metavar="LLAMA-SERVER", help="The server's executable.")],
    model: Model = None,
    device: Device = "cuda",
    clients: Annotated[list[int] | None, typer.Option(help="May be repeated.", show_default="8 and 32")] = None,
    rounds: Annotated[int, typer.Option(help="How often each load is measured.", metavar="N", min=1)] = 2,
    seconds: Annotated[float, typer.Option(help="How long each time, after as long a warm-up.", min=1)] = 15.0,
    places: Annotated[int, typer.Option(help="How many sequences run at once.", metavar="N", min=1)] = 32,
    json_file: JsonFile = None,
) -> None:
    """Tokens per second of llamalane and of a llama-server built from the same sources, run in turn."""
    from llamalane.bench.gpu.throughput import Setup, measure_throughput, throughput_markdown  # noqa: PLC0415
    from llamalane.bench.runs import workload  # noqa: PLC0415

    setup = Setup(model=find_model(model), places=places, cells=1024, device=device)
    measured = measure_throughput(
        setup, llama_server, workload(40, 48), clients=clients or (8, 32), rounds=rounds, seconds=seconds
    )
    _write(json_file, measured)
    typer.echo(throughput_markdown(measured))


def _write(file: Path | None, measured: Any) -> None:
    if file is None:
        return
    plain: Any = [asdict(one) for one in measured] if isinstance(measured, Sequence) else measured
    file.write_text(json.dumps(asdict(plain) if is_dataclass(plain) else plain, indent=2) + "\n", encoding="utf-8")  # type: ignore[arg-type]

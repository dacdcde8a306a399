"""The commands and their options. What they do is imported when they run, so that help comes at once."""
# ruff: noqa: PLC0415

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from llamalane import __version__
from llamalane.cli import options, sampling

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Serve and run llama.cpp models; each request carries a priority.",
)
# The commands under these two are other applications' own: all that follows is passed on to them.
_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"llamalane {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    pass


@app.command()
def serve(
    model: options.Model = None,
    config: options.ConfigFile = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.", show_default="127.0.0.1")] = None,
    port: Annotated[
        int | None, typer.Option(help="Port to listen on; 0 takes a free one.", show_default="8000")
    ] = None,
    places: options.Places = None,
    threads: options.Threads = None,
    kv_cells: options.KVCells = None,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="LLAMALANE_API_KEY", help="The key that clients must send.", show_default=False),
    ] = None,
    ssl_certfile: Annotated[
        Path | None, typer.Option(metavar="PEM", help="The certificate, to speak HTTPS.", show_default=False)
    ] = None,
    ssl_keyfile: Annotated[
        Path | None, typer.Option(metavar="PEM", help="Its private key, if in a file of its own.", show_default=False)
    ] = None,
    device: options.Device = None,
    log_level: options.LogLevel = "info",
    log_format: options.LogFormat = "text",
) -> None:
    """Serve a model over HTTP, with OpenAI's API.

    With --config, SIGHUP reads the file again: keys, limits, targets and queue bounds change without a restart.
    """
    console = options.set_up_output(log_level, log_format)
    from llamalane.api import ServerConfig
    from llamalane.cli.serve import serve as run

    given = {
        "MODEL": model,
        "--host": host,
        "--port": port,
        "--places": places,
        "--threads": threads,
        "--kv-cells": kv_cells,
        "--api-key": api_key,
        "--ssl-certfile": ssl_certfile,
        "--ssl-keyfile": ssl_keyfile,
        "--device": device,
    }

    def read() -> ServerConfig:
        return options.load_config(ServerConfig, config, given)

    run(read(), console, read_again=read if config is not None else None)


@app.command()
def generate(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[MODEL.gguf] PROMPT",
            help="The model, unless --config names it, and the prompt; - reads the prompt from standard input.",
            show_default=False,
        ),
    ],
    config: options.ConfigFile = None,
    chat: Annotated[bool, typer.Option(help="Put the prompt into the model's chat template.")] = True,
    max_tokens: sampling.MaxTokens = None,
    temperature: sampling.Temperature = None,
    top_k: sampling.TopK = None,
    top_p: sampling.TopP = None,
    min_p: sampling.MinP = None,
    repeat_penalty: sampling.RepeatPenalty = None,
    presence_penalty: sampling.PresencePenalty = None,
    frequency_penalty: sampling.FrequencyPenalty = None,
    seed: sampling.Seed = None,
    stop: sampling.Stop = None,
    threads: options.Threads = None,
    kv_cells: options.KVCells = None,
    device: options.Device = None,
    log_level: options.LogLevel = "warning",
) -> None:
    """Generate one text and print it as it comes."""
    *models, prompt = words
    if len(models) > 1:
        raise typer.BadParameter("give at most a model and a prompt, and put the prompt into quotes")
    console = options.set_up_output(log_level)
    from llamalane.cli.generate import generate as run
    from llamalane.scheduler import EngineConfig
    from llamalane.streams import SamplingParameters

    chosen: dict[str, Any] = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repeat_penalty": repeat_penalty,
        "presence_penalty": presence_penalty,
        "frequency_penalty": frequency_penalty,
        "seed": seed,
        "stop": tuple(stop) if stop else None,
    }
    parameters = SamplingParameters(**{name: value for name, value in chosen.items() if value is not None})
    given = {
        "MODEL": Path(models[0]) if models else None,
        "--places": None if config else 1,
        "--threads": threads,
        "--kv-cells": kv_cells,
        "--device": device,
    }
    run(options.load_config(EngineConfig, config, given), prompt, parameters, chat=chat, console=console)


@app.command()
def batch(
    source: Annotated[Path, typer.Argument(metavar="IN.jsonl", help="Tasks in OpenAI's batch file format.")],
    target: Annotated[
        Path,
        typer.Argument(metavar="OUT.jsonl", help="Where results are appended; tasks that are there already are done."),
    ],
    model: options.Model = None,
    config: options.ConfigFile = None,
    priority: Annotated[
        str | None,
        typer.Option(help="Of tasks that name none: a level or its name.", show_default="the least urgent level"),
    ] = None,
    places: options.Places = None,
    threads: options.Threads = None,
    kv_cells: options.KVCells = None,
    device: options.Device = None,
    log_level: options.LogLevel = "warning",
) -> None:
    """Run a file of tasks; after an interruption, the same command goes on where it was.

    Ends with code 0 when every task succeeded, and with 3 when the batch is finished and some tasks failed.
    """
    console = options.set_up_output(log_level)
    from llamalane.cli.batch import run_batch
    from llamalane.scheduler import EngineConfig

    given = {
        "MODEL": model,
        "--places": places,
        "--threads": threads,
        "--kv-cells": kv_cells,
        "--device": device,
    }
    loaded = options.load_config(EngineConfig, config, given)
    raise typer.Exit(run_batch(loaded, source, target, priority=priority, console=console))


@app.command()
def plan(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A model (GGUF), or a configuration in YAML.")],
    places: options.Places = None,
    kv_cells: options.KVCells = None,
    device: options.Device = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with sizes in bytes.")] = False,
    log_level: options.LogLevel = "error",
) -> None:
    """Tell how much memory serving FILE takes, and how many sequences fit, without loading the weights.

    Ends with code 1 when there is not enough memory.
    """
    options.set_up_output(log_level)
    from llamalane.cli.plan import is_configuration, print_plan
    from llamalane.scheduler import EngineConfig

    given = {"--places": places, "--kv-cells": kv_cells, "--device": device}
    if is_configuration(file):
        config = options.load_config(EngineConfig, file, given)
    else:
        config = options.load_config(EngineConfig, None, {"MODEL": file, **given})
    raise typer.Exit(print_plan(config, as_json=as_json))


@app.command()
def doctor(
    model: options.Model = None,
    config: options.ConfigFile = None,
    device: options.Device = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with sizes in bytes.")] = False,
    log_level: options.LogLevel = "error",
) -> None:
    """Tell what this machine and this installation are, and why a GPU cannot be used.

    Ends with code 1 when something is broken that the model or the configuration needs.
    """
    options.set_up_output(log_level)
    from llamalane.cli.doctor import doctor as run
    from llamalane.scheduler import EngineConfig

    given = {"MODEL": model, "--device": device}
    loaded = options.load_config(EngineConfig, config, given) if model or config else None
    raise typer.Exit(run(loaded, as_json=as_json))


@app.command(context_settings=_PASS_ON, add_help_option=False)
def bench(context: typer.Context) -> None:
    """Measure this engine and its peers."""
    from llamalane.bench.commands import app as commands

    commands(context.args, prog_name=context.command_path)


@app.command(context_settings=_PASS_ON, add_help_option=False)
def simulate(context: typer.Context) -> None:
    """Try scheduling out on simulated lanes."""
    from llamalane.bench.simulator.command import app as commands

    commands(context.args, prog_name=context.command_path)


@app.command("hash-key")
def hash_key() -> None:
    """Print what api.keys keeps of an API key: its SHA-256. The key is asked for, or read from standard input."""
    from llamalane.cli.hash_key import print_hash

    print_hash()


@app.command("config", context_settings=_PASS_ON, add_help_option=False)
def config_(context: typer.Context) -> None:
    """Check a configuration file, or print an example or the schema."""
    from llamalane.cli.config import app as commands

    commands(context.args, prog_name=context.command_path)

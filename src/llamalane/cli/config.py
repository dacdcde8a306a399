"""`llamalane config`: checks a configuration file, and shows what one can hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from llamalane.api.config import ServerConfig
from llamalane.api.keys import levels_of, load_keys
from llamalane.errors import ConfigError
from llamalane.scheduler import config_text

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Check a configuration file, or show what one can hold.",
)


@app.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The configuration in YAML.")],
    models: Annotated[bool, typer.Option(help="Check that the model's file is there, too.")] = True,
) -> None:
    """Check FILE as a server would read it, environment and keys included. The exit code is 2 if it cannot be used."""
    config = ServerConfig.from_yaml(file)
    load_keys(config.api, levels_of(config))
    for index, model in enumerate(config.models if models else ()):
        if not model.path.is_file():
            raise ConfigError(f"models[{index}].path: there is no file {model.path}", source=str(file))
    typer.echo(f"{file} can be used")


@app.command()
def example() -> None:
    """Print a configuration with every key, explained, at its default."""
    typer.echo(config_text.example(ServerConfig), nl=False)


@app.command()
def schema() -> None:
    """Print the JSON schema of a configuration, with which editors complete and check it."""
    typer.echo(json.dumps(config_text.editor_schema(ServerConfig), indent=2))

"""What the commands have in common: options, how they become a configuration, and where messages go.

What is slow to import is imported where it is used, so that help comes at once.
"""
# ruff: noqa: PLC0415

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal, TypeVar, cast

import typer

from llamalane.cli.log_format import JsonFormatter, LogFormatName, LogLines, TextFormatter
from llamalane.errors import ConfigError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails
    from rich.console import Console

    from llamalane.scheduler.config import EngineConfig

    ConfigT = TypeVar("ConfigT", bound=EngineConfig)

Model = Annotated[
    Path | None,
    typer.Argument(
        metavar="MODEL.gguf", help="The model; goes before the one that --config names.", show_default=False
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", "-c", metavar="FILE", help="Configuration in YAML: see `llamalane config example`."),
]
Places = Annotated[
    int | None, typer.Option(help="How many sequences run at once, on each lane.", metavar="N", show_default=False)
]
Threads = Annotated[int | None, typer.Option(help="CPU threads of each lane.", metavar="N", show_default="all cores")]
KVCells = Annotated[
    int | None,
    typer.Option(
        "--kv-cells",
        help="KV memory in tokens, for all lanes together.",
        metavar="N",
        show_default="2048 for each place",
    ),
]
Device = Annotated[Literal["auto", "cuda", "cpu"] | None, typer.Option(help="What computes.", show_default="auto")]
LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"],
    typer.Option(help="What is logged; debug shows the tracebacks of errors too."),
]
LogFormat = Annotated[
    LogFormatName, typer.Option(help="How the log looks; with json, each line of standard error is an object.")
]

_EACH = "*"
_CONFIG_PATHS: Mapping[str, tuple[str | int, ...]] = {
    "MODEL": ("models", 0, "path"),
    "--places": ("streams", "lanes", _EACH, "places"),
    "--threads": ("streams", "lanes", _EACH, "threads"),
    "--kv-cells": ("kv", "budget"),
    "--device": ("streams", "device"),
    "--host": ("api", "host"),
    "--port": ("api", "port"),
    "--api-key": ("api", "api_key"),
    "--ssl-certfile": ("api", "ssl_certfile"),
    "--ssl-keyfile": ("api", "ssl_keyfile"),
}


def load_config(kind: type[ConfigT], file: Path | None, given: Mapping[str, object]) -> ConfigT:
    """Return the configuration: what is `given` goes before the environment, the file and the defaults.

    The keys of `given` are options as users write them; one that is None was not given. Raises `ConfigError`, which
    names the option at fault.
    """
    from pydantic import ValidationError

    values = {option: value for option, value in given.items() if value is not None}
    models: dict[str, Any] = {"models": [{"path": values["MODEL"]}]} if "MODEL" in values else {}
    try:
        base = kind(**models) if file is None else _read(kind, file, models)
        settings = base.model_dump()
        for option, value in values.items():
            _put(settings, _CONFIG_PATHS[option], value)
        return kind(**settings)
    except ValidationError as error:
        raise ConfigError("; ".join(map(_describe, error.errors(include_input=False)))) from error


def _read(kind: type[ConfigT], file: Path, models: Mapping[str, Any]) -> ConfigT:
    try:
        return kind.from_yaml(file)
    except ConfigError:
        if not models:
            raise
        return kind.from_yaml(file, models)  # the file may do without a model when the command line has one


def _put(settings: Any, path: Sequence[str | int], value: object) -> None:
    head, *rest = path
    for key in range(len(settings)) if head == _EACH else [head]:
        if rest:
            _put(settings[key], rest, value)
        else:
            settings[key] = value


def _describe(error: ErrorDetails) -> str:
    location, message = error["loc"], error["msg"].replace("Input should", "must")
    if location == ("models",) and error["type"] == "missing":
        return "name a model: MODEL.gguf or --config FILE"
    options = (option for option, path in _CONFIG_PATHS.items() if _leads_to(path, location))
    return f"{next(options, '.'.join(map(str, location)))}: {message}"


def _leads_to(path: Sequence[str | int], location: Sequence[str | int]) -> bool:
    return len(path) == len(location) and all(
        part in (_EACH, found) for part, found in zip(path, location, strict=True)
    )


def set_up_output(log_level: str, log_format: LogFormatName = "text") -> Console:
    """Send the log to standard error, and return the console there for messages to the user.

    In JSON these messages are records of the log, too, so that each line is one.
    """
    from rich.console import Console

    as_json = log_format == "json"
    file = LogLines(logging.getLogger("llamalane.cli")) if as_json else None
    console = Console(file=cast("IO[str] | None", file), stderr=True, highlight=False, markup=False, soft_wrap=True)
    level = getattr(logging, log_level.upper())
    logging.basicConfig(level=max(level, logging.WARNING), handlers=[_handler(console, as_json=as_json)], force=True)
    logging.captureWarnings(as_json)
    logging.getLogger("llamalane").setLevel(level)
    return console


def _handler(console: Console, *, as_json: bool) -> logging.Handler:
    from rich.logging import RichHandler

    handler: logging.Handler = logging.StreamHandler()
    formatter: logging.Formatter = TextFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    if as_json:
        formatter = JsonFormatter()
    elif console.is_terminal:
        handler, formatter = RichHandler(console=console, show_path=False), TextFormatter("%(message)s")
    handler.setFormatter(formatter)
    return handler

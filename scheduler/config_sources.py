"""Puts the sources of a configuration together, and tells where a value that is refused came from.

The sources, strongest first: overrides from code, environment variables, the file, the defaults.
Mappings are merged key by key; any other value hides the weaker ones.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource

from llamalane.errors import ConfigError
from llamalane.scheduler.config_file import Document, Location, Problem, quote_key

SettingsT = TypeVar("SettingsT", bound=BaseSettings)

_REWORDED: Mapping[str, str] = {
    "missing": "is missing",
    "model_type": "must be a mapping",
    "dict_type": "must be a mapping",
    "list_type": "must be a list",
    "string_type": "must be a text; put a number or a constant in quotes",
}
"""pydantic's kinds of errors whose own words speak of Python."""
_JSON_EXPECTED = frozenset({"model_type", "dict_type", "list_type"})


class EnvironmentSource(EnvSettingsSource):
    """Environment variables. Lists and mappings are JSON; what is not is left for validation to refuse."""

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        """Decode JSON; return anything else as it is."""
        try:
            return super().decode_complex_value(field_name, field, value)
        except (ValueError, RecursionError):
            return value


def load_settings(
    kind: type[SettingsT], document: Document, overrides: Mapping[str, Any], *, foreign: Collection[str]
) -> SettingsT:
    """Build the settings of `kind` from a file, the environment and `overrides`.

    `foreign` are top-level keys that are for others. Raises one `ConfigError` with all that is wrong.
    """
    sources = _Sources(overrides, EnvironmentSource(kind)(), document)
    problems = [*document.problems, *_unknown_variables(kind, foreign)]
    settings = None
    try:
        given = (_Given(kind, overrides), _Given(kind, sources.environment), _Given(kind, document.values))
        settings = kind(_build_sources=(given, {}))
    except ValidationError as error:
        unread = {problem.location for problem in document.problems}
        problems += [
            sources.problem(kind, details)
            for details in error.errors(include_url=False, include_input=False)
            if details["loc"] not in unread
        ]
    if settings is None or problems:
        raise _error(document.source, problems)
    return settings


class _Given(PydanticBaseSettingsSource):
    """Values that are at hand already."""

    def __init__(self, kind: type[BaseSettings], values: Mapping[str, Any]) -> None:
        super().__init__(kind)
        self._values = dict(values)

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        return self._values.get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        return self._values


@dataclass(frozen=True, slots=True)
class _Sources:
    """The sources, and which of them an error belongs to."""

    overrides: Mapping[str, Any]
    environment: Mapping[str, Any]
    document: Document

    def problem(self, kind: type[BaseSettings], details: ErrorDetails) -> Problem:
        location, message = details["loc"], _describe(kind, details)
        owner = self._owner(location)
        if owner is self.overrides:
            return Problem(location, message, None)
        if owner is self.environment:
            hint = ", given as JSON" if details["type"] in _JSON_EXPECTED else ""
            variables = _variables(kind, location)
            return Problem(location, f"environment variable {variables}: {message}{hint}", None)
        return Problem(location, message, self.document.line(location))

    def _owner(self, location: Location) -> Mapping[str, Any]:
        """Return the source of what is at `location`.

        Where there is nothing, or a mapping that several sources contribute to, it is the weakest with the
        nearest part: the file, as a rule.
        """
        held: list[tuple[Mapping[str, Any], Any]] = [
            (source, source) for source in (self.overrides, self.environment, self.document.values)
        ]
        for part in location:
            deeper = [(source, value[part]) for source, value in held if isinstance(value, Mapping) and part in value]
            if not deeper:
                break
            mappings = list(takewhile(lambda entry: isinstance(entry[1], Mapping), deeper))
            held = mappings or deeper[:1]
        return held[-1][0]


def _error(source: str, problems: Sequence[Problem]) -> ConfigError:
    in_file = [problem for problem in problems if problem.line is not None]
    first, *rest = [
        *sorted(in_file, key=lambda problem: problem.line or 0),
        *(problem for problem in problems if problem.line is None),
    ]
    lines = [first.message]
    for problem in rest:
        place = "" if problem.line is None else f"{source}:{problem.line}: "
        lines.append(place + problem.message)
    return ConfigError("\n".join(lines), source=source if in_file else None, line=first.line)


def _describe(kind: type[BaseSettings], details: ErrorDetails) -> str:
    location, message = details["loc"], details["msg"].removeprefix("Value error, ")
    if details["type"] == "extra_forbidden":
        *around, key = location
        return _unknown_key(str(key), around, _model_at(kind, around).model_fields)
    if location[-1:] == ("[key]",):
        location = location[:-1]
    message = _REWORDED.get(details["type"], message)
    if message.startswith("Input should "):
        message = "must " + message.removeprefix("Input should ")
    where = _spell(location)
    separator = " " if message.startswith(("must ", "is ")) else ": "
    return f"{where}{separator}{message}" if where else message


def _unknown_key(key: str, around: Sequence[str | int], allowed: Iterable[str]) -> str:
    names = list(allowed)
    where = f" in {_spell(around)}" if around else ""
    nearest = difflib.get_close_matches(key, names, n=1)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ";"
    return f"unknown key {quote_key(key)}{where}{hint} Allowed: {', '.join(names)}"


def _model_at(kind: type[BaseModel], location: Sequence[str | int]) -> type[BaseModel]:
    annotation: Any = kind
    for part in location:
        if isinstance(part, int):
            (annotation,) = get_args(annotation)
        else:
            annotation = annotation.model_fields[part].annotation
    model: type[BaseModel] = annotation
    return model


def _spell(location: Sequence[str | int]) -> str:
    """Write a location as `streams.lanes[0].places`."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return "".join(parts).removeprefix(".")


def _variables(kind: type[BaseSettings], location: Location) -> str:
    """Name the environment variables that set what is at `location`, or the nearest part around it."""
    parts = [str(part).lower() for part in location]
    stems = (_prefix(kind) + "__".join(parts[:depth]) for depth in range(len(parts), 0, -1))
    return next(
        ", ".join(found)
        for stem in stems
        if (found := [name for name in os.environ if f"{name.lower()}__".startswith(f"{stem}__")])
    )


def _unknown_variables(kind: type[BaseSettings], foreign: Collection[str]) -> list[Problem]:
    """Find the variables that name a section, which nobody has."""
    prefix = _prefix(kind)
    problems = []
    for variable in os.environ:
        name = variable.lower()
        section, delimiter, _ = name.removeprefix(prefix).partition("__")
        if name.startswith(prefix) and delimiter and section not in {*kind.model_fields, *foreign}:
            message = _unknown_key(section, (), kind.model_fields)
            problems.append(Problem((section,), f"environment variable {variable}: {message}", None))
    return problems


def _prefix(kind: type[BaseSettings]) -> str:
    return kind.model_config["env_prefix"].lower()

"""Reads a YAML configuration file into plain values, and remembers the line of each.

The scalars are those of YAML 1.2: `on`, `off` and `12:30` are texts. What a configuration has no use for is
refused: anchors and aliases, tags, several documents, deep nesting.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from llamalane.errors import ConfigError

Location = tuple[str | int, ...]
"""The keys and indices that lead to a value."""

MAX_BYTES = 1 << 18
"""The largest file that is read."""
MAX_DEPTH = 32
"""How deep lists and mappings may lie in each other."""

_CONSTANTS: Mapping[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_NUMBERS: tuple[tuple[re.Pattern[str], Callable[[str], int | float]], ...] = (
    (re.compile(r"[-+]?(0|[1-9][0-9]{0,17})"), int),
    (re.compile(r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*)([eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+"), float),
    (re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"), lambda text: float(text.replace(".", ""))),
)
_VARIABLE = re.compile(r"\$\{env:(?P<name>[A-Za-z_][A-Za-z0-9_]*)(:-(?P<default>[^}]*))?\}")
_NO_TAGS = "tags are not supported; a text that begins with ! needs quotes"


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong at one location; `line` counts from 1, and is None when the file is not at fault."""

    location: Location
    message: str
    line: int | None


@dataclass(frozen=True, slots=True)
class Document:
    """A file's values, the line of each key and list entry, and what could not be read.

    Where there is a problem, the value is the first one given or the text as it stands in the file.
    """

    source: str
    values: dict[str, Any] = field(default_factory=dict, repr=False)
    lines: dict[Location, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def line(self, location: Location) -> int:
        """Return the line of what is at `location`, or of the nearest part around it."""
        while location not in self.lines:
            location = location[:-1]
        return self.lines[location]


def quote_key(key: str) -> str:
    """Return `key` as messages show it: without what follows a colon, which is a value that lacks a space before it."""
    name, colon, _ = key.partition(":")
    return repr(f"{name}:…" if colon else name)


def read_document(path: str | os.PathLike[str], *, skip: Collection[str] = ()) -> Document:
    """Read the mapping in the file at `path`, without its top-level keys in `skip`.

    `${env:NAME}` in a value is an environment variable, `${env:NAME:-default}` one that may be unset
    or empty. Raises `ConfigError` when there is no mapping to be read; the document lists smaller problems.
    """
    document = Document(os.fspath(path))
    root = _compose(_read_text(Path(path), document.source), document.source)
    if not isinstance(root, yaml.MappingNode):
        found = "a list" if isinstance(root, yaml.SequenceNode) else "a single value"
        raise ConfigError(
            f"a configuration is a mapping, such as `models:`; this is {found}",
            source=document.source,
            line=root.start_mark.line + 1,
        )
    document.lines[()] = root.start_mark.line + 1
    document.values.update(_Reader(document, skip).mapping(root, ()))
    return document


def _read_text(path: Path, source: str) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"the file cannot be read: {reason}", source=source) from error
    if len(data) > MAX_BYTES:
        raise ConfigError(f"the file is larger than {MAX_BYTES} bytes", source=source)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError("the file is not valid UTF-8 here", source=source, line=line) from error


class _Loader(yaml.SafeLoader):
    """Composes nodes from as much of YAML as a configuration needs."""

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            self._refuse(event, "aliases are not supported; a text that begins with * needs quotes")
        if event.anchor is not None:
            self._refuse(event, "anchors are not supported; a text that begins with & needs quotes")
        if event.tag is not None:
            self._refuse(event, _NO_TAGS)
        if self._depth == MAX_DEPTH:
            self._refuse(event, f"lists and mappings lie in each other more than {MAX_DEPTH} deep")
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    @staticmethod
    def _refuse(event: Any, problem: str) -> None:
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)


def _compose(text: str, source: str) -> yaml.Node:
    try:
        root = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        # Neither the error's own text, which quotes the line, nor a tag's name is told: it may be a secret.
        line = error.problem_mark.line + 1 if error.problem_mark is not None else None
        message = ", ".join(part for part in (error.context, error.problem) if part)
        if "tag handle" in message:
            message = _NO_TAGS
        elif line is not None and "${env:" in "".join(text.splitlines()[line - 1 : line]):
            message += "; inside { } and [ ], a ${env:NAME} needs quotes"
        raise ConfigError(f"this is not YAML that can be read: {message}", source=source, line=line) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        message = f"the character U+{error.character:04X} is not allowed"
        raise ConfigError(message, source=source, line=line) from None
    if root is None:
        raise ConfigError("the file is empty; see `llamalane config example`", source=source)
    return root


class _Reader:
    """Turns nodes into values; notes their lines and problems in the document."""

    def __init__(self, document: Document, skip: Collection[str]) -> None:
        self._document = document
        self._skip = skip

    def mapping(self, node: yaml.MappingNode, location: Location) -> dict[str, Any]:
        values: dict[str, Any] = {}
        first_lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            key = self._key(key_node)
            if key is None:
                self._note(location, "a key must be a text; a number or a constant needs quotes", line)
                continue
            if key in first_lines:
                message = f"duplicate key {quote_key(key)}: it is in line {first_lines[key]} already"
                self._note((*location, key), message, line)
                continue
            first_lines[key] = line
            if location == () and key in self._skip:
                continue
            self._document.lines[*location, key] = line
            values[key] = self._value(value_node, (*location, key))
        return values

    @staticmethod
    def _key(node: yaml.Node) -> str | None:
        key = _plain(node) if isinstance(node, yaml.ScalarNode) else None
        return key if isinstance(key, str) else None

    def _value(self, node: yaml.Node, location: Location) -> Any:
        if isinstance(node, yaml.ScalarNode):
            return self._expanded(node, location) if "${env:" in node.value else _plain(node)
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, location)
        values = []
        for index, entry in enumerate(node.value):
            self._document.lines[*location, index] = entry.start_mark.line + 1
            values.append(self._value(entry, (*location, index)))
        return values

    def _expanded(self, node: yaml.ScalarNode, location: Location) -> Any:
        line = node.start_mark.line + 1

        def expand(match: re.Match[str]) -> str:
            name, default = match["name"], match["default"]
            value = os.environ.get(name)
            if default is not None:
                return value or default
            if value is None:
                self._note(location, f"the environment variable {name} is not set", line)
            return value or ""

        if "${env:" in _VARIABLE.sub("", node.value):
            message = "a reference to the environment is ${env:NAME} or ${env:NAME:-default}"
            self._note(location, message, line)
            return node.value
        text = _VARIABLE.sub(expand, node.value)
        value = _plain(yaml.ScalarNode(node.tag, text, style=node.style))
        # Only the file can say null: a variable that is empty or holds "null" must not take an api_key away.
        whole = _VARIABLE.fullmatch(node.value)
        said_in_file = bool(text) and whole is not None and whole["default"] == text
        return text if value is None and not said_in_file else value

    def _note(self, location: Location, message: str, line: int) -> None:
        self._document.problems.append(Problem(location, message, line))


def _plain(node: yaml.ScalarNode) -> str | int | float | bool | None:
    """Return a scalar's value: what is quoted or in a block is a text."""
    text: str = node.value
    if node.style is not None:
        return text
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    return next((convert(text) for pattern, convert in _NUMBERS if pattern.fullmatch(text)), text)

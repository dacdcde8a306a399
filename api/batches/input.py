"""OpenAI's batch files, read line by line: what each line asks for, or what is wrong with it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from llamalane.api.bodies import LARGE_BODY, check_parts
from llamalane.errors import InvalidRequestError

MAX_LINE_BYTES = 64 * 2**20
"""The longest line that is read, in bytes."""
MAX_VALUES = 2_000_000
"""So many values may a long line hold."""

_FIELDS: Mapping[str, tuple[type, str]] = {
    "custom_id": (str, "a string"),
    "method": (str, "a string"),
    "url": (str, "a string"),
    "body": (dict, "an object"),
}


@dataclass(frozen=True, slots=True)
class BatchTask:
    """One valid input line; `line` is its number, from 1."""

    line: int
    custom_id: str
    method: str
    url: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class InvalidLine:
    """An input line that is no task, and why; `code` and `param` are for programs, `message` for people."""

    line: int
    custom_id: str | None
    code: str
    message: str
    param: str | None = None


@dataclass(slots=True)
class FinishedWork:
    """What has been done of an input before, and is passed over.

    Attributes:
        ids: a digest of each finished `custom_id`; about 100 bytes of memory each, however long the names are.
        lines: the numbers of input lines that are done, such as those that were told to be invalid.
        finished: how many output lines there are, failed ones included.
        failed: how many of them are errors.
    """

    ids: set[bytes] = field(default_factory=set)
    lines: set[int] = field(default_factory=set)
    finished: int = 0
    failed: int = 0


def parse_line(line: int, text: bytes) -> BatchTask | InvalidLine:
    """Read one input line."""
    try:
        if len(text) > LARGE_BODY:
            check_parts(text, max_values=MAX_VALUES)
        record = json.loads(text, parse_constant=_refuse_constant)
    except InvalidRequestError as error:
        return InvalidLine(line, None, "line_too_large", f"line {line}: {error}")
    except (ValueError, RecursionError) as error:
        return InvalidLine(line, None, "invalid_json_line", f"line {line} is not JSON: {error}")
    if not isinstance(record, dict):
        return InvalidLine(line, None, "invalid_json_line", f"line {line} is not a JSON object")
    custom_id = record.get("custom_id")
    custom_id = custom_id if isinstance(custom_id, str) else None
    for name, (kind, description) in _FIELDS.items():
        if not isinstance(record.get(name), kind):
            code, problem = ("invalid_type", f"must be {description}") if name in record else _MISSING
            return InvalidLine(line, custom_id, code, f"line {line}: {name} {problem}", name)
    return BatchTask(line, record["custom_id"], record["method"], record["url"], record["body"])


_MISSING = ("missing_required_parameter", "is missing")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


class BatchInput:
    """Reads tasks one line at a time, in order, leaving out what `done` says is finished.

    A `custom_id` that was read before makes the later line invalid. Empty lines are passed over.
    """

    def __init__(self, file: BinaryIO, done: FinishedWork, *, max_line: int = MAX_LINE_BYTES) -> None:
        self._file = file
        self._done = done
        self._max_line = max_line
        self._line = 0
        self.position = 0
        """How many bytes of the file have been read."""
        self._seen: set[bytes] = set()

    def next(self) -> BatchTask | InvalidLine | None:
        """Return the next line that is not done yet, None at the end of the file."""
        while text := self._read(self._max_line + 1):
            self._line += 1
            complete = len(text) <= self._max_line
            if not complete:
                self._skip_rest(text)
            if not text.strip() or self._line in self._done.lines:
                continue
            if not complete:
                message = f"line {self._line} is longer than {self._max_line} bytes"
                return InvalidLine(self._line, None, "line_too_long", message)
            entry = self._check_unique(parse_line(self._line, text))
            if entry is not None:
                return entry
        return None

    def _read(self, limit: int) -> bytes:
        text = self._file.readline(limit)
        self.position += len(text)
        return text

    def _skip_rest(self, text: bytes) -> None:
        while text and not text.endswith(b"\n"):
            text = self._read(self._max_line)

    def _check_unique(self, entry: BatchTask | InvalidLine) -> BatchTask | InvalidLine | None:
        if isinstance(entry, InvalidLine):
            return entry
        digest = digest_of(entry.custom_id)
        if digest in self._seen:
            message = f"line {entry.line}: an earlier line has the custom_id {entry.custom_id!r:.200} too"
            return InvalidLine(entry.line, entry.custom_id, "duplicate_custom_id", message, "custom_id")
        self._seen.add(digest)
        if digest in self._done.ids:
            self._done.ids.remove(digest)  # known through _seen from here on
            return None
        return entry


def digest_of(custom_id: str) -> bytes:
    """Return what is remembered of a `custom_id`."""
    return hashlib.blake2b(custom_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()

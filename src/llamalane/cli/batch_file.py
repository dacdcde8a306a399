"""OpenAI's batch files: tasks are read line by line, outcomes appended, and finished work is recognised.

An output line is written whole and ends in a newline, so after a kill only the last line can be cut, and a cut line
is one that was not finished. What identifies finished work is the task's `custom_id`; a line that is no valid task
has none, and is identified by its line number, which its output line tells.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from llamalane.errors import ConfigError, LlamalaneError

MAX_LINE_BYTES = 64 * 2**20
"""The longest line that is read, in bytes."""

_FIELDS: Mapping[str, tuple[type, str]] = {
    "custom_id": (str, "a string"),
    "method": (str, "a string"),
    "url": (str, "a string"),
    "body": (dict, "an object"),
}
_LINE_START = b'{"id": "batch_req_'


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
    """An input line that is no task, and why; `code` is for programs, `message` for people."""

    line: int
    custom_id: str | None
    code: str
    message: str


@dataclass(slots=True)
class FinishedWork:
    """What earlier runs have written.

    Attributes:
        ids: a digest of each finished `custom_id`; about 100 bytes of memory each, however long the names are.
        lines: the numbers of the input lines that were told to be invalid.
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
        record = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        return InvalidLine(line, None, "invalid_json", f"line {line} is not JSON: {error}")
    if not isinstance(record, dict):
        return InvalidLine(line, None, "invalid_request", f"line {line} is not a JSON object")
    custom_id = record.get("custom_id")
    custom_id = custom_id if isinstance(custom_id, str) else None
    for name, (kind, description) in _FIELDS.items():
        if not isinstance(record.get(name), kind):
            problem = f"must be {description}" if name in record else "is missing"
            return InvalidLine(line, custom_id, "invalid_request", f"line {line}: {name} {problem}")
    return BatchTask(line, record["custom_id"], record["method"], record["url"], record["body"])


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
        digest = _digest(entry.custom_id)
        if digest in self._seen:
            message = f"line {entry.line}: an earlier line has the custom_id {entry.custom_id!r} too"
            return InvalidLine(entry.line, entry.custom_id, "duplicate_custom_id", message)
        self._seen.add(digest)
        if digest in self._done.ids:
            self._done.ids.remove(digest)  # known through _seen from here on
            return None
        return entry


class BatchOutput:
    """Appends outcomes to a file that only one process at a time may write.

    `done` tells what the file held when it was opened; a last line that was cut is removed then. Raises `ConfigError`
    when the file holds anything but batch output, or when another process is writing it: nothing is changed then.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("ab+", buffering=0)
        try:
            self._lock()
            self.done = self._recover()
        except BaseException:
            self._file.close()
            raise

    def _lock(self) -> None:
        try:
            import fcntl  # noqa: PLC0415  (POSIX has it, Windows does not: there, nothing is locked)
        except ImportError:
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError("another process is writing this file", source=str(self._path)) from None

    def _recover(self) -> FinishedWork:
        done = FinishedWork()
        with self._path.open("rb") as file:
            end = 0
            while text := file.readline(MAX_LINE_BYTES):
                if not text.endswith(b"\n"):
                    if len(text) == MAX_LINE_BYTES:
                        raise self._foreign(done.finished + 1)
                    self._drop_cut_line(text, end, done.finished + 1)
                    break
                self._note(text, done)
                end += len(text)
        return done

    def _note(self, text: bytes, done: FinishedWork) -> None:
        done.finished += 1
        try:
            record = json.loads(text)
            custom_id, response, error = record["custom_id"], record["response"], record["error"]
            failed = error is not None or response["status_code"] >= 400
            if error is not None:
                done.lines.add(int(error["line"]))
            else:
                done.ids.add(_digest(custom_id))
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise self._foreign(done.finished) from None
        done.failed += failed

    def _drop_cut_line(self, text: bytes, start: int, line: int) -> None:
        # Whatever does not begin as our own lines do was not written here, and is not ours to remove.
        if not _LINE_START.startswith(text[: len(_LINE_START)]):
            raise self._foreign(line)
        self._file.truncate(start)

    def _foreign(self, line: int) -> ConfigError:
        message = "this is not a line of batch output; name another output file, or remove the line"
        return ConfigError(message, source=str(self._path), line=line)

    def append_response(self, task: BatchTask, status: int, request_id: str, body: Mapping[str, Any]) -> None:
        """Write what came of a task: an HTTP status and the body of the answer."""
        response = {"status_code": status, "request_id": request_id, "body": body}
        self._append({"custom_id": task.custom_id, "response": response, "error": None})

    def append_error(self, entry: InvalidLine) -> None:
        """Write why a line was not run."""
        error = {"code": entry.code, "message": entry.message, "line": entry.line}
        self._append({"custom_id": entry.custom_id, "response": None, "error": error})

    def _append(self, record: Mapping[str, Any]) -> None:
        text = json.dumps({"id": f"batch_req_{uuid.uuid4().hex}", **record}).encode() + b"\n"
        try:
            while text:
                text = text[self._file.write(text) :]
        except OSError as error:
            raise LlamalaneError(f"cannot write {self._path}: {error.strerror}") from error

    def close(self) -> None:
        """Close the file; closing twice is allowed."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _digest(custom_id: str) -> bytes:
    return hashlib.blake2b(custom_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()

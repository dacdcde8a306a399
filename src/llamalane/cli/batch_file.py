"""The output of a batch in OpenAI's format: outcomes are appended, and finished work is recognised.

An output line is written whole and ends in a newline, so after a kill only the last line can be cut, and a cut line
is one that was not finished. What identifies finished work is the task's `custom_id`; a line that is no valid task
has none, and is identified by its line number, which its output line tells.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from llamalane.api.batch import error_line, response_line
from llamalane.api.batches.folder import lock_exclusively
from llamalane.api.batches.input import MAX_LINE_BYTES, BatchTask, FinishedWork, InvalidLine, digest_of
from llamalane.errors import ConfigError, LlamalaneError

_LINE_START = b'{"id": "batch_req_'


class BatchOutput:
    """Appends outcomes to a file that only one process at a time may write.

    `done` tells what the file held when it was opened; a last line that was cut is removed then. Raises `ConfigError`
    when the file holds anything but batch output, or when another process is writing it: nothing is changed then.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("ab+", buffering=0)
        try:
            if not lock_exclusively(self._file):
                raise ConfigError("another process is writing this file", source=str(path))
            self.done = self._recover()
        except BaseException:
            self._file.close()
            raise

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
                done.ids.add(digest_of(custom_id))
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

    def append_response(self, task: BatchTask, status: int, body: Mapping[str, Any]) -> None:
        """Write what came of a task: an HTTP status and the body of the answer."""
        self._append(response_line(task.custom_id, status, body))

    def append_error(self, entry: InvalidLine) -> None:
        """Write why a line was not run."""
        error = {"code": entry.code, "message": entry.message, "line": entry.line}
        self._append(error_line(entry.custom_id, error))

    def _append(self, text: bytes) -> None:
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

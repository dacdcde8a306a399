"""How the log looks: one line for each record, as text or as JSON, which nothing that clients send can break.

Messages can hold what a client chose. In text, whatever would end a line, or change how a terminal shows it, is
escaped, and a traceback's lines are indented, so that none of them looks like a record of its own.
"""

from __future__ import annotations

import json
import logging
import re
import textwrap
from datetime import UTC, datetime
from io import TextIOBase
from typing import Any, Literal

LogFormatName = Literal["text", "json"]

ACCESS_LOGGER = "llamalane.api.access"
"""Its records have a request's numbers as attributes, and in their messages too."""

_UNSAFE = r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
_UNSAFE_IN_LINE = re.compile(rf"{_UNSAFE}|[\t\n]")
_UNSAFE_IN_TEXT = re.compile(_UNSAFE)
_STANDARD = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", "color_message"})
_INDENT = "    "


class TextFormatter(logging.Formatter):
    """A line of text for each record, followed by the indented lines of its traceback, if it has one."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as text."""
        record.message = _escape(record.getMessage(), _UNSAFE_IN_LINE)
        if self.usesTime():
            record.asctime = self.formatTime(record, self.datefmt)
        parts = [self.formatMessage(record)]
        if record.exc_info:
            parts.append(_indent(self.formatException(record.exc_info)))
        if record.stack_info:
            parts.append(_indent(self.formatStack(record.stack_info)))
        return "\n".join(parts)


class JsonFormatter(logging.Formatter):
    """A JSON object for each record: `time` (UTC), `level`, `logger`, `message`, and what else the record has."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as JSON, in one line."""
        more = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": "request" if record.name == ACCESS_LOGGER and more else record.getMessage(),
            **more,
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            fields["stack"] = self.formatStack(record.stack_info)
        return json.dumps(fields, default=str)


class LogLines(TextIOBase):
    """A text file whose lines become records of `logger`, whatever its level is."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._begun = ""

    def writable(self) -> bool:
        """Return that it can be written to."""
        return True

    def write(self, text: str) -> int:
        """Take text, and log each line of it that is complete and not empty."""
        *lines, self._begun = (self._begun + text).split("\n")
        for line in filter(None, map(str.strip, lines)):
            record = self._logger.makeRecord(self._logger.name, logging.INFO, __file__, 0, line, (), None)
            self._logger.handle(record)
        return len(text)


def writes_json() -> bool:
    """Return whether the process's log is in JSON."""
    return any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers)


def _escape(text: str, unsafe: re.Pattern[str]) -> str:
    return unsafe.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _indent(text: str) -> str:
    return textwrap.indent(_escape(text, _UNSAFE_IN_TEXT), _INDENT, lambda _: True)

"""What the log looks like, and that nothing in a message can break it."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamalane.cli import main
from llamalane.cli.log_format import JsonFormatter, LogLines, TextFormatter, writes_json
from llamalane.cli.options import set_up_output

PATTERN = "%(levelname)s %(name)s: %(message)s"
UNSAFE = [
    "a line\nERROR forged: another one",
    "a return\rERROR forged",
    "a colour \x1b[31m",
    "another line\u2028ERROR forged",
    "turned around \u202e",
    "half a character \ud83d",
    "a tab\tand a null\x00",
]


def record_of(message: str, *arguments: object, **attributes: Any) -> logging.LogRecord:
    record = logging.LogRecord("some.logger", logging.INFO, __file__, 1, message, arguments, None)
    vars(record).update(attributes)
    return record


@pytest.mark.parametrize("text", UNSAFE)
def test_a_message_cannot_break_its_line(text: str) -> None:
    as_text, as_json = TextFormatter(PATTERN), JsonFormatter()
    for record in (record_of(text.replace("%", "%%")), record_of("it said %s", text)):
        line = as_text.format(record)
        assert len(line.splitlines()) == 1
        assert line.isprintable()
        line.encode()
        assert line.startswith("INFO some.logger: ")
        line = as_json.format(record)
        assert len(line.splitlines()) == 1
        assert line.isascii()
        assert text in json.loads(line)["message"]


@given(st.text())
def test_no_text_breaks_a_line(text: str) -> None:
    for formatter in (TextFormatter(PATTERN), JsonFormatter()):
        assert len(formatter.format(record_of("%s", text)).splitlines()) == 1


def test_ordinary_text_stays_as_it_is() -> None:
    assert TextFormatter(PATTERN).format(record_of("größer × 3 \\n")) == "INFO some.logger: größer × 3 \\n"


def test_an_error_whose_words_look_like_a_record_is_indented() -> None:
    try:
        raise ValueError("first\nERROR forged: second")
    except ValueError:
        record = record_of("it failed", exc_info=sys.exc_info())
    first, *others = TextFormatter(PATTERN).format(record).splitlines()
    assert first == "INFO some.logger: it failed"
    assert others[0] == "    Traceback (most recent call last):"
    assert others[-1] == "    ERROR forged: second"
    assert all(line.startswith("    ") for line in others)
    [line] = JsonFormatter().format(record).splitlines()
    assert json.loads(line)["exception"].endswith("ERROR forged: second")


def test_json_has_what_the_record_has_and_the_time_in_utc() -> None:
    record = record_of("%d done", 3, created=0.25, status=200, path="/x\ny")
    record.created = 0.25
    assert json.loads(JsonFormatter().format(record)) == {
        "time": "1970-01-01T00:00:00.250+00:00",
        "level": "info",
        "logger": "some.logger",
        "message": "3 done",
        "status": 200,
        "path": "/x\ny",
    }


def test_messages_to_the_user_are_records_too_whatever_is_logged(capsys: pytest.CaptureFixture[str]) -> None:
    console = set_up_output("error", "json")
    console.print("ready: here")
    console.status("loading").start()
    assert writes_json()
    [line] = capsys.readouterr().err.splitlines()
    assert json.loads(line)["message"] == "ready: here"


def test_lines_are_told_when_they_are_complete(caplog: pytest.LogCaptureFixture) -> None:
    lines = LogLines(logging.getLogger("some.logger"))
    lines.write("one\n\ntw")
    assert caplog.messages == ["one"]
    lines.write("o\n")
    assert caplog.messages == ["one", "two"]


def test_an_error_of_the_command_is_a_record(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "/nowhere/at/all.gguf", "--port", "0", "--log-format", "json"]) == 1
    *_, line = capsys.readouterr().err.splitlines()
    told = json.loads(line)
    assert told["level"] == "error"
    assert "/nowhere/at/all.gguf" in told["message"]


def test_an_unexpected_error_is_a_record(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("this was not expected")

    monkeypatch.setattr("llamalane.cli.options.load_config", fail)
    assert main(["serve", str(tmp_path / "model.gguf"), "--log-format", "json"]) == 1
    *_, line = capsys.readouterr().err.splitlines()
    assert json.loads(line)["level"] == "critical"
    assert "this was not expected" in json.loads(line)["exception"]
    with pytest.raises(ZeroDivisionError):
        main(["serve", str(tmp_path / "model.gguf")])

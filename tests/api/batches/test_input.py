"""Reading the input files of batches."""

from __future__ import annotations

import json

import pytest

from llamalane.api.batches.input import BatchTask, InvalidLine, parse_line
from tests.api.batches.lines import jsonl, read_all, record


class TestParseLine:
    def test_a_valid_line_becomes_a_task(self) -> None:
        task = parse_line(3, jsonl(record("a")))
        assert task == BatchTask(3, "a", "POST", "/v1/completions", {"prompt": "x"})

    @pytest.mark.parametrize(
        "text",
        [b"{", b"", b"\xff\xfe", b'{"body": NaN}', b"[" * 100_000, b'{"custom_id": "a",}'],
        ids=["cut", "empty", "not UTF-8", "NaN", "deep", "comma"],
    )
    def test_what_is_not_json_is_told(self, text: bytes) -> None:
        entry = parse_line(7, text)
        assert isinstance(entry, InvalidLine)
        assert (entry.line, entry.custom_id, entry.code) == (7, None, "invalid_json_line")
        assert entry.message.startswith("line 7 is not JSON: ")

    def test_a_line_of_too_many_parts_is_refused_before_it_is_parsed(self) -> None:
        entry = parse_line(4, b"[" + b"{}," * 300_000 + b"{}]")
        assert isinstance(entry, InvalidLine)
        assert (entry.line, entry.code) == (4, "line_too_large")

    @pytest.mark.parametrize("value", [1, "x", None, [1], True])
    def test_a_line_must_be_an_object(self, value: object) -> None:
        entry = parse_line(1, json.dumps(value).encode())
        assert isinstance(entry, InvalidLine)
        assert entry.message == "line 1 is not a JSON object"

    @pytest.mark.parametrize("name", ["custom_id", "method", "url", "body"])
    def test_a_missing_or_mistyped_field_is_named(self, name: str) -> None:
        fields = record("a")
        del fields[name]
        missing = parse_line(2, json.dumps(fields).encode())
        mistyped = parse_line(2, json.dumps(record("a", **{name: 5})).encode())
        assert isinstance(missing, InvalidLine)
        assert isinstance(mistyped, InvalidLine)
        assert (missing.code, missing.param) == ("missing_required_parameter", name)
        assert (mistyped.code, mistyped.param) == ("invalid_type", name)
        assert missing.message == f"line 2: {name} is missing"
        assert mistyped.message.startswith(f"line 2: {name} must be ")
        assert mistyped.custom_id == (None if name == "custom_id" else "a")


class TestBatchInput:
    def test_lines_come_in_order_and_empty_ones_are_passed_over(self) -> None:
        entries = read_all(b"\n" + jsonl(record("a")) + b"  \n" + jsonl(record("b")))
        assert [(entry.line, entry.custom_id) for entry in entries] == [(2, "a"), (4, "b")]

    def test_the_last_line_needs_no_newline(self) -> None:
        entries = read_all(jsonl(record("a"), record("b")).rstrip(b"\n"))
        assert [entry.custom_id for entry in entries] == ["a", "b"]

    def test_a_second_custom_id_is_an_error(self) -> None:
        first, second, third = read_all(jsonl(record("a"), record("a"), record("b")))
        assert isinstance(first, BatchTask)
        assert isinstance(second, InvalidLine)
        assert (second.line, second.custom_id, second.code) == (2, "a", "duplicate_custom_id")
        assert isinstance(third, BatchTask)

    def test_an_invalid_line_does_not_take_its_custom_id(self) -> None:
        _, second = read_all(jsonl(record("a", url=None), record("a")))
        assert isinstance(second, BatchTask)

    def test_a_line_that_is_too_long_is_told_and_the_next_is_read(self) -> None:
        long = jsonl(record("long", body={"prompt": "x" * 10_000}))
        first, second = read_all(long + jsonl(record("b")), max_line=1000)
        assert isinstance(first, InvalidLine)
        assert (first.line, first.code) == (1, "line_too_long")
        assert second == parse_line(2, jsonl(record("b")))

    @pytest.mark.parametrize("excess", [-1, 0, 1])
    def test_the_longest_line_is_read(self, excess: int) -> None:
        text = jsonl(record("a"))
        entry = read_all(text, max_line=len(text) + excess)[0]
        assert isinstance(entry, InvalidLine if excess < 0 else BatchTask)

    def test_a_custom_id_may_hold_half_a_surrogate_pair(self) -> None:
        entries = read_all(jsonl(record("\ud800"), record("\ud800")))
        assert isinstance(entries[0], BatchTask)
        assert isinstance(entries[1], InvalidLine)

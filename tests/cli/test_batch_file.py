"""Reading batch files, and going on where an earlier run was cut."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamalane.cli.batch_file import (
    BatchInput,
    BatchOutput,
    BatchTask,
    FinishedWork,
    InvalidLine,
    parse_line,
)
from llamalane.errors import ConfigError


def record(custom_id: str, /, **changes: Any) -> dict[str, Any]:
    fields = {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}
    return {**fields, **changes}


def jsonl(*records: Any) -> bytes:
    return b"".join(json.dumps(entry).encode() + b"\n" for entry in records)


def read_all(text: bytes, done: FinishedWork | None = None, **options: Any) -> list[BatchTask | InvalidLine]:
    reader = BatchInput(io.BytesIO(text), done or FinishedWork(), **options)
    return list(iter(reader.next, None))


def finish(output: BatchOutput, entry: BatchTask | InvalidLine) -> None:
    if isinstance(entry, BatchTask):
        output.append_response(entry, 200, "req-1", {"text": entry.custom_id})
    else:
        output.append_error(entry)


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


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
        assert (entry.line, entry.custom_id, entry.code) == (7, None, "invalid_json")
        assert entry.message.startswith("line 7 is not JSON: ")

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


class TestBatchOutput:
    def test_lines_have_the_shape_that_openai_gives_them(self, tmp_path: Path) -> None:
        path = tmp_path / "out.jsonl"
        task, invalid = read_all(jsonl(record("a"), 5))
        assert isinstance(task, BatchTask)
        assert isinstance(invalid, InvalidLine)
        with BatchOutput(path) as output:
            output.append_response(task, 200, "req-9", {"object": "text_completion"})
            output.append_error(invalid)
        first, second = lines_of(path)
        assert first.pop("id") != second.pop("id")
        assert first == {
            "custom_id": "a",
            "response": {"status_code": 200, "request_id": "req-9", "body": {"object": "text_completion"}},
            "error": None,
        }
        message = "line 2 is not a JSON object"
        error = {"code": "invalid_request", "message": message, "line": 2}
        assert second == {"custom_id": None, "response": None, "error": error}

    def test_finished_work_is_counted_and_left_out(self, tmp_path: Path) -> None:
        path = tmp_path / "out.jsonl"
        text = jsonl(record("a"), 5, record("b"), record("a"), record("c"))
        entries = read_all(text)
        with BatchOutput(path) as output:
            assert output.done == FinishedWork()
            for entry in entries[:4]:
                finish(output, entry)
        with BatchOutput(path) as output:
            assert (output.done.finished, output.done.failed) == (4, 2)
            assert read_all(text, output.done) == entries[4:]

    def test_a_failed_response_counts_as_failed_and_is_not_run_again(self, tmp_path: Path) -> None:
        path = tmp_path / "out.jsonl"
        [task] = read_all(jsonl(record("a")))
        assert isinstance(task, BatchTask)
        with BatchOutput(path) as output:
            output.append_response(task, 400, "req-1", {"error": {"message": "no"}})
        with BatchOutput(path) as output:
            assert (output.done.finished, output.done.failed) == (1, 1)
            assert read_all(jsonl(record("a")), output.done) == []

    @given(
        kinds=st.lists(st.sampled_from(["a", "b", "c", "bad"]), max_size=8),
        cuts=st.lists(st.floats(0, 1), max_size=4),
        order=st.randoms(use_true_random=False),
    )
    def test_nothing_is_lost_or_repeated_wherever_a_run_is_cut(
        self, tmp_path_factory: pytest.TempPathFactory, kinds: list[str], cuts: list[float], order: Any
    ) -> None:
        path = tmp_path_factory.mktemp("batch") / "out.jsonl"
        text = jsonl(*(5 if kind == "bad" else record(kind) for kind in kinds))

        def run() -> None:
            with BatchOutput(path) as output:
                entries = read_all(text, output.done)
                order.shuffle(entries)
                for entry in entries:
                    finish(output, entry)

        for cut in cuts:
            run()
            written = path.read_bytes()
            path.write_bytes(written[: round(cut * len(written))])
        run()
        answers = [line["custom_id"] for line in lines_of(path) if line["error"] is None]
        errors = [line["error"]["line"] for line in lines_of(path) if line["error"] is not None]
        first_of = {kinds.index(kind) + 1 for kind in kinds if kind != "bad"}
        assert sorted(answers) == sorted(set(kinds) - {"bad"})
        assert sorted(errors) == sorted(set(range(1, len(kinds) + 1)) - first_of)

    @pytest.mark.parametrize(
        "text",
        [
            b"hello\n",
            b"hello",
            b"GGUF\x03\x00\x00\x00",
            b"{}\n",
            b"5\n",
            jsonl({"custom_id": "a", "response": {}, "error": None}),
            jsonl({"custom_id": "a", "response": None, "error": {"code": "x"}}),
            jsonl({"custom_id": None, "response": {"status_code": 200}, "error": None}),
        ],
    )
    def test_a_file_of_something_else_is_refused_and_left_as_it_is(self, tmp_path: Path, text: bytes) -> None:
        path = tmp_path / "precious"
        path.write_bytes(text)
        with pytest.raises(ConfigError, match=r"precious:1: this is not a line of batch output"):
            BatchOutput(path)
        assert path.read_bytes() == text

    def test_only_one_process_may_write(self, tmp_path: Path) -> None:
        path = tmp_path / "out.jsonl"
        with BatchOutput(path), pytest.raises(ConfigError, match="another process is writing this file"):
            BatchOutput(path)
        with BatchOutput(path):
            pass

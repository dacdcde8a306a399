"""Writing what came of a batch, and going on where an earlier run was cut."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamalane.api.batches.input import BatchTask, FinishedWork, InvalidLine
from llamalane.cli.batch_file import BatchOutput
from llamalane.errors import ConfigError
from tests.api.batches.lines import jsonl, read_all, record


def finish(output: BatchOutput, entry: BatchTask | InvalidLine) -> None:
    if isinstance(entry, BatchTask):
        output.append_response(entry, 200, {"text": entry.custom_id})
    else:
        output.append_error(entry)


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


class TestBatchOutput:
    def test_lines_have_the_shape_that_openai_gives_them(self, tmp_path: Path) -> None:
        path = tmp_path / "out.jsonl"
        task, invalid = read_all(jsonl(record("a"), 5))
        assert isinstance(task, BatchTask)
        assert isinstance(invalid, InvalidLine)
        with BatchOutput(path) as output:
            output.append_response(task, 200, {"id": "req-9"})
            output.append_error(invalid)
        first, second = lines_of(path)
        assert first.pop("id") != second.pop("id")
        assert first == {
            "custom_id": "a",
            "response": {"status_code": 200, "request_id": "req-9", "body": {"id": "req-9"}},
            "error": None,
        }
        message = "line 2 is not a JSON object"
        error = {"code": "invalid_json_line", "message": message, "line": 2}
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
            output.append_response(task, 400, {"error": {"message": "no"}})
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

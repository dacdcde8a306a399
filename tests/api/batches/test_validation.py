"""What is told of an input that cannot be used."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest

from llamalane.api.batches.records import BatchError
from llamalane.api.batches.validation import MAX_ERRORS, InputRules, Verdict, check_input
from tests.api.batches.lines import jsonl, record

pytestmark = pytest.mark.anyio

RULES = InputRules("/v1/completions", ["tiny", "other"], max_items=3, max_line=500)


async def check(folder: Path, text: bytes, rules: InputRules = RULES) -> Verdict:
    source = folder / "input.jsonl"
    source.write_bytes(text)
    return await anyio.to_thread.run_sync(partial(check_input, source, rules))


async def test_an_input_that_can_be_used_is_counted(tmp_path: Path) -> None:
    text = jsonl(record("a"), record("b", body={"prompt": "x", "model": "other"}), record("c", body={"model": 5}))
    assert await check(tmp_path, b"\xef\xbb\xbf" + text + b"\n\n") == Verdict(3, ())


@pytest.mark.parametrize(
    ("text", "code", "param", "line", "message"),
    [
        (b"", "empty_file", None, None, "no items"),
        (b"\n  \n", "empty_file", None, None, "no items"),
        (b"hello", "invalid_json_line", None, 1, "line 1 is not JSON"),
        (jsonl(record("a")) + b'{"custom_id": "\xff"}', "invalid_json_line", None, 2, "line 2 is not JSON"),
        (jsonl([record("a")]), "invalid_json_line", None, 1, "not a JSON object"),
        (jsonl(record("a"), record("a")), "duplicate_custom_id", "custom_id", 2, "'a' too"),
        (jsonl({"custom_id": "a"}), "missing_required_parameter", "method", 1, "method is missing"),
        (jsonl(record("a", custom_id=None)), "invalid_type", "custom_id", 1, "custom_id must be a string"),
        (jsonl(record("a", body="x")), "invalid_type", "body", 1, "body must be an object"),
        (jsonl(record("a", method="GET")), "invalid_method", "method", 1, "must be POST; got 'GET'"),
        (jsonl(record("a", url="/v1/chat/completions")), "invalid_url", "url", 1, "must be /v1/completions, the"),
        (jsonl(record("a", body={"model": "gpt-9"})), "model_not_found", "body.model", 1, "has tiny, other"),
        (jsonl(record("a", body={"prompt": "x" * 500})), "line_too_long", None, 1, "longer than 500 bytes"),
        (jsonl(*map(record, "abcd")), "too_many_items", None, 4, "more than 3 items"),
    ],
)
async def test_a_mistake_is_told_with_its_line(
    tmp_path: Path, text: bytes, code: str, param: str | None, line: int | None, message: str
) -> None:
    [error] = (await check(tmp_path, text)).errors
    assert (error.code, error.param, error.line) == (code, param, line)
    assert message in error.message


async def test_all_mistakes_are_told_up_to_a_bound(tmp_path: Path) -> None:
    verdict = await check(tmp_path, jsonl(record("a", method="PUT", url="/"), 5, record("c")))
    assert [(error.code, error.line) for error in verdict.errors] == [
        ("invalid_method", 1),
        ("invalid_url", 1),
        ("invalid_json_line", 2),
    ]
    rules = InputRules("/v1/completions", ["tiny"], max_items=10 * MAX_ERRORS, max_line=500)
    assert len((await check(tmp_path, b"5\n" * 2 * MAX_ERRORS, rules)).errors) == MAX_ERRORS


async def test_long_values_are_not_told_in_full(tmp_path: Path) -> None:
    long: dict[str, Any] = {"method": "M" * 300, "url": "U" * 50}
    verdict = await check(tmp_path, jsonl(record("a", **long)))
    assert all(len(error.message) < 300 for error in verdict.errors)


async def test_a_check_ends_when_nobody_waits_for_it(tmp_path: Path) -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        await check(tmp_path, jsonl(record("a")))
    assert scope.cancelled_caught


def test_an_error_is_shown_as_openai_shows_it() -> None:
    shown = BatchError("a_code", "a message", "body", 3).describe()
    assert shown == {"code": "a_code", "message": "a message", "param": "body", "line": 3}

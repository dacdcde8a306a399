"""What the items of an input mean as a conversation, and which are refused."""

from __future__ import annotations

from typing import Any

import pytest

from llamalane.api.reply import Call, Turn
from llamalane.api.responses.items import MAX_ITEMS, read_input
from llamalane.errors import InvalidRequestError

USER = {"role": "user", "content": "hi"}
CALL = {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": '{"a": 1}'}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "2"}
THOUGHTS = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
SAID = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "phase": "final_answer",
    "content": [{"type": "output_text", "text": "Two.", "annotations": [], "logprobs": [], "parsed": None}],
}
CALLED = (Call("call_1", "f", '{"a": 1}'),)


def said(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


@pytest.mark.parametrize(
    ("value", "turns"),
    [
        ("hi", [Turn("user", "hi")]),
        ("", [Turn("user", "")]),
        ([USER], [Turn("user", "hi")]),
        ([{**USER, "type": "message", "status": None}], [Turn("user", "hi")]),
        ([{"role": "developer", "content": "Be brief."}, USER], [Turn("system", "Be brief."), Turn("user", "hi")]),
        ([said({"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"})], [Turn("user", "a\nb")]),
        ([{"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}], [Turn("assistant", "No.")]),
        ([SAID, SAID], [Turn("assistant", "Two."), Turn("assistant", "Two.")]),
        ([CALL, OUTPUT], [Turn("assistant", "", calls=CALLED), Turn("tool", "2", answers="call_1")]),
        ([CALL, {**OUTPUT, "output": [{"type": "input_text", "text": "2"}]}],
         [Turn("assistant", "", calls=CALLED), Turn("tool", "2", answers="call_1")]),
    ],
)  # fmt: skip
def test_items_are_turns(value: object, turns: list[Turn]) -> None:
    assert read_input(value) == turns


def test_thoughts_words_and_calls_are_one_turn_of_the_assistant() -> None:
    second = {**CALL, "call_id": "call_2"}
    results = [OUTPUT, {**OUTPUT, "call_id": "call_2"}]
    assert read_input([USER, THOUGHTS, SAID, CALL, second, *results, THOUGHTS, SAID]) == [
        Turn("user", "hi"),
        Turn("assistant", "Two.", reasoning="Hm.", calls=(*CALLED, Call("call_2", "f", '{"a": 1}'))),
        Turn("tool", "2", answers="call_1"),
        Turn("tool", "2", answers="call_2"),
        Turn("assistant", "Two.", reasoning="Hm."),
    ]


def test_what_follows_in_another_order_is_another_turn() -> None:
    assert read_input([CALL, SAID, THOUGHTS, THOUGHTS]) == [
        Turn("assistant", "", calls=CALLED),
        Turn("assistant", "Two."),
        Turn("assistant", "", reasoning="Hm.\nHm."),
    ]


def test_a_summary_counts_where_there_are_no_other_thoughts() -> None:
    summary = [{"type": "summary_text", "text": "Short."}]
    assert read_input([{**THOUGHTS, "summary": summary}, SAID])[0].reasoning == "Hm."
    assert read_input([{"type": "reasoning", "summary": summary}, SAID])[0].reasoning == "Short."


def test_thoughts_that_are_empty_leave_no_turn() -> None:
    assert read_input([USER, {"type": "reasoning", "summary": []}, USER]) == [Turn("user", "hi"), Turn("user", "hi")]


@pytest.mark.parametrize(
    ("value", "param"),
    [
        (None, ""),
        (5, ""),
        ({}, ""),
        ([], ""),
        ([{"type": "reasoning", "summary": []}], ""),
        ([USER] * (MAX_ITEMS + 1), ""),
        (["hi"], "[0]"),
        ([None], "[0]"),
        ([{}], "[0].type"),
        ([{"type": 5}], "[0].type"),
        ([{"type": "item_reference", "id": "msg_1"}], "[0]"),
        ([{"type": "web_search_call", "id": "ws_1"}], "[0].type"),
        ([{"type": "computer_call_output"}], "[0].type"),
        ([{"type": "mcp_call"}], "[0].type"),
        ([{"role": "tool", "content": "x"}], "[0].role"),
        ([{"role": "user"}], "[0].content"),
        ([{"role": "user", "content": None}], "[0].content"),
        ([{"role": "user", "content": 5}], "[0].content"),
        ([USER, {**USER, "name": "ann"}], "[1].name"),
        ([USER, {**USER, "colour": "red"}], "[1].colour"),
        ([said({"type": "input_image", "image_url": "x"})], "[0].content[0]"),
        ([said({"type": "input_text", "text": "a"}, {"type": "input_file", "file_id": "x"})], "[0].content[1]"),
        ([said({"type": "input_audio", "input_audio": {}})], "[0].content[0]"),
        ([said({"type": "input_text"})], "[0].content[0].text"),
        ([said({"type": "input_text", "text": 5})], "[0].content[0].text"),
        ([said({"type": "input_text", "text": "a", "x": 1})], "[0].content[0].x"),
        ([{"role": "user", "content": ["a"]}], "[0].content[0]"),
        ([{**CALL, "call_id": ""}], "[0].call_id"),
        ([{**CALL, "name": ""}], "[0].name"),
        ([{**CALL, "arguments": {}}], "[0].arguments"),
        ([{**CALL, "namespace": "x"}], "[0].namespace"),
        ([OUTPUT], "[0].call_id"),
        ([OUTPUT, CALL], "[0].call_id"),
        ([CALL, {**OUTPUT, "call_id": "call_2"}], "[1].call_id"),
        ([CALL, {**OUTPUT, "output": {}}], "[1].output"),
        ([CALL, {**OUTPUT, "output": [{"type": "input_image"}]}], "[1].output[0]"),
        ([{"type": "reasoning", "summary": [], "encrypted_content": "xyz"}], "[0].encrypted_content"),
        ([{"type": "reasoning", "content": [{"type": "output_text", "text": "x"}]}], "[0].content[0]"),
        ([{"type": "reasoning", "summary": 5}], "[0].summary"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(value: object, param: str) -> None:
    with pytest.raises(InvalidRequestError, match="input") as caught:
        read_input(value)
    assert caught.value.param == f"input{param}"

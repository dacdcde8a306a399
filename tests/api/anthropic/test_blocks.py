"""Messages in content blocks become turns."""

from __future__ import annotations

from typing import Any

import pytest

from llamalane.api.anthropic.blocks import BlocksMessage, check_messages, read_turns
from llamalane.api.reply import Call, Turn
from llamalane.errors import InvalidRequestError

USE: dict[str, Any] = {"type": "tool_use", "id": "call_1", "name": "f", "input": {"città": 1}}
RESULT: dict[str, Any] = {"type": "tool_result", "tool_use_id": "call_1", "content": "Rain"}


def text(words: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **fields}


def turns(*messages: tuple[str, Any], system: Any = ()) -> list[Turn]:
    read = [BlocksMessage.model_validate({"role": role, "content": content}) for role, content in messages]
    check_messages(read)
    [spoken] = [BlocksMessage.model_validate({"role": "system", "content": list(system)})]
    return read_turns(spoken.content, read)


def test_a_text_is_a_block() -> None:
    assert turns(("user", "Hi"), ("assistant", [text("Ho")])) == [Turn("user", "Hi"), Turn("assistant", "Ho")]


def test_texts_are_joined_and_marks_of_caches_ignored() -> None:
    blocks = [text("a", cache_control={"type": "ephemeral", "ttl": "1h"}), text("b", citations=None)]
    assert turns(("user", blocks), system=blocks) == [Turn("system", "a\nb"), Turn("user", "a\nb")]


def test_messages_of_one_role_in_a_row_are_one_turn() -> None:
    made = turns(("user", "a"), ("user", "b"), ("assistant", [text("c"), USE]), ("assistant", "d"))
    assert made == [Turn("user", "a\nb"), Turn("assistant", "c\nd", calls=(Call("call_1", "f", '{"città": 1}'),))]


def test_the_system_may_speak_in_between() -> None:
    assert turns(("user", "a"), ("system", "b"), ("user", "c"), system=[text("s")]) == [
        Turn("system", "s"),
        Turn("user", "a"),
        Turn("system", "b"),
        Turn("user", "c"),
    ]


def test_what_tools_answer_are_turns_of_their_own() -> None:
    second = {**RESULT, "tool_use_id": "call_2", "content": [text("a"), text("b")]}
    assert turns(("user", "x"), ("assistant", [USE]), ("user", [RESULT, second, text("And?")]))[2:] == [
        Turn("tool", "Rain", answers="call_1"),
        Turn("tool", "a\nb", answers="call_2"),
        Turn("user", "And?"),
    ]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({}, "Rain"),
        ({"is_error": False}, "Rain"),
        ({"is_error": True}, "Error: Rain"),
        ({"is_error": True, "content": None}, "Error"),
        ({"content": []}, ""),
    ],
)
def test_a_tool_s_error_is_told_as_one(fields: dict[str, Any], told: str) -> None:
    assert turns(("user", [{**RESULT, **fields}])) == [Turn("tool", told, answers="call_1")]


def test_thoughts_go_back_to_the_template_and_redacted_ones_do_not() -> None:
    blocks = [
        {"type": "thinking", "thinking": "Hm.", "signature": ""},
        {"type": "redacted_thinking", "data": "x"},
        text("Yes."),
    ]
    assert turns(("user", "x"), ("assistant", blocks))[1] == Turn("assistant", "Yes.", reasoning="Hm.")


@pytest.mark.parametrize(
    ("role", "content", "param"),
    [
        ("user", [{"type": "image", "source": {"type": "url", "url": "http://x/y.png"}}], "messages[0].content[0]"),
        ("user", [text("x"), {"type": "document", "source": {}}], "messages[0].content[1]"),
        ("user", [{"type": "search_result", "source": "x", "title": "y", "content": []}], "messages[0].content[0]"),
        ("user", [{"type": "container_upload", "file_id": "x"}], "messages[0].content[0]"),
        ("assistant", [{"type": "server_tool_use", "id": "a", "name": "b", "input": {}}], "messages[0].content[0]"),
        ("user", [{**RESULT, "content": [{"type": "image", "source": {}}]}], "messages[0].content[0].content[0]"),
        ("user", [{**RESULT, "content": [RESULT]}], "messages[0].content[0].content[0]"),
        ("user", [USE], "messages[0].content[0]"),
        ("system", [RESULT], "messages[0].content[0]"),
        ("assistant", [RESULT], "messages[0].content[0]"),
        ("user", [{"type": "thinking", "thinking": "x"}], "messages[0].content[0]"),
        ("user", [{"type": "text"}], "messages[0].content[0].text"),
        ("assistant", [{**USE, "input": None}], "messages[0].content[0].input"),
        ("assistant", [{"type": "thinking"}], "messages[0].content[0].thinking"),
        ("user", [{"type": "tool_result"}], "messages[0].content[0].tool_use_id"),
        ("user", [text("x", colour="red")], "messages[0].content[0].colour"),
        ("user", [text("x", thinking="y")], "messages[0].content[0].thinking"),
        ("user", [text("x", citations=[{"type": "char_location"}])], "messages[0].content[0].citations"),
        ("assistant", [{**USE, "caller": {"type": "code"}}], "messages[0].content[0].caller"),
        ("user", [], "messages[0].content"),
        ("assistant", [], "messages[0].content"),
    ],
)
def test_what_is_not_supported_is_named(role: str, content: Any, param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        turns((role, content), ("user", "x"))
    assert caught.value.param == param
    assert param in str(caught.value)


def test_what_clients_send_back_of_an_answer_is_taken() -> None:
    blocks = [text("x", citations=[]), {**USE, "caller": {"type": "direct"}, "toolset_name": None, "text": None}]
    assert turns(("user", "a"), ("assistant", blocks))[1].calls == (Call("call_1", "f", '{"città": 1}'),)

"""Whatever a model writes, and however it comes in pieces, the reply is the same, and nothing of it is lost."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamalane.api.reply import Reply, ReplyReader, ToolFormat, collect
from llamalane.api.reply.formats import TAGS
from llamalane.api.reply.sink import Sink
from llamalane.api.reply.thinking import Thinking, ThoughtReader
from tests.api.reply.recorded import CALLED, NAMES, NOT_CALLED, Recorded, calls

TAG = TAGS["think"]
FORMATS = st.sampled_from(ToolFormat)
WORDS = (
    *("<tool_call>", "</tool_call>", "<think>", "</think>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    *('{"name": "get_time", "arguments": {"zone": ["}", 1]}}', '{"name": "get_time", "parameters": {}}', "get_time"),
    *('"name"', '"get_time"', '"arguments"', '"parameters"', "{", "}", "[", "]", ":", ",", ";", '"', "\\", "null", "5"),
    *("hello", " ", "\n", "<", "😀", "\u2028"),
)
TEXTS = st.lists(st.sampled_from(WORDS), max_size=14).map("".join)


def reader_of(format: ToolFormat | None, begins: Thinking = Thinking.POSSIBLE, *, single: bool = False) -> ReplyReader:
    numbers = itertools.count()
    sink = Sink(lambda: f"id{next(numbers)}", single=single)
    thoughts = ThoughtReader(TAG, begins)
    return ReplyReader(thoughts, None if format is None else format.reader(sink, NAMES))


def read_in_pieces(reader: ReplyReader, pieces: Sequence[str]) -> Reply:
    events = [event for piece in pieces for event in reader.feed(piece)]
    return collect([*events, *reader.end()])


@st.composite
def pieces_of(draw: st.DrawFn, text: str) -> list[str]:
    cuts = sorted(draw(st.sets(st.integers(0, len(text)), max_size=12)))
    return [text[start:end] for start, end in itertools.pairwise([0, *cuts, len(text)])]


@pytest.mark.parametrize("recorded", CALLED, ids=lambda recorded: recorded.text[:40])
def test_recorded_calls_are_read(recorded: Recorded) -> None:
    assert reader_of(recorded.format).read(recorded.text) == recorded.reply


@pytest.mark.parametrize("recorded", CALLED, ids=lambda recorded: recorded.text[:40])
def test_letter_by_letter_they_are_the_same(recorded: Recorded) -> None:
    assert read_in_pieces(reader_of(recorded.format), list(recorded.text)) == recorded.reply


@given(recorded=st.sampled_from(CALLED), data=st.data())
def test_in_any_pieces_they_are_the_same(recorded: Recorded, data: st.DataObject) -> None:
    pieces = data.draw(pieces_of(recorded.text))
    assert read_in_pieces(reader_of(recorded.format), pieces) == recorded.reply


@pytest.mark.parametrize(("format", "text"), NOT_CALLED)
def test_what_is_no_call_is_content_to_the_letter(format: ToolFormat, text: str) -> None:
    assert reader_of(format).read(text) == Reply(text)
    assert read_in_pieces(reader_of(format), list(text)) == Reply(text)


@given(format=FORMATS, begins=st.sampled_from(Thinking), single=st.booleans(), text=TEXTS, data=st.data())
def test_any_text_is_read_alike_in_any_pieces(
    format: ToolFormat, begins: Thinking, single: bool, text: str, data: st.DataObject
) -> None:
    whole = reader_of(format, begins, single=single).read(text)
    assert read_in_pieces(reader_of(format, begins, single=single), data.draw(pieces_of(text))) == whole
    assert read_in_pieces(reader_of(format, begins, single=single), list(text)) == whole


@given(format=FORMATS, text=TEXTS)
def test_text_without_a_call_is_content_as_it_is(format: ToolFormat, text: str) -> None:
    reply = reader_of(format, Thinking.NONE).read(text)
    assert reply.calls or reply.content == text


@given(text=st.text() | TEXTS, begins=st.sampled_from(Thinking), data=st.data())
def test_thoughts_and_answer_hold_all_but_space_and_tags(text: str, begins: Thinking, data: st.DataObject) -> None:
    reply = read_in_pieces(reader_of(None, begins), data.draw(pieces_of(text)))
    rest = text
    for tag in (TAG.open, TAG.close):
        rest = rest.replace(tag, "")
    said = (reply.reasoning + reply.content).replace(TAG.open, "").replace(TAG.close, "")
    assert "".join(said.split()) == "".join(rest.split())


@pytest.mark.parametrize(
    ("begins", "text", "reply"),
    [
        (Thinking.POSSIBLE, "<think>\nHm.\n</think>\n\nYes.", Reply("Yes.", "Hm.")),
        (Thinking.POSSIBLE, "\n<think>Hm. </think> Yes. ", Reply("Yes. ", "Hm.")),
        (Thinking.POSSIBLE, "<think>\n\n</think>\n\nYes.", Reply("Yes.")),
        (Thinking.POSSIBLE, " Yes, <think> is a tag.", Reply(" Yes, <think> is a tag.")),
        (Thinking.POSSIBLE, "<thi", Reply("<thi")),
        (Thinking.POSSIBLE, "<think>Hm. </thi", Reply("", "Hm. </thi")),
        (Thinking.OPEN, "Hm.\n</think>\n\nYes.", Reply("Yes.", "Hm.")),
        (Thinking.OPEN, "<think>\nHm.\n</think>\n\nYes.", Reply("Yes.", "Hm.")),
        (Thinking.OPEN, "Hm, and so", Reply("", "Hm, and so")),
        (Thinking.OPEN, "</think>Yes </think>.", Reply("Yes </think>.")),
        (Thinking.NONE, "<think>Hm.</think>Yes.", Reply("<think>Hm.</think>Yes.")),
    ],
)
def test_thoughts_are_told_apart(begins: Thinking, text: str, reply: Reply) -> None:
    assert reader_of(None, begins).read(text) == reply
    assert read_in_pieces(reader_of(None, begins), list(text)) == reply


def test_thoughts_can_be_left_out() -> None:
    reader = ReplyReader(ThoughtReader(TAG, Thinking.OPEN), None, show_thoughts=False)
    assert reader.read("Hm.</think>Yes.") == Reply("Yes.")


def test_a_call_is_told_before_it_is_complete() -> None:
    reader = reader_of(ToolFormat.HERMES, Thinking.NONE)
    told = [reader.feed(piece) for piece in ('<tool_call>{"name": "get_weather", "argum', 'ents": {"ci', 'ty": "O')]
    assert [len(events) for events in told] == [0, 2, 1]
    assert collect(event for events in told for event in events) == calls(("get_weather", '{"city": "O'))


@pytest.mark.parametrize("recorded", [one for one in CALLED if len(one.reply.calls) > 1])
def test_a_single_call_ends_the_reply(recorded: Recorded) -> None:
    reader = reader_of(recorded.format, single=True)
    events, done = [], []
    for letter in recorded.text:
        events += reader.feed(letter)
        done.append(reader.done)
    reply = collect([*events, *reader.end()])
    assert reply.calls == recorded.reply.calls[:1]
    first, second = (recorded.text.index(call.arguments) for call in recorded.reply.calls[:2])
    assert not done[first + len(reply.calls[0].arguments) - 2]
    assert done[second]


def test_an_endless_row_of_unfinished_calls_is_read_in_no_time() -> None:
    for format, text in (
        (ToolFormat.HERMES, '<tool_call>{"x":['),
        (ToolFormat.HERMES, '<tool_call>{"x": "'),
        (ToolFormat.MISTRAL, '[TOOL_CALLS][{"x":['),
        (ToolFormat.LLAMA3_JSON, '{"x":{'),
    ):
        whole = text * 20_000
        assert reader_of(format, Thinking.NONE).read(whole) == Reply(whole)


@pytest.mark.parametrize("name", ['"\\ud800"', "[" * 100_000, "1" * 10_000, '"a" "b"', "{}", "tru"])
def test_what_cannot_be_a_name_is_no_call(name: str) -> None:
    text = f'<tool_call>{{"name": {name}, "arguments": {{}}}}</tool_call>'
    assert not reader_of(ToolFormat.HERMES).read(text).calls

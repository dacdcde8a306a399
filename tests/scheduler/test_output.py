"""Tokens become text piece by piece; whatever the pieces, the text and its cut are the same."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from llamalane.scheduler.output import OutputText
from llamalane.streams.llama import Detokenizer

Pieces = list[str]

letters = st.text("abc", max_size=12)
stop_strings = st.lists(st.text("abc", min_size=1, max_size=4), max_size=3)
pieces = st.lists(st.text("abc", max_size=4), max_size=8)


class Script:
    """Decodes token i as the i-th piece, and holds a tail back until the end."""

    def __init__(self, pieces: Sequence[str], tail: str = "") -> None:
        self._pieces = pieces
        self._tail = tail

    def add(self, token: int) -> str:
        return self._pieces[token]

    def flush(self) -> str:
        tail, self._tail = self._tail, ""
        return tail


def cut(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """Read `text` letter by letter up to the first end of a stop string; return what stands before it."""
    for end in range(1, len(text) + 1):
        met = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if met:
            return text[: end - max(met)], True
    return text, False


def write(output: OutputText, count: int) -> Pieces:
    """Add tokens until a stop string is met, as a request does; return what was shown for each."""
    shown = []
    for token in range(count):
        shown.append(output.add(token))
        if output.stopped:
            break
    return shown


@given(pieces=pieces, tail=letters, stops=stop_strings)
@example(pieces=["ab", "c"], tail="", stops=["abc", "b"])
@example(pieces=["abc"], tail="", stops=["abc", "b"])
def test_any_split_gives_the_same_cut_as_the_whole_text(pieces: Pieces, tail: str, stops: list[str]) -> None:
    expected, stopped = cut("".join(pieces) + tail, stops)
    output = OutputText(Script(pieces, tail), stops)
    shown = write(output, len(pieces))
    shown.append(output.finish())
    assert "".join(shown) == output.text == expected
    assert output.stopped == stopped


@given(pieces=pieces, stops=stop_strings)
def test_text_is_held_back_only_while_it_may_become_a_stop_string(pieces: Pieces, stops: list[str]) -> None:
    output = OutputText(Script(pieces), stops)
    shown = ""
    for token in range(len(pieces)):
        shown += output.add(token)
        if output.stopped:
            break
        held = "".join(pieces[: token + 1])[len(shown) :]
        assert held == "" or any(stop.startswith(held) and stop != held for stop in stops)


@given(pieces=pieces, tail=letters, stops=stop_strings)
def test_the_tail_comes_once(pieces: Pieces, tail: str, stops: list[str]) -> None:
    output = OutputText(Script(pieces, tail), stops)
    write(output, len(pieces))
    output.finish()
    before = output.text
    assert output.finish() == ""
    assert output.text == before


@given(data=st.text(max_size=6).map(str.encode) | st.binary(max_size=12), split=st.integers(1, 3))
def test_bytes_come_out_as_whole_characters(data: bytes, split: int) -> None:
    parts = [data[at : at + split] for at in range(0, len(data), split)]
    output = OutputText(Detokenizer(parts))
    shown = [output.add(token) for token in range(len(parts))]
    for piece in shown:
        piece.encode()  # no half characters
    shown.append(output.finish())
    assert "".join(shown) == data.decode(errors="replace")


@given(text=st.text("añ€🙂", max_size=8), stops=st.lists(st.text("añ€🙂", min_size=1, max_size=3), max_size=2))
def test_a_stop_string_is_found_across_tokens_that_split_its_characters(text: str, stops: list[str]) -> None:
    parts = [bytes([byte]) for byte in text.encode()]
    output = OutputText(Detokenizer(parts), stops)
    write(output, len(parts))
    output.finish()
    assert (output.text, output.stopped) == cut(text, stops)


def test_an_unfinished_character_may_end_as_a_stop_string() -> None:
    output = OutputText(Detokenizer([b"ab\xe2"]), ["b\ufffd"])
    assert output.add(0) == "a"
    assert output.finish() == ""
    assert (output.text, output.stopped) == ("a", True)


@pytest.mark.parametrize(
    ("pieces", "stops", "met"),
    [
        (["one", ". two"], ["two", "."], "."),
        (["x nev", "", "er"], ["ever", "never", "r!"], "never"),
        (["abc"], ["bc", "b"], "b"),
        (["abc"], ["d"], None),
    ],
)
def test_the_stop_string_that_was_met_is_known(pieces: Pieces, stops: list[str], met: str | None) -> None:
    output = OutputText(Script(pieces), stops)
    write(output, len(pieces))
    output.finish()
    assert output.met == met


def test_nothing_is_shown_after_a_stop_string() -> None:
    output = OutputText(Script(["one.", " two", " three"], "four"), ["."])
    assert output.add(0) == "one"
    assert output.stopped
    assert [output.add(1), output.add(2), output.finish()] == ["", "", ""]
    assert output.text == "one"


def test_without_stop_strings_everything_is_shown_at_once() -> None:
    output = OutputText(Script(["nev", "", "e", "r"]))
    assert [output.add(token) for token in range(4)] == ["nev", "", "e", "r"]


def test_what_was_held_back_is_shown_once_it_cannot_become_a_stop_string() -> None:
    output = OutputText(Script(["x nev", "", "e", "n"]), ["never"])
    assert [output.add(token) for token in range(4)] == ["x ", "", "", "neve"]
    assert output.finish() == "n"

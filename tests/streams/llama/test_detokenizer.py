from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llamalane.streams.llama import Detokenizer, Vocabulary

BYTES = [bytes([value]) for value in range(256)]
"""A vocabulary of bytes: token and byte are the same number."""


def pieces_of(data: bytes) -> list[str]:
    detokenizer = Detokenizer(BYTES)
    return [*(detokenizer.add(byte) for byte in data), detokenizer.flush()]


def test_a_character_split_over_tokens_is_shown_when_it_is_whole() -> None:
    assert pieces_of("a🙂b".encode()) == ["a", "", "", "", "🙂", "b", ""]


@settings(deadline=None)
@given(st.text(max_size=50), st.data())
def test_text_cut_anywhere_comes_back_whole(text: str, data: st.DataObject) -> None:
    encoded = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(encoded)), max_size=6)) | {0, len(encoded)})
    pieces = [encoded[start:end] for start, end in itertools.pairwise(cuts)]
    detokenizer = Detokenizer(pieces)
    shown = [detokenizer.add(token) for token in range(len(pieces))]
    assert "".join(shown) == text
    assert detokenizer.flush() == ""


@settings(deadline=None)
@given(st.binary(max_size=50))
def test_any_bytes_become_what_python_makes_of_them_as_a_whole(data: bytes) -> None:
    assert "".join(pieces_of(data)) == data.decode(errors="replace")


def test_bytes_that_will_never_be_a_character_are_shown_at_once() -> None:
    assert pieces_of(b"\xff\xfea") == ["\ufffd", "\ufffd", "a", ""]


def test_a_character_that_is_interrupted_is_given_up() -> None:
    assert pieces_of(b"\xf0\x9fa") == ["", "", "\ufffda", ""]


def test_what_is_held_back_is_flushed_once() -> None:
    detokenizer = Detokenizer(BYTES)
    assert detokenizer.add(0xE2) == detokenizer.add(0x82) == ""
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.flush() == ""


def test_a_nul_is_a_character_like_any_other() -> None:
    assert "".join(pieces_of(b"a\0b")) == "a\0b"


@pytest.mark.parametrize("text", ["Grüße", "日本語", "👩‍👩‍👧", " two  spaces\n"])
def test_a_model_s_own_tokens_come_back_one_by_one(vocabulary: Vocabulary, text: str) -> None:
    detokenizer = Detokenizer(vocabulary.pieces)
    tokens = vocabulary.tokenize(text, add_special=True, parse_special=False)
    assert "".join(detokenizer.add(token) for token in tokens) + detokenizer.flush() == text

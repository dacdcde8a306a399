from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llamalane.errors import InvalidRequestError
from llamalane.streams.llama import Model, ModelOptions, Vocabulary
from llamalane.streams.llama.vocabulary import encode
from tests.models.tiny_gguf import BOS, EOS

FIRST_BYTE = 3
"""The token of the byte 0; the other bytes follow."""


@pytest.fixture(scope="session")
def smollm2_vocabulary(smollm2: Path) -> Iterator[Vocabulary]:
    with Model(ModelOptions(path=smollm2)) as model:
        yield model.vocabulary


def tokenize(vocabulary: Vocabulary, text: str) -> list[int]:
    return vocabulary.tokenize(text, add_special=False, parse_special=False)


def text_of(vocabulary: Vocabulary, tokens: list[int]) -> str:
    return b"".join(vocabulary.pieces[token] for token in tokens).decode()


@settings(deadline=None)
@given(text=st.text())
def test_every_text_comes_back_as_it_was(model: Model, text: str) -> None:
    # SentencePiece writes a space as this character: it cannot tell the two apart.
    assert text_of(model.vocabulary, tokenize(model.vocabulary, text)) == text.replace("\u2581", " ")


# SmolLM2's vocabulary lacks six control characters and the highest planes; llama.cpp drops what it lacks.
@settings(deadline=None)
@given(text=st.text(st.characters(max_codepoint=0x1FFFF, exclude_categories=["Cs", "Cc"])))
@pytest.mark.smollm2
def test_every_text_comes_back_from_a_vocabulary_of_words(smollm2_vocabulary: Vocabulary, text: str) -> None:
    assert text_of(smollm2_vocabulary, tokenize(smollm2_vocabulary, text)) == text


def test_nul_bytes_do_not_end_a_text(vocabulary: Vocabulary) -> None:
    assert tokenize(vocabulary, "a\0\0b") == [FIRST_BYTE + byte for byte in b"a\0\0b"]


def test_an_empty_text_has_no_tokens_of_its_own(vocabulary: Vocabulary) -> None:
    assert tokenize(vocabulary, "") == []
    assert vocabulary.tokenize("", add_special=True, parse_special=False) == [BOS]


def test_a_long_text_is_read_to_its_end(vocabulary: Vocabulary) -> None:
    text = "0123456789" * 1_000
    tokens = tokenize(vocabulary, text)
    assert len(tokens) == len(text)
    assert text_of(vocabulary, tokens[-10:]) == "0123456789"


def test_what_the_model_wants_around_a_text_is_added_when_asked(vocabulary: Vocabulary) -> None:
    assert vocabulary.tokenize("a", add_special=True, parse_special=False) == [BOS, FIRST_BYTE + ord("a")]


def test_names_of_control_tokens_are_text_unless_asked(vocabulary: Vocabulary) -> None:
    assert vocabulary.tokenize("</s>", add_special=False, parse_special=True) == [EOS]
    assert tokenize(vocabulary, "</s>") == [FIRST_BYTE + byte for byte in b"</s>"]


@pytest.mark.parametrize("text", ["\ud800", "ab\udfff", "\ud83d!"])
def test_lone_surrogates_are_refused(vocabulary: Vocabulary, text: str) -> None:
    with pytest.raises(InvalidRequestError, match="not valid Unicode") as caught:
        tokenize(vocabulary, text)
    assert caught.value.param == "prompt"


def test_text_is_measured_in_utf_8() -> None:
    assert encode("aß🙂") == b"a\xc3\x9f\xf0\x9f\x99\x82"


def test_the_tables_hold_every_token(vocabulary: Vocabulary) -> None:
    assert len(vocabulary.pieces) == vocabulary.size == 260
    assert vocabulary.pieces[FIRST_BYTE : FIRST_BYTE + 256] == [bytes([byte]) for byte in range(256)]
    assert (vocabulary.bos, vocabulary.eos, vocabulary.adds_bos) == (BOS, EOS, True)
    assert vocabulary.end_of_generation == {EOS}


def test_control_tokens_are_shown_in_templates_only(vocabulary: Vocabulary) -> None:
    assert vocabulary.pieces[EOS] == b""
    assert (vocabulary.text_of(BOS), vocabulary.text_of(EOS), vocabulary.text_of(-1)) == ("<s>", "</s>", "")
    assert vocabulary.longest_piece == len(b"<unk>")


@pytest.mark.smollm2
def test_no_token_stands_for_more_than_the_longest_piece(smollm2_vocabulary: Vocabulary) -> None:
    longest = smollm2_vocabulary.longest_piece
    assert longest >= max(len(piece) for piece in smollm2_vocabulary.pieces)
    assert longest >= len(b"<|endoftext|>")


@settings(deadline=None)
@given(extra=st.integers(0, 3), rest=st.lists(st.integers(FIRST_BYTE, 100), max_size=4))
def test_a_model_that_wants_a_bos_gets_exactly_one(model: Model, extra: int, rest: list[int]) -> None:
    assert model.vocabulary.with_one_bos([BOS] * extra + rest) == [BOS, *rest]


@pytest.mark.parametrize("extra", [0, 1, 2, 3])
def test_a_model_that_wants_none_keeps_one_that_its_template_wrote(tiny_model: Path, extra: int) -> None:
    with Model(ModelOptions(path=tiny_model)) as model:
        model.vocabulary.adds_bos = False
        assert model.vocabulary.with_one_bos([BOS] * extra + [9, BOS]) == [BOS] * min(extra, 1) + [9, BOS]


def test_a_model_without_a_bos_is_left_alone(tiny_model: Path) -> None:
    with Model(ModelOptions(path=tiny_model)) as model:
        model.vocabulary.bos = -1
        assert model.vocabulary.with_one_bos([5, 6]) == [5, 6]
        assert model.vocabulary.with_one_bos([]) == []

"""Each piece of text comes with its own tokens, however it was cut."""

from __future__ import annotations

import codecs
import itertools
from collections.abc import Sequence

from hypothesis import example, given
from hypothesis import strategies as st

from llamalane.scheduler.logprobs import OutputLogprobs, OutputToken, PromptMeasurement
from llamalane.scheduler.output import OutputText
from llamalane.scheduler.spelling import Token, starts_in, text_of
from llamalane.streams import TokenScores
from llamalane.streams.llama import Detokenizer

Pieces = Sequence[bytes]

pieces = st.lists(
    st.text("abñ€🙂 ", min_size=1, max_size=2).map(str.encode)
    | st.binary(min_size=1, max_size=2)
    | st.sampled_from([b"", b"\xe2", b"\x82", b"\xac", b"\xf0\x9f", b"\x99\x82", b"\xc3", b"\xb1a"]),
    max_size=10,
)
stops = st.lists(st.sampled_from(["a", "ab", "ba", "€", "ñ", "\ufffd", "b\ufffd", "🙂a", " "]), max_size=2)


def speller(pieces: Pieces) -> list[Token]:
    return [
        Token(at, piece.decode(errors="backslashreplace"), piece) if piece else Token(at, "<control>", None)
        for at, piece in enumerate(pieces)
    ]


def scores(token: int) -> TokenScores:
    return TokenScores(token, -float(token + 1), ((token, -float(token + 1)),))


def characters(data: bytes) -> list[tuple[int, int]]:
    """Return which bytes each character of the text comes from; bytes that are none are told by the decoder."""
    broken: list[tuple[int, int]] = []

    def note(error: UnicodeError) -> tuple[str, int]:
        assert isinstance(error, UnicodeDecodeError)
        broken.append((error.start, error.end))
        return "\ufffd", error.end

    codecs.register_error("note-broken-bytes", note)
    data.decode(errors="note-broken-bytes")
    spans, at = [], 0
    for start, end in [*broken, (len(data), len(data))]:
        for letter in data[at:start].decode():
            spans.append((at, at + len(letter.encode())))
            at = spans[-1][1]
        if end > start:
            spans.append((start, end))
            at = end
    return spans


def write(pieces: Pieces, stop: Sequence[str]) -> tuple[list[tuple[str, tuple[OutputToken, ...]]], OutputLogprobs, int]:
    """Write tokens 0, 1, … until a stop string is met; returns what came out for each, and how many were written."""
    detokenizer = Detokenizer(pieces)
    output, spelled = OutputText(detokenizer, stop), speller(pieces)
    logprobs = OutputLogprobs(spelled.__getitem__, detokenizer.gap_before)
    shown, count = [], 0
    for token in range(len(pieces)):
        logprobs.add(scores(token), held=output.held)
        text = output.add(token)
        shown.append((text, logprobs.release(text)))
        count += 1
        if output.stopped:
            return shown, logprobs, count
    text = output.finish()
    return [*shown, (text, logprobs.release(text))], logprobs, count


@given(pieces=pieces, stop=stops)
@example(pieces=[b"x ab", b"c"], stop=["abc"])
@example(pieces=[b"\xe2", b"a"], stop=["a"])
@example(pieces=[b"\xef\xbf", b"\xbd", b"a"], stop=["a"])
@example(pieces=[b"a", b"", b"\xe2\x82", b"\xac", b""], stop=[])
@example(pieces=[b"\xc2", b"", b"\x80"], stop=[])
@example(pieces=[b"\xed", b"\xa0"], stop=[])
@example(pieces=[b"\xed", b"\xa0", b"a"], stop=["a"])
@example(pieces=[b"\xed\xa0", b"\x80", b"\xf0\x9f", b"\x98\x80"], stop=[])
def test_exactly_the_tokens_of_the_text_come_each_with_its_first_character(pieces: Pieces, stop: list[str]) -> None:
    shown, logprobs, count = write(pieces, stop)
    text = "".join(piece for piece, _ in shown)
    offsets = [0, *itertools.accumulate(map(len, pieces))]
    spans = characters(b"".join(pieces[:count]))
    expected = []
    for token in range(count):
        begin, end = offsets[token], offsets[token + 1]
        touched = [number for number, (first, last) in enumerate(spans) if first < end and begin < last]
        if begin < end and touched and touched[0] < len(text):
            expected.append((token, touched[0]))
    assert [(token.id, token.start) for _, tokens in shown for token in tokens] == expected
    assert [(token.id, token.start) for token in logprobs.released] == expected
    at = 0
    for piece, tokens in shown:
        assert all(at <= token.start < at + len(piece) for token in tokens)
        at += len(piece)
    assert logprobs.cumulative == -sum(range(1, count + 1))


@given(pieces=pieces)
def test_a_token_without_text_at_the_end_is_told_apart(pieces: Pieces) -> None:
    _, logprobs, _ = write([*pieces, b""], [])
    ending = logprobs.ending
    assert ending is not None
    assert (ending.id, ending.text, ending.bytes) == (len(pieces), "<control>", None)
    assert ending.start == len(b"".join(pieces).decode(errors="replace"))
    _, logprobs, _ = write([*pieces, b"", b"x"], [])
    assert logprobs.ending is None


def test_tokens_are_spelled_with_their_alternatives() -> None:
    spelled = speller([b"a", b"\xe2\x82", b""])
    logprobs = OutputLogprobs(spelled.__getitem__, Detokenizer([b"a", b"\xe2\x82", b""]).gap_before)
    logprobs.add(TokenScores(0, -0.5, ((1, -0.25), (2, -0.75))), held=0)
    (token,) = logprobs.release("a")
    assert (token.id, token.text, token.bytes, token.logprob) == (0, "a", b"a", -0.5)
    assert [(other.text, other.bytes, other.logprob) for other in token.alternatives] == [
        ("\\xe2\\x82", b"\xe2\x82", -0.25),
        ("<control>", None, -0.75),
    ]


def test_a_prompt_is_complete_when_all_after_its_first_token_was_told() -> None:
    spelled = speller([b"a", b"b", b"c"])
    measurement = PromptMeasurement([2, 0, 1], spelled.__getitem__)
    assert (measurement.missing, measurement.result) == (range(1, 3), None)
    measurement.add([scores(0)])
    assert (measurement.missing, measurement.result) == (range(2, 3), None)
    measurement.add([scores(1)])
    assert not measurement.missing
    assert measurement.result is not None
    assert measurement.result.first == spelled[2]
    assert [(token.id, token.logprob) for token in measurement.result.rest] == [(0, -1.0), (1, -2.0)]


def test_a_prompt_of_one_token_is_complete_at_once() -> None:
    result = PromptMeasurement([1], speller([b"a", b"b"]).__getitem__).result
    assert result is not None
    assert (result.first.id, result.rest) == (1, ())


@given(pieces=pieces)
def test_tokens_are_found_in_the_text_that_they_make(pieces: Pieces) -> None:
    tokens = speller(pieces)
    text = text_of(tokens)
    written = [piece or b"<control>" for piece in pieces]
    offsets = [0, *itertools.accumulate(map(len, written))]
    spans = characters(b"".join(written))
    starts = starts_in(text, tokens)
    for token, start in enumerate(starts):
        first, last = spans[start]
        assert first < offsets[token + 1]
        assert offsets[token] < last
        assert start == 0 or spans[start - 1][1] <= offsets[token], "it begins in a character before"


def test_control_tokens_need_not_stand_in_the_text() -> None:
    tokens = [Token(1, "<s>", None), Token(2, "ab", b"ab"), Token(3, "</s>", None), Token(4, "é", "é".encode())]
    assert starts_in("abé", tokens) == [0, 0, 2, 2]
    assert starts_in("<s>ab</s>é", tokens) == [0, 3, 5, 9]


def test_a_blank_that_the_tokenizer_has_put_before_the_text_counts_for_nothing() -> None:
    tokens = [Token(1, "<s>", None), Token(2, " ab", b" ab"), Token(3, " c", b" c")]
    assert starts_in("ab c", tokens) == [0, 0, 2]
    assert starts_in(" ab c", tokens) == [0, 0, 3]


def test_no_token_begins_beyond_a_text_that_was_changed() -> None:
    tokens = [Token(number, "ab", b"ab") for number in range(3)]
    assert starts_in("ab", tokens) == [0, 2, 2]

"""The books of a request that goes on when its sequence is full."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from llamalane.scheduler.request import Request
from llamalane.streams import ContextShift, FinishReason
from tests.scheduler.building import RequestMaker

LIMIT, KEEP = 12, 2


def make(prompt: str = "prompt", max_tokens: int = 100, keep: int = KEEP) -> Request:
    request = RequestMaker().make(prompt=prompt, max_tokens=max_tokens)
    request.shift = ContextShift(LIMIT, keep)
    return request


def write(request: Request, text: str) -> None:
    for letter in text:
        assert request.accept(ord(letter), None, 0.0) is None


def spelled(request: Request) -> str:
    return "".join(map(chr, request.history))


def test_it_loses_half_of_what_follows_its_first_tokens_when_it_is_full() -> None:
    request = make()
    write(request, "abcde")
    assert (spelled(request), request.dropped) == ("promptabcde", 0)
    write(request, "f")
    assert (spelled(request), request.dropped, request.length) == ("pr" + "abcdef", 4, 8)
    write(request, "ghij")
    assert (spelled(request), request.dropped, request.length) == ("pr" + "efghij", 8, 8)


def test_its_text_and_what_it_was_given_stay_whole() -> None:
    request = make()
    write(request, "abcdefghijklmnop")
    request.admitted_at = 0.0
    result = request.result(FinishReason.LENGTH, 1.0)
    assert result.text == "abcdefghijklmnop"
    assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (6, 16)


def test_the_last_token_drops_nothing() -> None:
    request = make(max_tokens=6)
    write(request, "abcde")
    assert request.accept(ord("f"), FinishReason.LENGTH, 0.0) is FinishReason.LENGTH
    assert request.dropped == 0


def test_it_never_needs_more_cells_than_a_sequence_has() -> None:
    request = make()
    assert request.cells == LIMIT
    write(request, "abcdefghijklmnop")
    assert request.next_cells == LIMIT


def test_nobody_goes_on_from_what_is_left() -> None:
    request = make()
    write(request, "abcde")
    assert not request.shifting
    write(request, "f")
    assert request.shifting
    assert request.cells_filled() == ()


@given(keep=st.integers(0, LIMIT // 2), count=st.integers(0, 200))
def test_it_is_never_full_and_never_shorter_than_half(keep: int, count: int) -> None:
    request = make(keep=keep, max_tokens=1000)
    for number in range(count):
        request.accept(65 + number % 26, None, 0.0)
        assert request.length == len(request.history) < LIMIT
    assert request.history[:keep] == list(request.tokens[:keep])
    assert request.history[keep:] == [*request.tokens, *request.generated][keep + request.dropped :]
    assert len(request.history) >= min(len(request.tokens) + count, LIMIT // 2)

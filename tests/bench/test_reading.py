"""Recorded answers, taken apart: every time is the time of the block that completed it."""

from __future__ import annotations

import pytest

from llamalane.bench.exchange import Recording
from llamalane.bench.reading import read
from tests.bench.fake_server import DONE, END, chat_token, chunk, event, head, token, usage


def recorded(*blocks: tuple[float, bytes], ended: float | None = 100.0, fault: str | None = None) -> Recording:
    return Recording(3, 2, 10.0, list(blocks), ended, fault)


def test_tokens_have_the_times_of_their_blocks() -> None:
    record = read(
        recorded(
            (11.0, head()),
            (12.0, chunk(token("a"))),
            (13.5, chunk(token("b"))),
            (14.0, chunk(usage(prompt=7, output=2, cached=5) + DONE) + END),
        )
    )
    assert record.error is None
    assert not record.cut
    assert (record.client, record.status) == (3, 200)
    assert record.token_times == (12.0, 13.5)
    assert record.time_to_first_token == 2.0
    assert record.gaps == [1.5]
    assert record.ended == 14.0
    assert (record.prompt_tokens, record.cached_tokens) == (7, 5)
    assert (record.asked_tokens, record.output_tokens) == (2, 2)


def test_an_event_in_two_blocks_came_when_it_was_whole() -> None:
    whole = chunk(token("split"))
    record = read(recorded((11.0, head() + whole[:9]), (15.0, whole[9:] + chunk(DONE) + END)))
    assert record.token_times == (15.0,)
    assert record.error is None


def test_several_events_in_one_block_came_together() -> None:
    record = read(recorded((11.0, head() + chunk(token("a") + token("b")) + chunk(DONE))))
    assert record.token_times == (11.0, 11.0)
    assert record.gaps == [0.0]


def test_a_chat_answer_starts_with_its_first_text() -> None:
    blocks = (chat_token(None), chat_token(""), chat_token("hi"), DONE)
    times = (11.0, 12.0, 13.0, 14.0)
    record = read(recorded((10.5, head()), *((t, chunk(b)) for t, b in zip(times, blocks, strict=True)), (14.0, END)))
    assert record.token_times == (13.0,)


def test_comments_between_events_are_no_tokens() -> None:
    record = read(recorded((11.0, head() + chunk(b": ping\n\n" + token("a") + DONE) + END)))
    assert record.token_times == (11.0,)
    assert record.error is None


def test_an_answer_without_usage_leaves_its_counts_open() -> None:
    record = read(recorded((11.0, head() + chunk(token("a") + DONE) + END)))
    assert record.output_tokens is None
    assert record.prompt_tokens is None


@pytest.mark.parametrize(
    ("blocks", "fault", "error"),
    [
        (
            [b'HTTP/1.1 429 Too Many\r\ncontent-length: 38\r\n\r\n{"error":{"message":"the queue is full'],
            None,
            'HTTP 429: {"error":{"message":"the queue is full',
        ),
        (
            [head("429 Too Many Requests", "application/json"), chunk(b'{"error":{"message":"full"}}') + END],
            None,
            "HTTP 429: full",
        ),
        ([b"HTTP/1.1 502 Bad Gateway\r\n\r\n", b"try\nlater"], None, "HTTP 502: try\nlater"),
        (
            [head() + chunk(token("a")), chunk(event({"error": {"message": "lane lost"}}))],
            None,
            "while streaming: lane lost",
        ),
        ([head() + chunk(token("a"))], None, "HTTP 200: the stream ended early"),
        ([head() + chunk(b"data: {\n\n")], None, "an event is not JSON: b' {'"),
        ([b"SSH-2.0-OpenSSH\r\n\r\n"], None, "not HTTP: illegal status line"),
        ([], None, "the connection was closed before an answer"),
        ([], "no end within 5 s", "no end within 5 s"),
    ],
)
def test_what_goes_wrong_is_told(blocks: list[bytes], fault: str | None, error: str) -> None:
    record = read(recorded(*((11.0, block) for block in blocks), fault=fault))
    assert record.error is not None
    assert record.error.startswith(error)


def test_a_stopped_client_leaves_a_cut_answer_without_an_error() -> None:
    record = read(recorded((11.0, head()), (12.0, chunk(token("a"))), ended=None))
    assert record.cut
    assert record.error is None
    assert record.token_times == (12.0,)

"""Closed-loop clients against a server that answers as told."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import pytest

from llamalane.bench.exchange import Target
from llamalane.bench.load import ClosedLoop, LoadResult
from llamalane.bench.workload import Span, Workload
from llamalane.errors import ConfigError
from tests.bench.fake_server import Answer, Asked, chunk, event, fake_server, full_answer, head, token

pytestmark = pytest.mark.anyio

SHORT = Workload(words=Span(2, 6), output_tokens=Span(3, 9))


async def load(target: Target, *, clients: int = 3, requests: int = 4, seed: int = 1) -> LoadResult:
    return await ClosedLoop(target, SHORT, clients=clients, seed=seed).run(requests=requests)


async def test_every_client_sends_its_requests_and_counts_its_tokens() -> None:
    async with fake_server(full_answer) as server:
        result = await load(server.target())
    assert [sum(record.client == client for record in result.records) for client in range(3)] == [4, 4, 4]
    assert all(record.error is None for record in result.records)
    for record in result.records:
        assert record.output_tokens == record.asked_tokens
        assert len(record.token_times) == record.asked_tokens
    summary = result.summary()
    assert (summary.requests, summary.cut, summary.errors, summary.wrong_length) == (12, 0, {}, 0)
    assert summary.generator_cpu > 0


async def test_first_tokens_are_timed_from_the_start_of_the_request() -> None:
    async with fake_server(full_answer) as server:
        result = await load(server.target(), clients=1, requests=5)
    for asked, record in zip(server.asked, result.records, strict=True):
        assert record.ended is not None
        # The first piece sent is the head of the answer; the second one is the first token.
        assert record.started < asked.read <= asked.sent[0] <= record.token_times[0] <= record.ended


async def test_a_client_sends_its_next_request_after_the_end_of_the_one_before() -> None:
    async with fake_server(full_answer) as server:
        result = await load(server.target(), clients=1)
    for earlier, later in zip(result.records, result.records[1:], strict=False):
        assert earlier.ended is not None
        assert earlier.ended <= later.started


async def test_requests_say_what_they_want() -> None:
    async with fake_server(full_answer) as server:
        target = server.target(priority=5, headers={"X-Priority": "5", "Authorization": "Bearer key"})
        await load(target, clients=1, requests=1)
    (asked,) = server.asked
    assert asked.path == "/v1/completions"
    assert asked.headers["authorization"] == "Bearer key"
    assert asked.headers["x-priority"] == "5"
    assert asked.body["priority"] == 5
    assert asked.body["model"] == "fake"
    assert asked.body["ignore_eos"] is True
    assert asked.body["stream_options"] == {"include_usage": True}
    assert asked.body["top_k"] == 40


async def test_the_priority_is_left_out_unless_given() -> None:
    async with fake_server(full_answer) as server:
        await load(server.target(), clients=1, requests=1)
    assert "priority" not in server.asked[0].body


async def test_a_server_without_ignore_eos_is_told_the_least_number_of_tokens() -> None:
    async with fake_server(full_answer) as server:
        await load(server.target(min_tokens=True), clients=1, requests=1)
    (asked,) = server.asked
    assert asked.body["min_tokens"] == asked.body["max_tokens"]


async def test_chat_has_its_own_endpoint() -> None:
    async with fake_server(full_answer) as server:
        await load(server.target("/llm", chat=True), clients=1, requests=1)
    (asked,) = server.asked
    assert asked.path == "/llm/v1/chat/completions"
    (message,) = asked.body["messages"]
    assert message["role"] == "user"
    assert "prompt" not in asked.body


async def test_two_runs_ask_the_same_only_with_the_same_seed() -> None:
    async with fake_server(full_answer) as server:
        for seed in (1, 1, 2):
            await load(server.target(), clients=1, requests=2, seed=seed)
    prompts = [asked.body["prompt"] for asked in server.asked]
    assert prompts[0:2] == prompts[2:4]
    assert set(prompts[0:2]).isdisjoint(prompts[4:6])


def refuse(asked: Asked) -> Sequence[bytes]:
    return [head("429 Too Many Requests", "application/json"), chunk(b'{"error":{"message":"full"}}')]


def come_again(seconds: str) -> bytes:
    head = "HTTP/1.1 429 Too Many Requests\r\ncontent-length: 4\r\nretry-after: "
    return f"{head}{seconds}\r\n\r\nfull".encode()


def break_off(asked: Asked) -> Sequence[bytes]:
    return [head(), chunk(token("a")), chunk(event({"error": {"message": "lane lost"}}))]


@pytest.mark.parametrize(
    ("answer", "requests", "rejections", "errors"),
    [(refuse, 0, 6, {}), (break_off, 6, 0, {"while streaming: lane lost": 6})],
    ids=["refused", "broken off"],
)
async def test_errors_are_counted_and_clients_go_on(
    answer: Answer, requests: int, rejections: int, errors: dict[str, int]
) -> None:
    async with fake_server(answer) as server:
        summary = (await load(server.target(), clients=2, requests=3)).summary()
    assert (summary.requests, summary.rejections, summary.errors) == (requests, rejections, errors)


async def test_refused_clients_stay_away_as_long_as_they_are_told_and_ask_the_same_again() -> None:
    def answer(asked: Asked) -> Sequence[bytes]:
        return [come_again("0.05")] if len(server.asked) <= 2 else full_answer(asked)

    async with fake_server(answer) as server:
        result = await load(server.target(), clients=1, requests=2)
    refused, again, last, other = result.records
    assert [record.status for record in result.records] == [429, 429, 200, 200]
    assert refused.retry_after == 0.05
    for earlier, later in ((refused, again), (again, last)):
        assert earlier.ended is not None
        assert later.started - earlier.ended >= 0.05
    assert last.asked == refused.started
    assert other.asked == other.started
    bodies = [asked.body for asked in server.asked]
    assert bodies[0] == bodies[1] == bodies[2] != bodies[3]
    assert result.summary().rejections == 2


@pytest.mark.parametrize("told", ["soon", "Wed, 21 Oct 2026 07:28:00 GMT", "nan", "-5"])
async def test_clients_do_not_stay_away_when_the_time_cannot_be_read(told: str) -> None:
    def answer(asked: Asked) -> Sequence[bytes]:
        return [come_again(told)] if len(server.asked) == 1 else full_answer(asked)

    async with fake_server(answer) as server:
        result = await load(server.target(), clients=1, requests=2)
    assert result.summary().rejections == 1


async def test_refused_clients_are_stopped_while_they_stay_away() -> None:
    async with fake_server(lambda asked: [come_again("600")]) as server:
        result = await ClosedLoop(server.target(), SHORT, clients=3, seed=1).run(seconds=0.1)
    assert result.summary().rejections == 3


async def test_clients_without_a_server_give_up() -> None:
    async with fake_server(full_answer) as server:
        target = server.target()
    summary = (await load(target, clients=2, requests=50)).summary()
    assert summary.requests == 2
    assert all(error.startswith("the connection failed") for error in summary.errors)


async def test_a_silent_server_is_given_up() -> None:
    async with fake_server(lambda asked: [None]) as server:
        summary = (await load(server.target(timeout=0.05), clients=1, requests=3)).summary()
    assert summary.errors == {"no end within 0.05 s": 1}


async def test_an_answer_ends_although_its_connection_stays_open() -> None:
    async with fake_server(lambda asked: [*full_answer(asked), None]) as server:
        summary = (await load(server.target(timeout=30), clients=1, requests=3)).summary()
    assert (summary.requests, summary.errors) == (3, {})


async def test_a_stopped_run_cuts_what_is_under_way() -> None:
    def answer(asked: Asked) -> Sequence[bytes | None]:
        return full_answer(asked) if len(server.asked) <= 2 else [head(), chunk(token("a")), None]

    results = []
    async with fake_server(answer) as server:
        loop = ClosedLoop(server.target(), SHORT, clients=2, seed=1)

        async def run() -> None:
            results.append(await loop.run())

        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await loop.settled.wait()
            await server.held.acquire()
            await server.held.acquire()
            loop.stop()
    (result,) = results
    summary = result.summary()
    assert (summary.requests, summary.cut, summary.errors) == (2, 2, {})


async def test_a_run_ends_after_its_time() -> None:
    async with fake_server(lambda asked: [None]) as server:
        result = await ClosedLoop(server.target(), SHORT, clients=2, seed=1).run(seconds=0.05, warm_up=0.02)
    assert result.summary().cut == 2
    assert 0.03 <= result.window.seconds < 5


async def test_the_window_ends_when_a_client_has_no_more_work() -> None:
    def answer(asked: Asked) -> Sequence[bytes | None]:
        return full_answer(asked) if len(server.asked) == 1 else [None]

    async with fake_server(answer) as server:
        loop = ClosedLoop(server.target(), SHORT, clients=2, seed=1)
        result = await loop.run(requests=1, seconds=1.0)
    assert result.summary().cut == 1
    assert result.window.seconds < 1.0


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "https://host", "http://"])
async def test_a_url_that_is_not_http_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="looks like http"):
        Target(url=url, model="fake")


async def test_a_url_is_split() -> None:
    target = Target(url="http://host:81/llm/", model="fake")
    assert target.address == ("host", 81)
    assert target.path == "/llm/v1/completions"
    assert Target(url="http://host", model="fake").address == ("host", 80)

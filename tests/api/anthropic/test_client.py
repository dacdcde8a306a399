"""The real client, over a real socket, on the real engine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import anthropic
import httpx
import pytest
from anthropic import Anthropic
from anthropic.types import Message, ToolUseBlock
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from llamalane.api import ApiConfig, create_app
from llamalane.api.config import ServerConfig
from llamalane.errors import QueueFullError
from llamalane.scheduler import LaneConfig, ModelConfig, StreamsConfig
from tests.api.anthropic.asking import MESSAGES, client_of
from tests.api.fake_engine import Play, ScriptedEngine
from tests.api.scraping import Scrape
from tests.api.serving import served

KEY = "sesame"
ADD: dict[str, Any] = {
    "name": "add",
    "description": "Add two numbers.",
    "input_schema": {
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}, "b": {"enum": ["one", "two"]}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
}
FORCED: dict[str, Any] = {
    "model": "tiny",
    "max_tokens": 200,
    "messages": MESSAGES,
    "tools": [ADD],
    "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
    "extra_body": {"temperature": 1.5, "seed": 3},
}


class Colour(BaseModel):
    """A colour."""

    model_config = ConfigDict(extra="forbid")

    red: Annotated[int, Field(ge=0, le=9)]


@pytest.fixture(scope="module")
def client(tiny_model: Path) -> Iterator[Anthropic]:
    config = ServerConfig(
        models=[ModelConfig(path=tiny_model, name="tiny", aliases=["claude"])],
        streams=StreamsConfig(lanes=[LaneConfig(places=4)]),
        api=ApiConfig(api_key=SecretStr(KEY)),
    )
    # While the model loads the answer is 503, which the client tries again.
    with served(create_app(config)) as url, Anthropic(base_url=url, api_key=KEY, max_retries=20) as client:
        client.messages.count_tokens(model="tiny", messages=MESSAGES)
        yield client


def text_of(message: Message) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def call_of(message: Message) -> ToolUseBlock:
    [block] = message.content
    assert isinstance(block, ToolUseBlock)
    return block


def test_a_message(client: Anthropic) -> None:
    answer = client.messages.create(
        model="claude",
        max_tokens=8,
        system=[{"type": "text", "text": "You are brief.", "cache_control": {"type": "ephemeral"}}],
        messages=[{"role": "user", "content": [{"type": "text", "text": "Say hi"}]}],
        metadata={"user_id": "ann"},
        extra_body={"ignore_eos": True, "priority": "interactive"},
    )
    assert (answer.type, answer.role, answer.model) == ("message", "assistant", "tiny")
    assert [block.type for block in answer.content] == ["text"]
    assert (answer.stop_reason, answer.stop_sequence) == ("max_tokens", None)
    assert answer.usage.output_tokens == 8
    assert answer._request_id
    assert (answer.model_extra or {})["priority"] == 1


def test_usage_counts_each_token_of_the_prompt_once(client: Anthropic) -> None:
    system = "Be brief, whoever asks. " * 8
    counted = client.messages.count_tokens(model="tiny", system=system, messages=MESSAGES).input_tokens
    first, second = (
        client.messages.create(model="tiny", max_tokens=1, system=system, messages=MESSAGES).usage for _ in range(2)
    )
    for usage in (first, second):
        cached = usage.cache_read_input_tokens or 0
        assert usage.input_tokens + cached + (usage.cache_creation_input_tokens or 0) == counted
    assert (second.cache_read_input_tokens or 0) > 100


def test_tools_and_the_system_are_counted(client: Anthropic) -> None:
    def count(**fields: Any) -> int:
        return client.messages.count_tokens(model="tiny", messages=MESSAGES, **fields).input_tokens

    alone = count()
    assert count(system="Be brief.") > alone
    assert count(tools=[ADD]) > alone
    assert count(tools=[ADD], tool_choice={"type": "none"}) == alone


def test_a_seed_repeats_an_answer_streamed_or_not(client: Anthropic) -> None:
    options: dict[str, Any] = {"model": "tiny", "max_tokens": 12, "messages": MESSAGES, "extra_body": {"seed": 5}}
    with client.messages.stream(**options) as stream:
        pieces = list(stream.text_stream)
        streamed = stream.get_final_message()
    whole, again = (client.messages.create(**options) for _ in range(2))
    assert "".join(pieces) == text_of(streamed) == text_of(whole) == text_of(again)
    assert streamed.stop_reason == whole.stop_reason
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    sums = [message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0) for message in (streamed, whole)]
    assert sums[0] == sums[1]


def test_a_stop_sequence_ends_the_answer_and_is_named(client: Anthropic) -> None:
    options: dict[str, Any] = {"model": "tiny", "max_tokens": 40, "messages": MESSAGES}
    more: dict[str, Any] = {"seed": 6, "ignore_eos": True}
    whole = text_of(client.messages.create(**options, extra_body=more))
    stop = whole[8:10]
    stops = ["not in it", stop]
    answer = client.messages.create(**options, stop_sequences=stops, extra_body=more)
    with client.messages.stream(**options, stop_sequences=stops, extra_body=more) as stream:
        streamed = stream.get_final_message()
    for message in (answer, streamed):
        assert text_of(message) == whole[: whole.index(stop)]
        assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", stop)


def test_an_answer_goes_on_from_its_beginning(client: Anthropic) -> None:
    begun = client.messages.count_tokens(model="tiny", messages=[*MESSAGES, {"role": "assistant", "content": "It is "}])
    assert begun.input_tokens == client.messages.count_tokens(model="tiny", messages=MESSAGES).input_tokens + 6


@pytest.mark.parametrize("choice", [FORCED["tool_choice"], {"type": "tool", "name": "add"}])
def test_random_numbers_call_what_they_are_told_to(client: Anthropic, choice: dict[str, Any]) -> None:
    options = {**FORCED, "tool_choice": choice}
    whole = client.messages.create(**options)
    with client.messages.stream(**options) as stream:
        streamed = stream.get_final_message()
    for message in (whole, streamed):
        call = call_of(message)
        assert call.name == "add"
        assert isinstance(call.input["a"], int)
        assert call.input["b"] in ("one", "two")
        assert message.stop_reason == "tool_use"
    assert call_of(streamed).input == call_of(whole).input


def test_a_conversation_with_a_call_goes_on(client: Anthropic) -> None:
    message = client.messages.create(**FORCED)
    call = call_of(message)
    answer = client.messages.create(
        model="tiny",
        max_tokens=4,
        tools=[ADD],  # type: ignore[list-item]
        messages=[
            *MESSAGES,
            message.to_param(),
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": call.id, "content": "7", "is_error": False},
                    {"type": "text", "text": "Well?"},
                ],
            },
        ],
    )
    assert answer.usage.output_tokens > 0


def test_an_answer_is_kept_in_form(client: Anthropic) -> None:
    parsed = client.messages.parse(
        model="tiny", max_tokens=60, messages=MESSAGES, output_format=Colour, extra_body={"seed": 1}
    )
    assert parsed.parsed_output is not None
    assert 0 <= parsed.parsed_output.red <= 9


def test_many_clients_at_once(client: Anthropic) -> None:
    def one(number: int) -> str | None:
        with client.messages.stream(
            model="tiny", max_tokens=8, messages=MESSAGES, extra_body={"priority": 1 + number % 5}
        ) as stream:
            return stream.get_final_message().stop_reason

    with ThreadPoolExecutor(16) as threads:
        assert set(threads.map(one, range(16))) <= {"end_turn", "max_tokens"}


def test_bad_requests_harm_nobody_else(client: Anthropic) -> None:
    client = client.with_options(max_retries=0)
    for fields, param, code in (
        ({"messages": [{"role": "user", "content": "x" * 10_000_000}]}, "messages", "context_length_exceeded"),
        ({"max_tokens": 0}, "max_tokens", None),
        ({"max_tokens": 10**12}, "max_tokens", None),
        ({"temperature": "hot"}, "temperature", None),
        ({"temperature": -1}, "temperature", None),
        ({"stop_sequences": [""]}, "stop_sequences", None),
        ({"priority": "sometime"}, "priority", "invalid_priority"),
        ({"tools": [{**ADD, "input_schema": {"uniqueItems": True}}], "tool_choice": {"type": "any"}},
         "tools[0].input_schema", None),
        ({"output_config": {"format": {"type": "json_schema", "schema": {"not": {}}}}}, "output_config.format", None),
    ):  # fmt: skip
        with pytest.raises(anthropic.BadRequestError) as caught:
            client.post("/v1/messages", body={"max_tokens": 5, "messages": MESSAGES, **fields}, cast_to=object)
        assert isinstance(caught.value.body, dict)
        error = caught.value.body["error"]
        assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, code)
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="claude-9", max_tokens=1, messages=MESSAGES)
    with pytest.raises(anthropic.AuthenticationError) as refused:
        client.with_options(api_key="wrong").messages.create(model="tiny", max_tokens=1, messages=MESSAGES)
    assert refused.value.type == "authentication_error"
    assert client.messages.create(model="tiny", max_tokens=1, messages=MESSAGES).content


def test_a_bound_above_what_a_sequence_holds_is_no_bound(client: Anthropic) -> None:
    limit = httpx.get(f"{client.base_url}/v1/models", headers={"x-api-key": KEY}).json()["data"][0]["max_model_len"]
    rest = limit - client.messages.count_tokens(model="tiny", messages=MESSAGES).input_tokens
    answer = client.messages.create(
        model="tiny", max_tokens=limit + 1, system="x" * (rest - 40), messages=MESSAGES, extra_body={"ignore_eos": True}
    )
    assert answer.stop_reason == "model_context_window_exceeded"
    assert answer.usage.output_tokens < 40


def test_a_stream_that_its_client_closes_frees_its_place(tiny_model: Path) -> None:
    config = ServerConfig(
        models=[ModelConfig(path=tiny_model, name="tiny")], streams=StreamsConfig(lanes=[LaneConfig(places=1)])
    )
    with served(create_app(config)) as url, Anthropic(base_url=url, api_key="none", max_retries=20) as client:
        with client.messages.create(
            model="tiny", max_tokens=2000, messages=MESSAGES, stream=True, extra_body={"ignore_eos": True}
        ) as stream:
            assert next(iter(stream)).type == "message_start"
        client.messages.create(model="tiny", max_tokens=1, messages=MESSAGES)  # waits for the only place
        scrape = Scrape(httpx.get(f"{url}/metrics").text)
    assert scrape.value("llamalane_requests_ended_total", outcome="cancelled") == 1
    assert scrape.value("llamalane_requests_ended_total", outcome="finished") == 1


def test_the_client_tries_again_after_the_time_that_a_full_queue_names() -> None:
    full = Play(refusal=QueueFullError(0.6, reason="requests", limit=1))
    engine = ScriptedEngine([full, Play(["after all"])])
    with client_of(engine) as client:
        begin = time.monotonic()
        answer = client.with_options(max_retries=1).messages.create(
            model="scripted", max_tokens=9, messages=MESSAGES, stream=False
        )
        assert text_of(answer) == "after all"
        assert time.monotonic() - begin >= 1
        engine.plays.append(full)
        with pytest.raises(anthropic.RateLimitError) as caught:
            client.messages.create(model="scripted", max_tokens=9, messages=MESSAGES, stream=True)
        assert caught.value.response.headers["retry-after"] == "1"
        assert caught.value.type == "rate_limit_error"


def test_an_error_in_a_stream_reaches_the_client() -> None:
    engine = ScriptedEngine([Play(["one"], error=QueueFullError(1, reason="requests", limit=1))])
    with (
        client_of(engine) as client,
        client.messages.stream(model="scripted", max_tokens=9, messages=MESSAGES) as stream,
    ):
        with pytest.raises(anthropic.APIStatusError, match="queue is full") as caught:
            stream.until_done()
        assert caught.value.type == "rate_limit_error"
        assert text_of(stream.current_message_snapshot) == "one"

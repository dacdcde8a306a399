from __future__ import annotations

import json
import math
from typing import Any

import pytest

from llamalane.api.bodies import parse_body
from llamalane.api.chat import ChatBody
from llamalane.api.reply import Turn
from llamalane.api.schemas import MAX_BIASES, CompletionBody
from llamalane.errors import InvalidRequestError


def completion(**fields: Any) -> CompletionBody:
    return parse_body(CompletionBody, json.dumps({"prompt": "x", **fields}).encode())


def chat(**fields: Any) -> ChatBody:
    messages = [{"role": "user", "content": "hi"}]
    return parse_body(ChatBody, json.dumps({"messages": messages, **fields}).encode())


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("hello", ["hello"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
    ],
)
def test_the_four_kinds_of_prompt(prompt: object, prompts: object) -> None:
    assert completion(prompt=prompt).prompt == prompts


@pytest.mark.parametrize(
    "prompt", [None, 5, True, {}, "", [], [""], ["a", ""], [[]], [[1], []], [1, "a"], [1.5], [True], [["a"]]]
)
def test_other_prompts_are_refused(prompt: object) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        completion(prompt=prompt)
    assert caught.value.param == "prompt"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", "5"),
        ("max_tokens", 5.5),
        ("max_tokens", True),
        ("max_tokens", [5]),
        ("temperature", "1"),
        ("temperature", False),
        ("stream", "true"),
        ("stream", 1),
        ("n", 0),
        ("n", 129),
        ("n", "1"),
        ("seed", "1"),
        ("seed", 1.5),
        ("stop", 5),
        ("stop", ["a", 5]),
        ("logit_bias", []),
        ("logit_bias", {"5": "x"}),
        ("deadline", 0),
        ("deadline", "1"),
        ("deadline", True),
        ("supersede", ""),
        ("supersede", "k" * 129),
        ("supersede", 5),
        ("user", 5),
        ("user", "u" * 513),
        ("ignore_eos", "yes"),
        ("model", 5),
        ("service_tier", 1),
        ("stream_options", []),
        ("stream_options", {"include_usages": True}),
        ("echo", 1),
        ("echo", "true"),
        ("logprobs", True),
        ("logprobs", "1"),
        ("logprobs", 1.0),
        ("logprobs", -1),
        ("logprobs", 6),
        ("best_of", 0),
        ("best_of", 129),
        ("best_of", True),
        ("best_of", "2"),
    ],
)
def test_wrong_types_are_refused_with_their_field(field: str, value: object) -> None:
    with pytest.raises(InvalidRequestError, match="is not valid") as caught:
        completion(**{field: value})
    assert str(caught.value.param).startswith(field)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 10**30}, "max_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"repeat_penalty": 0}, "repeat_penalty"),
        ({"repeat_penalty": 1e-31}, "repeat_penalty"),
        ({"repeat_penalty": 5e-324}, "repeat_penalty"),
        ({"temperature": 1e-31}, "temperature"),
        ({"repeat_penalty": 101}, "repeat_penalty"),
        ({"seed": -1}, "seed"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["x"] * 100}, "stop"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 1, "05": 2}}, "logit_bias"),
        ({"logit_bias": dict.fromkeys(map(str, range(MAX_BIASES + 1)), 1)}, "logit_bias"),
    ],
)
def test_values_out_of_range_are_refused_with_their_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        completion(**fields)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"logprobs": 6}, "logprobs is not valid: it must be from 0 to 5; got 6"),
        ({"logprobs": -1}, "logprobs is not valid: it must be from 0 to 5; got -1"),
        ({"logprobs": 10**30}, "logprobs is not valid: it must be from 0 to 5; got 1" + "0" * 30),
        ({"best_of": 0}, "best_of is not valid: it must be from 1 to 128; got 0"),
        ({"best_of": 2, "n": 3}, "best_of must be at least n, which is 3; got 2"),
        ({"best_of": 2, "stream": True}, "best_of cannot be streamed: which choices are the best shows at their end"),
    ],
)
def test_what_a_completion_cannot_have_is_said_with_what_it_can(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        completion(**fields)
    assert (str(caught.value), caught.value.param) == (message, next(iter(fields)))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs is not valid: it must be from 0 to 20; got 21"),
        ({"top_logprobs": -1, "logprobs": True}, "top_logprobs is not valid: it must be from 0 to 20; got -1"),
        ({"top_logprobs": 3}, "top_logprobs is only allowed when logprobs is true"),
        ({"top_logprobs": 3, "logprobs": False}, "top_logprobs is only allowed when logprobs is true"),
        ({"top_logprobs": True, "logprobs": True}, "top_logprobs is not valid: input should be a valid integer"),
        ({"top_logprobs": "3", "logprobs": True}, "top_logprobs is not valid: input should be a valid integer"),
        ({"logprobs": 1}, "logprobs is not valid: input should be a valid boolean"),
        ({"logprobs": "true"}, "logprobs is not valid: input should be a valid boolean"),
        ({"best_of": 2}, "best_of is not supported, except as 1"),
        ({"echo": True}, "echo is not supported, except as false"),
    ],
)
def test_what_a_chat_cannot_have_is_said_with_what_it_can(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        chat(**fields)
    assert (str(caught.value), caught.value.param) == (message, next(iter(fields)))


def test_log_probabilities_are_asked_for() -> None:
    def of_chat(**fields: Any) -> tuple[int | None, int | None]:
        sampling = chat(**fields).sampling
        return sampling.logprobs, sampling.prompt_logprobs

    def of_completion(**fields: Any) -> tuple[int | None, int | None]:
        sampling = completion(**fields).sampling
        return sampling.logprobs, sampling.prompt_logprobs

    assert of_chat() == of_chat(logprobs=False, top_logprobs=0) == of_chat(logprobs=None) == (None, None)
    assert of_chat(logprobs=True) == of_chat(logprobs=True, top_logprobs=0) == (0, None)
    assert of_chat(logprobs=True, top_logprobs=20) == (20, None)
    assert of_completion() == of_completion(echo=True) == of_completion(best_of=2, n=2) == (None, None)
    assert of_completion(logprobs=0) == (0, None)
    assert of_completion(logprobs=5, echo=True) == (5, 5)
    assert of_completion(best_of=2) == (0, None)
    assert of_completion(best_of=2, logprobs=3) == (3, None)


def test_the_best_are_chosen_of_more_than_are_returned() -> None:
    wanted: dict[tuple[int, int], dict[str, Any]] = {
        (1, 1): {},
        (3, 3): {"n": 3},
        (4, 1): {"best_of": 4},
        (4, 2): {"best_of": 4, "n": 2},
    }
    for (choices, returned), fields in wanted.items():
        body = completion(**fields)
        assert (body.choices, body.returned) == (choices, returned)
    assert completion(best_of=1, stream=True).choices == 1
    assert completion(best_of=2, n=2, stream=True).choices == 2
    assert completion(best_of=3).client_name("n") == "best_of"
    assert completion(n=3).client_name("n") == "n"


def test_every_sampling_field_arrives() -> None:
    fields = {
        "max_tokens": 9,
        "temperature": 1,
        "top_k": 3,
        "top_p": 0.5,
        "min_p": 0.25,
        "repeat_penalty": 1.5,
        "repeat_last_n": 12,
        "presence_penalty": 0.75,
        "frequency_penalty": -0.75,
        "seed": 11,
        "ignore_eos": True,
    }
    sampling = completion(**fields, stop="END", logit_bias={"5": -100, "7": 2.5}).sampling
    assert {name: getattr(sampling, name) for name in fields} == fields
    assert sampling.stop == ("END",)
    assert sampling.logit_bias == {5: -100, 7: 2.5}


def test_null_is_unset() -> None:
    names = ("max_tokens", "temperature", "stop", "n", "stream", "stream_options", "logit_bias", "supersede", "user")
    unset = dict.fromkeys(names)
    assert completion(**unset, seed=1).sampling == completion(seed=1).sampling
    assert completion(**unset).choices == 1


def test_a_seed_that_is_not_given_is_drawn_once() -> None:
    body = completion()
    assert body.sampling.seed is not None
    assert body.sampling is body.sampling
    assert body.sampling.seed != completion().sampling.seed


def test_max_completion_tokens_is_max_tokens() -> None:
    assert chat(max_completion_tokens=7).sampling.max_tokens == 7
    assert chat(max_completion_tokens=7, max_tokens=7).sampling.max_tokens == 7
    with pytest.raises(InvalidRequestError, match="set one of them"):
        chat(max_completion_tokens=7, max_tokens=8)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tool_choice", "auto"),
        ("functions", [{}]),
        ("function_call", "auto"),
        ("top_logprobs", 2),
        ("best_of", 2),
        ("echo", True),
        ("suffix", "end"),
        ("audio", {}),
        ("modalities", ["text", "audio"]),
        ("prediction", {}),
        ("web_search_options", {}),
        ("temprature", 1),
    ],
)
def test_fields_that_would_change_the_output_are_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(InvalidRequestError, match=field) as caught:
        chat(**{field: value})
    assert caught.value.param == field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", []),
        ("tools", None),
        ("tool_choice", "none"),
        ("response_format", {"type": "text"}),
        ("logprobs", False),
        ("logprobs", None),
        ("top_logprobs", 0),
        ("best_of", 1),
        ("echo", False),
        ("modalities", ["text"]),
        ("user", "me"),
        ("supersede", "k" * 128),
        ("store", True),
        ("metadata", {"a": "b"}),
        ("parallel_tool_calls", True),
        ("service_tier", "auto"),
    ],
)
def test_harmless_fields_are_taken(field: str, value: object) -> None:
    assert chat(**{field: value}).messages[0].content == "hi"


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ("hi", "messages"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"content": "hi"}], "messages[0].role"),
        ([{"role": "function", "content": "hi"}], "messages[0].role"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": ["hi"]}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content"),
        ([{"role": "user", "content": "a", "colour": "red"}], "messages[0].colour"),
    ],
)  # fmt: skip
def test_bad_messages_are_refused_with_their_place(messages: object, param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        chat(messages=messages)
    assert caught.value.param == param


def test_messages_are_turns_of_a_conversation() -> None:
    body = chat(
        messages=[
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "Ann"},
            {"role": "assistant", "content": "c", "refusal": None, "tool_calls": None, "annotations": []},
        ]
    )
    assert body.question.turns == [
        Turn("system", "be brief"),
        Turn("user", "a\nb", name="Ann"),
        Turn("assistant", "c"),
    ]


def test_stream_options_need_a_stream() -> None:
    with pytest.raises(InvalidRequestError, match="stream is true"):
        completion(stream_options={"include_usage": True})
    assert completion(stream=True, stream_options={"include_usage": True}).include_usage
    assert not completion(stream=True).include_usage


def test_a_bias_may_not_be_infinite() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        completion(logit_bias={"5": -math.inf})
    assert caught.value.param == "logit_bias.5"

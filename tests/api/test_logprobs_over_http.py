"""Log probabilities through the real OpenAI client, over a real socket, beside llama.cpp's own numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionTokenLogprob

from llamalane.api import create_app
from llamalane.api.config import ServerConfig
from llamalane.scheduler import KVConfig, LaneConfig, ModelConfig, StreamsConfig
from tests.api.serving import served
from tests.engine.raw_scores import TOLERANCE, RawModel
from tests.engine.running import tokens_of
from tests.models.tiny_gguf import EOS

MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Say hi"}]
PROMPT = "the llama says: €"
CACHE = KVConfig(key_type="f32", value_type="f32", flash_attention="off")
ENDLESS = {"ignore_eos": True}
TEXT_ONLY = {"0": -100, "1": -100}
"""A bias against the tiny model's tokens without text."""


@pytest.fixture(scope="module")
def client(tiny_model: Path) -> Iterator[openai.OpenAI]:
    config = ServerConfig(
        models=[ModelConfig(path=tiny_model, name="tiny")],
        streams=StreamsConfig(lanes=[LaneConfig(places=4, threads=1)]),
        kv=CACHE,
    )
    with served(create_app(config)) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        # While the model loads the answer is 503, which the client tries again.
        client.with_options(max_retries=20).models.list()
        yield client


@pytest.fixture(scope="module")
def raw(tiny_model: Path) -> Iterator[RawModel]:
    with RawModel(tiny_model) as model:
        yield model


def tokens_in(data: bytes) -> list[int]:
    """Return the tokens of an output that has no blank in it: one for each byte."""
    return [byte + 3 for byte in data]


def check(raw: RawModel, prompt: Sequence[int], told: Sequence[ChatCompletionTokenLogprob], alternatives: int) -> bytes:
    """Check what a chat tells of an output without blanks, and return the output's bytes."""
    data = b"".join(bytes(token.bytes or []) for token in told)
    output = tokens_in(data)
    rows = raw.logprobs([*prompt, *output])[len(prompt) - 1 : -1]
    for token, row, chosen in zip(told, rows, output, strict=True):
        assert token.logprob == pytest.approx(row[chosen], abs=TOLERANCE)
        assert [other.logprob for other in token.top_logprobs] == pytest.approx(
            sorted(row, reverse=True)[:alternatives], abs=TOLERANCE
        )
    return data


def test_a_chat_s_tokens_are_told_streamed_or_not(client: openai.OpenAI, raw: RawModel) -> None:
    options: dict[str, Any] = {
        "model": "tiny",
        "messages": MESSAGES,
        "max_tokens": 24,
        "seed": 4,
        "logprobs": True,
        "top_logprobs": 5,
        "logit_bias": TEXT_ONLY | {"35": -100, "259": -100},
        "extra_body": ENDLESS,
    }
    prompt = [1, *tokens_of("[user]Say hi")[1:], EOS, *tokens_of("[assistant]")[1:]]
    whole = client.chat.completions.create(**options).choices[0]
    assert whole.logprobs is not None
    assert whole.logprobs.refusal is None
    assert whole.logprobs.content is not None
    data = check(raw, prompt, whole.logprobs.content, 5)
    assert data.decode(errors="replace") == whole.message.content
    text = ""
    told: list[ChatCompletionTokenLogprob] = []
    for chunk in client.chat.completions.create(**options, stream=True):
        piece = chunk.choices[0]
        text += piece.delta.content or ""
        if piece.logprobs is not None:
            assert piece.delta.content
            told += piece.logprobs.content or []
    assert text == whole.message.content
    assert b"".join(bytes(token.bytes or []) for token in told) == data
    assert len(told) == 24
    silent = client.chat.completions.create(**{**options, "logprobs": False, "top_logprobs": openai.omit})
    assert silent.choices[0].message.content == text
    assert silent.choices[0].logprobs is None


def test_a_completion_s_tokens_are_told_streamed_or_not(client: openai.OpenAI, raw: RawModel) -> None:
    options: dict[str, Any] = {
        "model": "tiny",
        "prompt": PROMPT,
        "max_tokens": 40,
        "seed": 1,
        "logprobs": 2,
        "logit_bias": TEXT_ONLY,
        "extra_body": ENDLESS,
    }
    whole = client.completions.create(**options).choices[0]
    assert whole.logprobs is not None
    tokens, offsets = whole.logprobs.tokens or [], whole.logprobs.text_offset or []
    assert len(tokens) == len(offsets) == len(whole.logprobs.token_logprobs or []) == 40
    for token, offset in zip(tokens, offsets, strict=True):
        assert token.startswith("bytes:") or whole.text.startswith(token, offset)
    for token, logprob, likeliest in zip(
        tokens, whole.logprobs.token_logprobs or [], whole.logprobs.top_logprobs or [], strict=True
    ):
        assert 1 <= len(likeliest) <= 3
        assert likeliest[token] >= logprob
    text = ""
    columns: dict[str, list[Any]] = {name: [] for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")}
    for chunk in client.completions.create(**options, stream=True):
        text += chunk.choices[0].text
        for name, column in columns.items():
            column += getattr(chunk.choices[0].logprobs, name, [])
    assert text == whole.text
    assert columns["tokens"] == tokens
    assert columns["text_offset"] == offsets


def test_a_continuation_is_scored_as_evaluations_do_it(client: openai.OpenAI, raw: RawModel) -> None:
    """The prompt, in tokens, is sent whole, and the scores of its end are read, counted from both ends."""
    context, continuation = tokens_of("the llama"), tokens_of(" says hi")[1:]
    prompts = [[*context, *continuation], [*context, *continuation[:3]]]
    for bias in ({}, {str(EOS): 100}):  # the one token that has to be generated may end the output
        answer = client.completions.create(
            model="tiny", prompt=prompts, max_tokens=1, temperature=0, logprobs=1, echo=True, logit_bias=bias
        )
        for prompt, choice in zip(prompts, answer.choices, strict=True):
            assert choice.logprobs is not None
            logprobs = choice.logprobs.token_logprobs or []
            assert len(logprobs) == len(prompt) + 1
            rows = raw.logprobs(prompt)
            expected = [row[token] for row, token in zip(rows, prompt[1:], strict=False)]
            assert logprobs[0] is None
            assert logprobs[1:-1] == pytest.approx(expected, abs=TOLERANCE)
            assert (choice.logprobs.top_logprobs or [])[0] is None
            for row, likeliest in zip(rows, (choice.logprobs.top_logprobs or [])[1:], strict=True):
                assert max(likeliest.values()) == pytest.approx(max(row), abs=TOLERANCE)


def test_an_echo_stands_before_its_output(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"model": "tiny", "max_tokens": 5, "seed": 2, "n": 3, "extra_body": ENDLESS}
    outputs = [choice.text for choice in client.completions.create(prompt=PROMPT, **options).choices]
    echoed = client.completions.create(prompt=PROMPT, echo=True, logprobs=0, **options)
    assert [choice.text for choice in echoed.choices] == [PROMPT + output for output in outputs]
    for choice in echoed.choices:
        assert choice.logprobs is not None
        assert (choice.logprobs.tokens or [])[:4] == ["<s>", "t", "h", "e"]
        assert (choice.logprobs.text_offset or [])[:4] == [0, 0, 1, 2]
        assert (choice.logprobs.text_offset or [])[len(PROMPT) :][:4] == [len(PROMPT) - 1] * 3 + [len(PROMPT)]
    texts = ["", "", ""]
    for chunk in client.completions.create(prompt=PROMPT, echo=True, logprobs=0, stream=True, **options):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [choice.text for choice in echoed.choices]
    in_tokens = client.completions.create(prompt=tokens_of(PROMPT), echo=True, **options)
    assert [choice.text for choice in in_tokens.choices] == [f"<s>{PROMPT}{output}" for output in outputs]


def test_the_best_of_several_is_the_one_with_the_likeliest_tokens(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"model": "tiny", "prompt": PROMPT, "max_tokens": 6, "seed": 3, "temperature": 2}
    options |= {"logit_bias": TEXT_ONLY, "extra_body": ENDLESS}
    every = client.completions.create(n=9, logprobs=0, **options)

    def mean(choice: openai.types.CompletionChoice) -> float:
        assert choice.logprobs is not None
        logprobs = choice.logprobs.token_logprobs or []
        return sum(logprobs) / len(logprobs)

    ranked = sorted(every.choices, key=mean, reverse=True)
    best = client.completions.create(best_of=9, n=2, logprobs=0, **options)
    assert [choice.text for choice in best.choices] == [choice.text for choice in ranked[:2]]
    assert [choice.index for choice in best.choices] == [0, 1]
    assert best.usage is not None
    assert every.usage is not None
    assert best.usage.completion_tokens == every.usage.completion_tokens == 54
    alone = client.completions.create(best_of=9, **options)
    assert [(choice.text, choice.logprobs) for choice in alone.choices] == [(ranked[0].text, None)]


def test_what_cannot_be_is_refused_and_harms_nobody(client: openai.OpenAI) -> None:
    chat, text = {"messages": MESSAGES}, {"prompt": "x"}
    for path, fields, param in (
        ("/chat/completions", chat | {"top_logprobs": 2}, "top_logprobs"),
        ("/chat/completions", chat | {"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ("/chat/completions", chat | {"logprobs": 2}, "logprobs"),
        ("/completions", text | {"logprobs": 6}, "logprobs"),
        ("/completions", text | {"logprobs": True}, "logprobs"),
        ("/completions", text | {"top_logprobs": 1}, "top_logprobs"),
        ("/completions", text | {"best_of": 1, "n": 2}, "best_of"),
        ("/completions", text | {"best_of": 2, "stream": True}, "best_of"),
        ("/completions", text | {"best_of": 1000}, "best_of"),
        ("/completions", text | {"echo": "yes"}, "echo"),
        ("/completions", {"prompt": [10**9], "echo": True}, "prompt"),
        ("/completions", text | {"suffix": "end"}, "suffix"),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            client.post(path, body=fields, cast_to=object)
        assert caught.value.param == param
    assert client.completions.create(model="tiny", prompt="x", max_tokens=1, logprobs=5).choices[0].logprobs

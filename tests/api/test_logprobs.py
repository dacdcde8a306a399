"""Log probabilities, prompts and the best of several choices, to the letter."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from llamalane.api import create_app, serve_item
from llamalane.api.logprobs import Echo, chat_logprobs, completion_logprobs, echo_logprobs
from llamalane.scheduler import OutputToken, PromptLogprobs, ScoredToken, Token, TokenLogprob
from tests.api.asgi import client_of
from tests.api.fake_engine import Play, ScriptedEngine, as_engine, sampling_of

pytestmark = pytest.mark.anyio

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hi"}]
OTHER = TokenLogprob(9, "oh", b"oh", -0.25)


def token(text: str, start: int, logprob: float = -0.5, *alternatives: TokenLogprob) -> OutputToken:
    return OutputToken(1, text, text.encode(), logprob, alternatives, start)


HELLO = Play(tokens=[[token("Hel", 0, -0.5, OTHER), token("lo", 3, -1.5)], [token(", world", 5, -2.5)]])
HELLO_COLUMNS: dict[str, list[Any]] = {
    "tokens": ["Hel", "lo", ", world"],
    "token_logprobs": [-0.5, -1.5, -2.5],
    "top_logprobs": [{"oh": -0.25, "Hel": -0.5}, {"lo": -1.5}, {", world": -2.5}],
    "text_offset": [0, 3, 5],
}
HELLO_CONTENT = [
    {
        "token": "Hel",
        "logprob": -0.5,
        "bytes": [72, 101, 108],
        "top_logprobs": [{"token": "oh", "logprob": -0.25, "bytes": [111, 104]}],
    },
    {"token": "lo", "logprob": -1.5, "bytes": [108, 111], "top_logprobs": []},
    {"token": ", world", "logprob": -2.5, "bytes": [*b", world"], "top_logprobs": []},
]
PROMPT = PromptLogprobs(
    Token(1, "<s>", None),
    (ScoredToken(2, "Say", b"Say", -3.0, (OTHER,)), ScoredToken(3, " hi", b" hi", -4.0, ())),
)
ENDING = OutputToken(2, "</s>", None, -0.75, (), 12)


async def post(engine: ScriptedEngine, path: str, **body: Any) -> Any:
    """Return an answer's choices."""
    async with client_of(create_app(as_engine(engine))) as client:
        answer = await client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"]


async def stream(engine: ScriptedEngine, path: str, **body: Any) -> list[Any]:
    """Return the choices of a stream's chunks."""
    async with client_of(create_app(as_engine(engine))) as client:
        answer = await client.post(path, json={**body, "stream": True})
        assert answer.status_code == 200, answer.text
        *events, done, empty = answer.text.split("\n\n")
        assert (done, empty) == ("data: [DONE]", "")
        return [choice for event in events for choice in json.loads(event.removeprefix("data: "))["choices"]]


async def test_a_chat_tells_its_tokens() -> None:
    [choice] = await post(ScriptedEngine([HELLO]), CHAT, messages=MESSAGES, logprobs=True, top_logprobs=1)
    assert choice["message"]["content"] == "Hello, world"
    assert choice["logprobs"] == {"content": HELLO_CONTENT, "refusal": None}


async def test_a_chat_s_stream_tells_them_with_their_text() -> None:
    role, first, second, last = await stream(ScriptedEngine([HELLO]), CHAT, messages=MESSAGES, logprobs=True)
    assert role == {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    assert first == {
        "index": 0,
        "delta": {"content": "Hello"},
        "logprobs": {"content": HELLO_CONTENT[:2], "refusal": None},
        "finish_reason": None,
    }
    assert (second["delta"], second["logprobs"]["content"]) == ({"content": ", world"}, HELLO_CONTENT[2:])
    assert last == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}


async def test_a_completion_tells_its_tokens() -> None:
    [choice] = await post(ScriptedEngine([HELLO]), COMPLETIONS, prompt="x", logprobs=1)
    assert choice == {"index": 0, "text": "Hello, world", "logprobs": HELLO_COLUMNS, "finish_reason": "stop"}


async def test_a_completion_s_stream_tells_them_with_their_text() -> None:
    first, second, last = await stream(ScriptedEngine([HELLO]), COMPLETIONS, prompt="x", logprobs=1)
    assert first["text"] == "Hello"
    assert first["logprobs"] == {name: column[:2] for name, column in HELLO_COLUMNS.items()}
    assert second["text"] == ", world"
    assert second["logprobs"] == {name: column[2:] for name, column in HELLO_COLUMNS.items()}
    assert (last["text"], last["logprobs"], last["finish_reason"]) == ("", None, "stop")


async def test_an_output_without_text_has_no_tokens() -> None:
    play = Play([], tokens=[], ending=ENDING)
    [choice] = await post(ScriptedEngine([play]), CHAT, messages=MESSAGES, logprobs=True)
    assert choice["logprobs"] == {"content": [], "refusal": None}
    [choice] = await post(ScriptedEngine([play]), COMPLETIONS, prompt="x", logprobs=0)
    assert choice["logprobs"] == {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    [last] = await stream(ScriptedEngine([play]), COMPLETIONS, prompt="x", logprobs=0)
    assert last["logprobs"] is None


async def test_whoever_does_not_ask_is_told_nothing() -> None:
    [choice] = await post(ScriptedEngine([HELLO]), COMPLETIONS, prompt="x")
    assert choice["logprobs"] is None
    [choice] = await post(ScriptedEngine([HELLO]), CHAT, messages=MESSAGES, logprobs=False, top_logprobs=0)
    assert choice["logprobs"] is None


async def test_a_prompt_comes_before_its_output() -> None:
    for prompt, text in (("Say hi", "Say hi"), ([1, 2], "<1><2>")):
        [choice] = await post(ScriptedEngine(), COMPLETIONS, prompt=prompt, echo=True)
        assert choice == {"index": 0, "text": f"{text}Hello, world", "logprobs": None, "finish_reason": "stop"}
        chunks = await stream(ScriptedEngine(), COMPLETIONS, prompt=prompt, echo=True)
        assert [chunk["text"] for chunk in chunks] == [text, "Hello", ", world", ""]
        assert [chunk["finish_reason"] for chunk in chunks] == [None, None, None, "stop"]


async def test_a_prompt_comes_before_each_of_its_outputs() -> None:
    engine = ScriptedEngine([Play([str(number)]) for number in range(4)])
    choices = await post(engine, COMPLETIONS, prompt=["a: ", "b: "], n=2, echo=True)
    assert [choice["text"] for choice in choices] == ["a: 0", "a: 1", "b: 2", "b: 3"]


ECHO_COLUMNS: dict[str, list[Any]] = {
    "tokens": ["<s>", "Say", " hi", "Hel", "lo", ", world", "</s>"],
    "token_logprobs": [None, -3.0, -4.0, -0.5, -1.5, -2.5, -0.75],
    "top_logprobs": [
        *(None, {"oh": -0.25, "Say": -3.0}, {" hi": -4.0}, {"oh": -0.25, "Hel": -0.5}, {"lo": -1.5}),
        *({", world": -2.5}, {"</s>": -0.75}),
    ],
    "text_offset": [0, 0, 3, 6, 9, 11, 18],
}


async def test_a_prompt_is_told_token_by_token_and_so_is_the_end() -> None:
    play = Play(tokens=HELLO.tokens, ending=ENDING, prompt=PROMPT)
    [choice] = await post(ScriptedEngine([play]), COMPLETIONS, prompt="Say hi", echo=True, logprobs=1)
    assert (choice["text"], choice["logprobs"]) == ("Say hiHello, world", ECHO_COLUMNS)


@pytest.mark.parametrize("logprobs", [None, 1])
async def test_a_prompt_can_be_told_alone(logprobs: int | None) -> None:
    columns = None if logprobs is None else {name: column[:3] for name, column in ECHO_COLUMNS.items()}
    play = Play(tokens=HELLO.tokens, ending=ENDING, prompt=PROMPT)
    fields: dict[str, Any] = {"prompt": "Say hi", "echo": True, "max_tokens": 0, "logprobs": logprobs}
    engine = ScriptedEngine([play, play])
    [choice] = await post(engine, COMPLETIONS, **fields)
    assert choice == {"index": 0, "text": "Say hi", "logprobs": columns, "finish_reason": "length"}
    first, last = await stream(engine, COMPLETIONS, **fields)
    assert (first["text"], first["logprobs"], first["finish_reason"]) == ("Say hi", columns, None)
    assert (last["text"], last["logprobs"], last["finish_reason"]) == ("", None, "length")
    assert [sampling_of(handle).max_tokens for handle in engine.handles] == [1, 1]


async def test_an_output_of_no_tokens_goes_with_an_echo_only() -> None:
    async with client_of(create_app(as_engine(ScriptedEngine()))) as client:
        for path, fields in ((COMPLETIONS, {"prompt": "x"}), (CHAT, {"messages": MESSAGES})):
            answer = await client.post(path, json={**fields, "max_tokens": 0})
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "max_tokens")
        answer = await client.post(COMPLETIONS, json={"prompt": "x", "max_tokens": 0, "echo": True})
        assert answer.json()["usage"]["completion_tokens"] == 0


async def test_a_stream_tells_the_same_piece_by_piece() -> None:
    play = Play(tokens=HELLO.tokens, ending=ENDING, prompt=PROMPT)
    chunks = await stream(ScriptedEngine([play]), COMPLETIONS, prompt="Say hi", echo=True, logprobs=1)
    assert [chunk["text"] for chunk in chunks] == ["Say hi", "Hello", ", world", "", ""]
    columns = [chunk["logprobs"] for chunk in chunks[:-1]]
    for name, expected in ECHO_COLUMNS.items():
        assert [value for column in columns for value in column[name]] == expected
    assert chunks[-1]["logprobs"] is None


async def test_of_several_choices_the_first_alone_measures_the_prompt() -> None:
    plays = [Play(tokens=HELLO.tokens, prompt=PROMPT), *[HELLO] * 11]
    engine = ScriptedEngine([*plays])
    choices = await post(engine, COMPLETIONS, prompt="Say hi", n=12, echo=True, logprobs=1, seed=3)
    assert [sampling_of(handle).prompt_logprobs for handle in engine.handles] == [1, *[None] * 11]
    assert [sampling_of(handle).logprobs for handle in engine.handles] == [1] * 12
    assert [handle.options["choice"] for handle in engine.handles] == list(range(12))
    assert len({json.dumps(choice["logprobs"]) for choice in choices}) == 1
    assert choices[5]["logprobs"]["tokens"][:3] == ["<s>", "Say", " hi"]
    chunks = await stream(ScriptedEngine([*plays]), COMPLETIONS, prompt="Say hi", n=12, echo=True, logprobs=1)
    assert {chunk["index"] for chunk in chunks if chunk["text"] == "Say hi"} == set(range(12))


def scored(text: str, *logprobs: float) -> Play:
    tokens = [token(letter, start, logprob) for start, (letter, logprob) in enumerate(zip(text, logprobs, strict=True))]
    return Play(list(text), tokens=[[one] for one in tokens])


async def test_the_best_choices_are_those_whose_tokens_are_likeliest_on_average() -> None:
    plays = [scored("a", -0.9), scored("bcd", -0.5, -0.5, -0.5), scored("ef", -0.1, -2.0), scored("g", -0.4)]
    engine = ScriptedEngine([*plays, *plays[::-1]])
    choices = await post(engine, COMPLETIONS, prompt=["x", "y"], best_of=4, n=2)
    assert [(choice["index"], choice["text"]) for choice in choices] == [(0, "g"), (1, "bcd"), (2, "g"), (3, "bcd")]
    assert all(choice["logprobs"] is None for choice in choices)
    assert [sampling_of(handle).logprobs for handle in engine.handles] == [0] * 8
    [choice] = await post(ScriptedEngine([*plays]), COMPLETIONS, prompt="x", best_of=4, logprobs=2)
    assert (choice["text"], choice["logprobs"]["token_logprobs"]) == ("g", [-0.4])


async def test_every_choice_that_was_generated_is_counted() -> None:
    plays = [scored("a", -0.9), scored("bcd", -0.5, -0.5, -0.5)]
    body = {"prompt": "x", "best_of": 2}
    status, answer = await serve_item(as_engine(ScriptedEngine(plays)), "POST", COMPLETIONS, body)
    assert (status, len(answer["choices"])) == (200, 1)
    assert answer["usage"]["completion_tokens"] == 4
    assert answer["usage"]["prompt_tokens"] == 3


async def test_of_as_many_as_are_returned_none_is_chosen() -> None:
    engine = ScriptedEngine([Play(["a"]), Play(["b"])])
    choices = await post(engine, COMPLETIONS, prompt="x", best_of=2, n=2)
    assert [choice["text"] for choice in choices] == ["a", "b"]
    assert [sampling_of(handle).logprobs for handle in engine.handles] == [None, None]


async def test_too_many_choices_are_refused_by_the_field_that_asks_for_them() -> None:
    async with client_of(create_app(as_engine(ScriptedEngine()))) as client:
        for fields, param in (({"best_of": 128}, "best_of"), ({"n": 128}, "n")):
            answer = await client.post(COMPLETIONS, json={"prompt": ["x"] * 2000, **fields})
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == param


def test_what_json_cannot_hold_is_told_as_the_lowest_number() -> None:
    impossible = OutputToken(1, "x", b"x", -math.inf, (TokenLogprob(2, "y", b"y", -math.inf),), 0)
    told = chat_logprobs([impossible])["content"][0]
    assert (told["logprob"], told["top_logprobs"][0]["logprob"]) == (-9999.0, -9999.0)
    columns = completion_logprobs([impossible])
    assert (columns["token_logprobs"], columns["top_logprobs"]) == ([-9999.0], [{"y": -9999.0, "x": -9999.0}])


def test_bytes_that_are_no_character_and_control_tokens_have_names() -> None:
    half = OutputToken(1, "\\xf0\\x9f", b"\xf0\x9f", -1.0, (TokenLogprob(2, "</s>", None, -0.5),), 0)
    [told] = chat_logprobs([half])["content"]
    assert (told["token"], told["bytes"]) == ("\\xf0\\x9f", [0xF0, 0x9F])
    assert told["top_logprobs"] == [{"token": "</s>", "logprob": -0.5, "bytes": None}]
    columns = completion_logprobs([half])
    assert columns["tokens"] == ["bytes:\\xf0\\x9f"]
    assert columns["top_logprobs"] == [{"</s>": -0.5, "bytes:\\xf0\\x9f": -1.0}]


def test_of_two_tokens_of_one_name_the_likelier_one_is_told() -> None:
    same = OutputToken(1, "a", b"a", -2.0, (TokenLogprob(2, "a", b"a", -1.0), TokenLogprob(1, "a", b"a", -2.0)), 0)
    assert completion_logprobs([same])["top_logprobs"] == [{"a": -1.0}]
    assert len(chat_logprobs([same])["content"][0]["top_logprobs"]) == 2


def test_a_prompt_of_one_token_is_told_without_a_number() -> None:
    assert echo_logprobs(Echo("a", PromptLogprobs(Token(5, "a", b"a"), ()))) == {
        "tokens": ["a"],
        "token_logprobs": [None],
        "top_logprobs": [None],
        "text_offset": [0],
    }
    assert echo_logprobs(Echo("a")) is None

"""Answers in the form that a client wants, through the real OpenAI client, over a real socket."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam
from pydantic import BaseModel, Field

from llamalane.api.bodies import parse_body
from llamalane.api.schemas import CompletionBody
from llamalane.errors import InvalidRequestError
from llamalane.scheduler import Grammar
from tests.api.serving import serving

MESSAGES: list[ChatCompletionMessageParam] = [
    {"role": "user", "content": "Describe a person: the name, the age, and a colour that suits."}
]
OBJECT = Grammar.json_object()
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}


class Person(BaseModel):
    name: Annotated[str, Field(max_length=20)]
    age: Annotated[int, Field(ge=0, le=120)]
    colour: Literal["red", "green", "blue"]


@pytest.fixture(scope="module")
def client(tiny_model: Path) -> Iterator[openai.OpenAI]:
    with serving(tiny_model) as client:
        yield client


def test_random_numbers_parse_as_what_was_asked_for(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model="model", messages=MESSAGES, response_format=Person, n=3, seed=1, temperature=1.5
    )
    assert len(answer.choices) == 3
    for choice in answer.choices:
        assert isinstance(choice.message.parsed, Person)
        assert choice.finish_reason == "stop"


def test_a_stream_is_the_same_json(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model="model", messages=MESSAGES, response_format=Person, seed=2, temperature=1.5
    ) as stream:
        streamed = stream.get_final_completion().choices[0].message
    whole = client.chat.completions.parse(
        model="model", messages=MESSAGES, response_format=Person, seed=2, temperature=1.5
    )
    assert streamed.parsed == whole.choices[0].message.parsed is not None


def test_a_grammar_that_grows_too_large_is_the_client_s_fault(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="too many expressions") as caught:
        client.completions.create(
            model="model",
            prompt="x",
            temperature=0,
            extra_body={"guided_regex": "(b{1000}){1000}"},
        )
    assert (caught.value.param, caught.value.code) == ("guided_regex", "grammar_too_large")


def test_what_is_cut_off_tells_so(client: openai.OpenAI) -> None:
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(model="model", messages=MESSAGES, response_format=Person, max_tokens=5)


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"guided_choice": ["left", "right"]}, "left|right"),
        ({"guided_regex": "[0-9]{3}"}, "[0-9]{3}"),
        ({"guided_grammar": 'root ::= "<" [a-f] ">"'}, "<[a-f]>"),
        ({"guided_grammar": 'start: "<" /[a-f]/ ">"'}, "<[a-f]>"),
        ({"guided_json": {"enum": ["x", 1]}}, '"x"|1'),
        ({"guided_json": '{"enum": ["x", 1]}'}, '"x"|1'),
        ({"structured_outputs": {"choice": ["up", "down"], "regex": None}}, "up|down"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"const": 5}}}}, "5"),
    ],
)
def test_other_forms_for_both_endpoints(client: openai.OpenAI, fields: dict[str, Any], pattern: str) -> None:
    text = client.completions.create(model="model", prompt="go", extra_body=fields).choices[0].text
    assert re.fullmatch(pattern, text)
    answer = client.chat.completions.create(model="model", messages=MESSAGES, extra_body=fields)
    assert re.fullmatch(pattern, answer.choices[0].message.content or "")


@pytest.mark.parametrize("name", ["response_format", "guided_json", "structured_outputs"])
def test_a_keyword_that_is_not_supported_is_named(client: openai.OpenAI, name: str) -> None:
    schema = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    values: Mapping[str, Any] = {
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}},
        "guided_json": schema,
        "structured_outputs": {"json": schema},
    }
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError, match="uniqueItems") as caught:
            client.chat.completions.create(
                model="model", messages=MESSAGES, stream=stream, extra_body={name: values[name]}
            )
        assert caught.value.param == name
        assert caught.value.type == "invalid_request_error"


def grammar_of(**fields: Any) -> Grammar | None:
    return parse_body(CompletionBody, json.dumps({"prompt": "x", **fields}).encode()).sampling.grammar


@pytest.mark.parametrize(
    ("fields", "grammar"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": None, "guided_json": None}, None),
        ({"response_format": {"type": "json_object"}}, OBJECT),
        ({"response_format": {"type": "text"}, "guided_regex": "a"}, Grammar.regex("a")),
        (
            {"response_format": {"type": "json_schema",
             "json_schema": {"name": "x", "description": "y", "strict": False, "schema": SCHEMA}}},
            Grammar.json_schema(SCHEMA),
        ),
        ({"guided_json": SCHEMA}, Grammar.json_schema(SCHEMA)),
        ({"guided_json": json.dumps(SCHEMA)}, Grammar.json_schema(SCHEMA)),
        ({"structured_outputs": {}}, None),
        ({"structured_outputs": {"json_object": True, "disable_fallback": False}}, OBJECT),
        ({"structured_outputs": {"json_object": False, "json": SCHEMA}}, Grammar.json_schema(SCHEMA)),
        ({"structured_outputs": {"grammar": "start: /a/"}}, Grammar.rules("start: /a/")),
    ],
)  # fmt: skip
def test_what_fields_ask_for(fields: dict[str, Any], grammar: Grammar | None) -> None:
    assert grammar_of(**fields) == grammar


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"response_format": "json"}, "an object whose type is"),
        ({"response_format": {"type": "xml"}}, '"text", "json_object" or "json_schema"'),
        ({"response_format": {"type": ["text"]}}, '"text", "json_object" or "json_schema"'),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, "unrecognized field 'schema'"),
        ({"response_format": {"type": "json_schema"}}, "that has the JSON schema as its schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "as its schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA, "stict": True}}}, "'stict'"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA, "strict": 1}}}, "true or false"),
        ({"guided_json": ["a"]}, "must be a JSON schema"),
        ({"guided_regex": 5}, "regex must be a text"),
        ({"guided_regex": ""}, "got 0 characters"),
        ({"guided_choice": []}, "at least one text"),
        ({"guided_choice": "ab"}, "must be a list"),
        ({"guided_choice": True}, "must be a list"),
        ({"structured_outputs": {"choice": 5}}, "must be a list"),
        ({"guided_grammar": "x" * 16_385}, "1 to 16,384 characters; got 16385"),
        ({"structured_outputs": "a"}, "an object with one of json, json_object, regex, choice, grammar"),
        ({"structured_outputs": {"structural_tag": {}}}, "unrecognized field 'structural_tag'"),
        ({"structured_outputs": {"json_object": 1}}, "json_object must be true or false"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "regex and choice exclude each other"),
    ],
)
def test_what_is_not_understood_is_refused(fields: dict[str, Any], message: str) -> None:
    [name] = fields
    with pytest.raises(InvalidRequestError, match=f"{name} is not valid: .*{re.escape(message)}") as caught:
        grammar_of(**fields)
    assert caught.value.param == name


def test_there_is_one_form_at_most() -> None:
    with pytest.raises(InvalidRequestError, match="response_format and guided_regex each ask") as caught:
        grammar_of(guided_regex="a", response_format={"type": "json_object"})
    assert caught.value.param == "guided_regex"


@pytest.mark.smollm2
def test_smollm2_answers_as_a_person(smollm2: Path) -> None:
    with serving(smollm2) as client:
        answer = client.chat.completions.parse(
            model="model", messages=MESSAGES, response_format=Person, temperature=0, max_tokens=200
        )
        assert isinstance(answer.choices[0].message.parsed, Person)
        drawn = client.beta.chat.completions.parse(
            model="model", messages=MESSAGES, response_format=Person, seed=1, n=2, max_tokens=200
        )
        assert all(isinstance(choice.message.parsed, Person) for choice in drawn.choices)
        free = client.chat.completions.create(
            model="model", messages=MESSAGES, response_format={"type": "json_object"}, max_tokens=200, seed=3
        ).choices[0]
        assert free.finish_reason == "length" or isinstance(json.loads(free.message.content or ""), dict)

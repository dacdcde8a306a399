"""Bodies on their way in: what is refused before it is parsed, and what while it is."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamalane.api import bodies
from llamalane.api.bodies import LARGE_BODY, MAX_PARTS, check_parts, outside_strings, parse_body, read_body
from llamalane.api.schemas import CompletionBody
from llamalane.errors import InvalidRequestError
from llamalane.scheduler import QueueConfig, SchedulerConfig
from tests.api.fake_engine import CONFIG, ScriptedEngine, as_engine

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.sampled_from('a",:[{\\/é\n'), max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=30,
)
ENGINE = as_engine(
    ScriptedEngine(
        config=CONFIG.model_copy(update={"scheduler": SchedulerConfig(queue=QueueConfig(max_tokens=1_000_000))})
    )
)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b'{"prompt": "\xff"}', "not valid JSON: invalid unicode"),
        (b'{"prompt": "\\ud800"}', "not valid JSON"),
        (b"[" * 100_000, "not valid JSON: recursion limit"),
        (b'{"prompt": "x", "metadata": ' + b"9" * 5000 + b"}", "not valid JSON: number out of range"),
        (b"[1]", "must be a JSON object"),
        (b'"text"', "must be a JSON object"),
        (b'{"prompt": "x", "temperature": NaN}', "temperature is not valid"),
        (b'{"prompt": "x", "temperature": Infinity}', "temperature is not valid"),
        (b'{"prompt": "x", "metadata": {"a": [NaN]}}', "not valid JSON: NaN is no finite number"),
        (b'{"prompt": "x", "metadata": {"a": -Infinity}}', "not valid JSON: -Infinity is no finite number"),
        (b'{"prompt": "x", "metadata": {"a": 1e999}}', "not valid JSON: 1e999 is no finite number"),
        (b"{}", "prompt is missing"),
    ],
)
def test_bodies_that_are_no_request_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        parse_body(CompletionBody, data)


@pytest.mark.parametrize(
    ("data", "key"),
    [
        (b'{"prompt": "x", "prompt": "y"}', "prompt"),
        (b'{"prompt": "x", "temperature": 1, "n": 1, "temperature": 1}', "temperature"),
        (b'{"prompt": "x", "t\\u006fp_k": 1, "top_k": 2}', "top_k"),
        (b'{"prompt": "x", "logit_bias": {"5": 1, "6": 1, "5": 2}}', "5"),
        (b'{"prompt": "x", "metadata": [{"a": {"b": 1, "c": 2, "b": 3}}]}', "b"),
    ],
)
def test_a_key_that_stands_twice_is_refused_by_name(data: bytes, key: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"the key {key!r} stands twice") as caught:
        parse_body(CompletionBody, data)
    assert caught.value.param == key


def test_objects_that_are_not_the_same_may_have_the_same_keys() -> None:
    assert parse_body(CompletionBody, b'{"prompt": "x", "metadata": [{"prompt": 1}, {"prompt": 2}]}').prompt == ["x"]


@given(JSON, st.integers(1, 40))
def test_what_stands_outside_strings_is_the_structure(value: Any, window: int) -> None:
    data = json.dumps(value, ensure_ascii=False).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bodies, "_WINDOW", window)
        structure = b"".join(outside_strings(data))
    assert [structure.count(sign) for sign in (b",", b":", b"{", b"[")] == list(signs_of(value))


def signs_of(value: Any) -> tuple[int, int, int, int]:
    """Return how many commas, colons, and opening brackets of both kinds it takes to write `value`."""
    if not isinstance(value, dict | list):
        return 0, 0, 0, 0
    inner = [signs_of(part) for part in (value.values() if isinstance(value, dict) else value)]
    commas, colons, braces, brackets = (sum(counts) for counts in zip(*inner, strict=True)) if inner else (0, 0, 0, 0)
    is_object = isinstance(value, dict)
    return (
        commas + max(0, len(value) - 1),
        colons + (len(value) if is_object else 0),
        braces + is_object,
        brackets + (not is_object),
    )


@pytest.mark.parametrize(("values", "parts", "fits"), [(10, 5, True), (9, 5, False), (10, 4, False)])
def test_bodies_of_too_many_parts_are_refused(values: int, parts: int, fits: bool) -> None:
    # 10 commas, one object, one list, three strings, and a fourth
    data = json.dumps({"prompt": list(range(10)), "user": '",,[[{{' * 10}).encode()
    if fits:
        check_parts(data, max_values=values, max_parts=parts)
    else:
        with pytest.raises(InvalidRequestError, match="too many"):
            check_parts(data, max_values=values, max_parts=parts)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("head", "part", "tail"),
    [
        ('{"prompt": [', "1,", "1]}"),
        ('{"prompt": "x", "logit_bias": {', '"5":1,', '"6":1}}'),
        ('{"prompt": "x", "metadata": [', "[],", "[]]}"),
        ('{"prompt": "x", "metadata": [', '{"type":"text","text":"a"},', "1]}"),
    ],
    ids=["tokens", "biases", "lists", "parts"],
)
async def test_what_would_take_long_to_parse_is_refused_before(
    head: str, part: str, tail: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = (head + part * (8_000_000 // len(part)) + tail).encode()
    monkeypatch.setattr(bodies, "parse_body", pytest.fail)
    with pytest.raises(InvalidRequestError, match="too many"):
        await read_body(ENGINE, CompletionBody, data)


@pytest.mark.anyio
async def test_a_long_text_is_not_refused_for_its_signs() -> None:
    text = "[{,:" * MAX_PARTS + '\\"' * 1000
    body = await read_body(ENGINE, CompletionBody, json.dumps({"prompt": text}).encode())
    assert body.prompt == [text]


@pytest.mark.anyio
@pytest.mark.parametrize(("size", "beside"), [(LARGE_BODY, False), (LARGE_BODY + 1, True)])
async def test_large_bodies_are_parsed_beside_the_event_loop(
    size: int, beside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []

    def parse(kind: type[CompletionBody], data: bytes) -> CompletionBody:
        threads.append(threading.get_ident())
        return parse_body(kind, data)

    monkeypatch.setattr(bodies, "parse_body", parse)
    body = await read_body(ENGINE, CompletionBody, b'{"prompt": "x"}'.ljust(size))
    assert body.prompt == ["x"]
    assert (threads != [threading.get_ident()]) is beside

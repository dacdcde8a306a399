"""Reading YAML: values, lines, references to the environment, and what is refused."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from unittest import mock

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from llamalane.errors import ConfigError
from llamalane.scheduler.config_file import MAX_BYTES, MAX_DEPTH, Document, read_document


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("config") / "file.yaml"


def read(file: Path, text: str | bytes, environment: dict[str, str] | None = None) -> Document:
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    with mock.patch.dict(os.environ, environment or {}, clear=True):
        return read_document(file)


def refusal(file: Path, text: str | bytes) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        read(file, text)
    return caught.value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8", 8),
        ("-1", -1),
        ("0", 0),
        ("0.5", 0.5),
        (".5", 0.5),
        ("1e3", 1000.0),
        (".inf", float("inf")),
        ("-.inf", float("-inf")),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("on", "on"),
        ("off", "off"),
        ("yes", "yes"),
        ("no", "no"),
        ("007", "007"),
        ("12:30", "12:30"),
        ("2024-01-01", "2024-01-01"),
        ("1_000", "1_000"),
        ("0x10", "0x10"),
        ("9" * 5000, "9" * 5000),
        ("'8'", "8"),
        ('"true"', "true"),
        ('""', ""),
        ("|\n  8\n", "8\n"),
        ("[1, [two, 3.0], {four: null}]", [1, ["two", 3.0], {"four": None}]),
        ("{a: {b: [c]}}", {"a": {"b": ["c"]}}),
        ("[]", []),
        ("{}", {}),
    ],
)
def test_values_are_read_as_yaml_1_2_has_them(file: Path, text: str, value: object) -> None:
    document = read(file, f"key: {text}")
    assert document.values == {"key": value}
    assert type(document.values["key"]) is type(value)
    assert document.problems == []


# Without digits: the library writes YAML 1.1, where 0E0 is a text that needs no quotes.
TEXTS = st.text(st.characters(exclude_categories=["Cs", "Nd"]), max_size=10)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**17), 10**17) | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=12,
)


@given(values=st.dictionaries(TEXTS, VALUES, min_size=1, max_size=4), flow=st.booleans())
def test_what_a_yaml_library_writes_is_read_back(file: Path, values: dict[str, object], flow: bool) -> None:
    # Through JSON no object occurs twice, which would be written as an alias.
    document = read(file, yaml.safe_dump(json.loads(json.dumps(values)), default_flow_style=flow))
    assert document.values == values
    assert document.problems == []


@given(data=st.binary(max_size=60) | st.text(st.sampled_from("ab:-[]{}\"'#&*!|>%@`, \n\t$\\1."), max_size=40))
def test_any_file_is_either_read_or_refused(file: Path, data: str | bytes) -> None:
    with contextlib.suppress(ConfigError):
        assert isinstance(read(file, data).values, dict)


def test_each_key_and_entry_has_its_line(file: Path) -> None:
    document = read(file, "# first\n\na: 1\nb:\n  - c: 2\n    d:\n      3\n  - {e: 4,\n     f: 5}\n")
    assert document.lines == {
        (): 3,
        ("a",): 3,
        ("b",): 4,
        ("b", 0): 5,
        ("b", 0, "c"): 5,
        ("b", 0, "d"): 6,
        ("b", 1): 8,
        ("b", 1, "e"): 8,
        ("b", 1, "f"): 9,
    }
    assert document.line(("b", 0, "c", "deeper", 7)) == 5
    assert document.line(("nowhere",)) == 3


def test_skipped_keys_are_not_looked_at(file: Path) -> None:
    file.write_text("a: 1\napi: {key: '${env:UNSET_VARIABLE}', key: 2}\nb: {api: 3}\n")
    document = read_document(file, skip={"api"})
    assert document.values == {"a": 1, "b": {"api": 3}}
    assert document.problems == []


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("", None, "empty"),
        ("# nothing but a comment\n", None, "empty"),
        ("\n- a\n", 2, "this is a list"),
        ("just text", 1, "this is a single value"),
        ("a: 1\nb: [1, 2\nc: 3\n", 3, "flow sequence"),
        ("a: 1\n\tb: 2\n", 2, "character '\\t'"),
        ("a: 1\n---\nb: 2\n", 2, "single document"),
        ("a: &one 1\nb: 2\n", 1, "anchors are not supported"),
        ("a: 1\nb: *one\n", 2, "aliases are not supported"),
        ("a: &a [*a]\n", 1, "anchors are not supported"),
        ("a: 1\nb: !!python/object:os.system x\n", 2, "tags are not supported"),
        ("a: !secret 1\n", 1, "tags are not supported"),
        ("a: 1\nb: !secret!secret 1\n", 2, "tags are not supported"),
        (b"a: 1\nb: \xff\n", 2, "UTF-8"),
        ("a: 1\nb: \x01\n", 2, "U+0001"),
        ("a: {b: ${env:NAME}}\n", 1, "needs quotes"),
        ("a: " + "[" * (MAX_DEPTH + 1), 1, "deep"),
        ("a: " + "[" * 100_000, 1, "deep"),
        ("- " * 100_000, 1, "deep"),
        ("a: " + "x" * MAX_BYTES, None, "larger"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(file: Path, text: str | bytes, line: int | None, message: str) -> None:
    error = refusal(file, text)
    assert error.line == line
    assert error.source == str(file)
    assert str(error).startswith(f"{file}:{line}: " if line else f"{file}: ")
    assert message in str(error)


def test_a_billion_laughs_are_refused(file: Path) -> None:
    lines = ["a0: &a0 lol", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10))]
    assert "anchors are not supported" in str(refusal(file, "\n".join(lines)))


@pytest.mark.parametrize("path", ["missing.yaml", ".", "a\0b"])
def test_a_file_that_cannot_be_opened_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(ConfigError, match="cannot be read") as caught:
        read_document(tmp_path / path)
    assert caught.value.source == str(tmp_path / path)


@pytest.mark.parametrize(
    "text",
    [
        '"sekret',
        "'sekret\n  sekret: [",
        "*sekret",
        "&sekret",
        "!sekret x",
        "!sekret!x y",
        "sekret: sekret: x",
        "@sekret",
    ],
)
def test_a_refusal_does_not_quote_the_file(file: Path, text: str) -> None:
    assert "sekret" not in str(refusal(file, f"api:\n  api_key: {text}\n"))


def test_a_byte_order_mark_is_allowed(file: Path) -> None:
    assert read(file, b"\xef\xbb\xbfa: 1\n").values == {"a": 1}


def test_every_duplicate_key_is_told_with_both_lines(file: Path) -> None:
    document = read(file, "a: 1\nb: {c: 1, c: 2}\na: 3\n'a': 4\n")
    assert document.values == {"a": 1, "b": {"c": 1}}
    assert [(problem.location, problem.line) for problem in document.problems] == [
        (("b", "c"), 2),
        (("a",), 3),
        (("a",), 4),
    ]
    assert document.problems[1].message == "duplicate key 'a': it is in line 1 already"


@pytest.mark.parametrize("key", ["1", "true", "~", "[a]", "{a: b}", "? [a]\n"])
def test_keys_are_texts(file: Path, key: str) -> None:
    (problem,) = read(file, f"ok: 1\n{key}: 2\n").problems
    assert problem.line == 2
    assert "key must be a text" in problem.message


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${env:NUMBER}", 8),
        ("'${env:NUMBER}'", "8"),
        ("1${env:NUMBER}", 18),
        ("${env:FLAG}", True),
        ("${env:WORD}-${env:NUMBER}", "word-8"),
        ("[1, '${env:WORD}']", [1, "word"]),
        ("${env:UNSET:-5}", 5),
        ("${env:UNSET:-}", ""),
        ("${env:UNSET:-null}", None),
        ("${env:EMPTY:-5}", 5),
        ("${env:NULL}", "null"),
        ("${env:NULL:-5}", "null"),
        ("${env:EMPTY}", ""),
        ("${env:NUMBER:-5}", 8),
        ("${env:UNSET:-a:b-c}", "a:b-c"),
        ("${env:REFERENCE}", "${env:NUMBER}"),
        ("$NUMBER ${NUMBER}", "$NUMBER ${NUMBER}"),
    ],
)
def test_references_to_the_environment_are_replaced(file: Path, text: str, value: object) -> None:
    environment = {
        "NUMBER": "8",
        "FLAG": "true",
        "WORD": "word",
        "EMPTY": "",
        "NULL": "null",
        "REFERENCE": "${env:NUMBER}",
    }
    document = read(file, f"key: {text}\n", environment)
    assert document.values == {"key": value}
    assert type(document.values["key"]) is type(value)
    assert document.problems == []


@given(value=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
def test_a_quoted_reference_is_the_variable_itself(file: Path, value: str) -> None:
    assert read(file, 'key: "${env:NAME}"', {"NAME": value}).values == {"key": value}


def test_every_unset_variable_is_told_with_its_line(file: Path) -> None:
    document = read(file, "a: ${env:ONE}\nb:\n  - ${env:TWO}\n")
    assert [(problem.line, problem.message) for problem in document.problems] == [
        (1, "the environment variable ONE is not set"),
        (3, "the environment variable TWO is not set"),
    ]


@pytest.mark.parametrize("text", ["${env:}", "${env:1}", "${env:A B}", "${env:NAME", "${env:NAME-x}", "${env:NAME:x}"])
def test_a_malformed_reference_is_told(file: Path, text: str) -> None:
    (problem,) = read(file, f"a: 1\nb: {text}\n", {"NAME": "x"}).problems
    assert problem.line == 2
    assert "${env:NAME:-default}" in problem.message

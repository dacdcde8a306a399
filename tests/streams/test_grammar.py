from __future__ import annotations

import json

import pytest

from llamalane.errors import InvalidRequestError
from llamalane.streams import Grammar, GrammarKind, SamplingParameters
from llamalane.streams.grammar import MAX_CHARACTERS, MAX_COMPOSITE_CHARACTERS, MAX_RULES_CHARACTERS

LENGTHS = {GrammarKind.RULES: MAX_RULES_CHARACTERS, GrammarKind.COMPOSITE: MAX_COMPOSITE_CHARACTERS}


def test_grammars_are_equal_by_what_they_say() -> None:
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    assert Grammar.json_schema(schema) == Grammar.json_schema(json.dumps(schema)) != Grammar.json_object()
    assert len({Grammar.regex("a"), Grammar.regex("a"), Grammar.rules("a")}) == 2


@pytest.mark.parametrize(
    ("kind", "most"),
    [(kind, LENGTHS.get(kind, MAX_CHARACTERS)) for kind in GrammarKind],
)
def test_a_text_that_is_empty_too_long_or_none_is_refused(kind: GrammarKind, most: int) -> None:
    assert Grammar(kind, "x" * most).text
    for text in ("", "x" * (most + 1), 5):
        with pytest.raises(InvalidRequestError, match=f"{kind.value} must be a text of 1 to {most:,}") as caught:
            Grammar(kind, text)  # type: ignore[arg-type]
        assert caught.value.param == "grammar"


@pytest.mark.parametrize("texts", [[], [""], ["a", ""], ["a", 5], "ab", None, True, {"a": 1}])
def test_choices_are_texts_with_something_in_them(texts: object) -> None:
    with pytest.raises(InvalidRequestError, match="a list of at least one text"):
        Grammar.choice(texts)  # type: ignore[arg-type]


def test_sampling_takes_a_grammar_and_nothing_else_for_it() -> None:
    assert SamplingParameters(grammar=Grammar.regex("a+")).grammar == Grammar.regex("a+")
    with pytest.raises(InvalidRequestError, match=r"must be a Grammar or None; got 'a\+'"):
        SamplingParameters(grammar="a+")  # type: ignore[arg-type]

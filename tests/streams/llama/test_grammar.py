"""The byte vocabulary of the tiny model makes grammars easy to check: a token is a byte, so a text has one spelling."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import ParamSpec, TypeVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamalane.errors import GrammarError, InvalidRequestError, ModelLoadError
from llamalane.streams import Grammar
from llamalane.streams.llama import Follower, Following, Grammars, Model, ModelOptions, Vocabulary
from llamalane.streams.llama.grammar import KEPT_GRAMMARS, Mask
from tests.models.tiny_gguf import EOS

P = ParamSpec("P")
T = TypeVar("T")
ROOT = Path(__file__).parents[3]


class AtOnce(Executor):
    """Does what it is given before it goes on."""

    def submit(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        done: Future[T] = Future()
        try:
            done.set_result(work(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        return done


HELPER = AtOnce()


def tokens_of(model: Model, text: str) -> list[int]:
    """The tokens of a text that follows others."""
    token_of = {piece: token for token, piece in enumerate(model.vocabulary.pieces) if len(piece) == 1}
    return [token_of[bytes([byte])] for byte in text.encode()]


def allowed(model: Model, mask: Mask) -> set[bytes]:
    """What may come next, with `b""` for the end."""
    return {model.vocabulary.pieces[token] for token in np.flatnonzero(mask.bias == 0)}


def accepts(model: Model, grammar: Grammar, text: str) -> bool:
    """Whether `text` is an output that the grammar allows, from its beginning to its end."""
    follower = Follower(Following(model.grammars.compile(grammar)), HELPER)
    tokens = tokens_of(model, text)
    for place, token in enumerate(tokens):
        if follower.mask().bias[token] != 0:
            return False
        if follower.accept(token):
            return place == len(tokens) - 1
    return b"" in allowed(model, follower.mask())


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=4)


@given(texts=st.lists(st.one_of(TEXTS, st.text("ab", min_size=1, max_size=4)), min_size=1, max_size=6), data=st.data())
def test_at_each_place_of_a_choice_exactly_what_goes_on_is_allowed(
    model: Model, texts: list[str], data: st.DataObject
) -> None:
    compiled = model.grammars.compile(Grammar.choice(texts))
    spelled = [text.encode() for text in texts]
    follower = Follower(Following(compiled), HELPER)
    written: list[int] = []
    so_far = b""
    while True:
        going_on = {text[len(so_far) : len(so_far) + 1] for text in spelled if text.startswith(so_far)}
        mask = follower.mask()
        assert allowed(model, mask) == going_on
        assert (mask.end is not None) == (going_on == {b""})
        assert set(mask.bias.tolist()) <= {0.0, -np.inf}
        resumed = Follower(Following(compiled, written), HELPER).mask()
        np.testing.assert_array_equal(resumed.bias, mask.bias)
        more = sorted(going_on - {b""})
        if not more:
            break
        so_far += data.draw(st.sampled_from(more))
        written.append(model.vocabulary.pieces.index(so_far[-1:]))
        if follower.accept(written[-1]):
            assert so_far in spelled
            assert not any(text.startswith(so_far) and text != so_far for text in spelled)
            break


@pytest.mark.parametrize(
    ("grammar", "right", "wrong"),
    [
        (Grammar.regex(r"[a-c]+\d{2}"), ["a12", "cab00"], ["a1", "d12", "a123", "A12", ""]),
        (Grammar.regex("^ab|cd$"), ["ab", "cd"], ["abcd", "a"]),
        (Grammar.regex("(ü|😀)?x"), ["üx", "😀x", "x"], ["ü", "😀"]),
        (Grammar.choice(["yes", "no", "not so"]), ["yes", "no", "not so"], ["not", "", "yesno"]),
        (Grammar.rules('start: "(" start ")" | "x"'), ["x", "((x))"], ["((x)", "()"]),
        (Grammar.rules('root ::= "a" b?\nb ::= [0-9]'), ["a", "a7"], ["a77", "7"]),
        (Grammar.json_object(), ["{}", '{"a": [1, null]}', '{\n  "a": {"b": "ü"}\n}'], ["[]", "1", '{"a"}', "{a: 1}"]),
        (Grammar.json_schema({"enum": ["a", 1, None]}), ['"a"', "1", "null"], ["a", "2"]),
        (Grammar.json_schema({"type": "integer", "minimum": 3, "maximum": 12}), ["3", "12"], ["2", "13", "3.5"]),
        (Grammar.json_schema({}), ["5", "[]", '"x"'], ["x"]),
    ],
)
def test_what_a_grammar_allows(model: Model, grammar: Grammar, right: Sequence[str], wrong: Sequence[str]) -> None:
    assert [text for text in right if not accepts(model, grammar, text)] == []
    assert [text for text in wrong if accepts(model, grammar, text)] == []


def test_space_between_parts_of_json_is_bounded(model: Model) -> None:
    grammar = Grammar.json_schema({"type": "array", "items": {"type": "integer"}})
    assert accepts(model, grammar, "[\n" + " " * 20 + "1, 2]")
    for space in (" " * 2, "\n\n", "\n" + " " * 21, " \n"):
        assert not accepts(model, grammar, f"[{space}1]")
    own = Grammar.json_schema({"type": "array", "x-guidance": {"whitespace_pattern": "[ ]{3}"}})
    assert accepts(model, own, "[   ]")
    named = Grammar.json_schema({"type": "object", "properties": {"x-guidance": {"type": "integer"}}})
    assert accepts(model, named, '{"x-guidance": 5}')


def test_thousands_of_choices_are_no_matter(model: Model) -> None:
    grammar = Grammar.choice([f"choice {number}" for number in range(3_000)])
    assert accepts(model, grammar, "choice 2999")
    assert not accepts(model, grammar, "choice 3000")


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        (Grammar.json_schema({"type": "array", "uniqueItems": True}), 'json schema .*keys: ."uniqueItems"'),
        (Grammar.json_schema({"not": {}}), "not"),
        (Grammar.json_schema({"if": {}, "then": {}}), '"if", "then"'),
        (Grammar.json_schema({"type": "strin"}), "strin"),
        (Grammar.json_schema({"type": "string", "format": "colour"}), "Unknown format: colour"),
        (Grammar.json_schema({"type": "string", "pattern": "(?=a)"}), "look-ahead"),
        (Grammar.json_schema({"$ref": "#/$defs/none"}), r"/\$defs/none"),
        (Grammar.json_schema({"$ref": "http://127.0.0.1/x"}), "does not fetch"),
        (Grammar.json_schema({"allOf": [{"type": "string"}, {"type": "null"}]}), "incompatible types"),
        (Grammar.json_schema("false"), "object"),
        (Grammar.json_schema({"type": "object", "x-guidance": 5}), "x-guidance must be an object, .*got 5"),
        (Grammar.json_schema({"type": "object", "x-guidance": None}), "x-guidance must be an object, .*got null"),
        (Grammar.json_schema({"type": "object", "x-guidance": {"lenient": True}}), "x-guidance may not set lenient"),
        (Grammar.json_schema({"type": "object", "x-guidance": {"whitespace": " "}}), "unknown field `whitespace`"),
        (Grammar.json_schema('{"type":'), "line 1 column"),
        (Grammar.json_schema("[]"), "object"),
        (Grammar.json_schema('"\\ud800"'), "json schema cannot be used"),
        (Grammar.regex("(a"), "unclosed group"),
        (Grammar.regex("a\ud800"), "surrogates"),
        (Grammar.rules("start: b"), r'at 1\(8\): unknown name: "b"'),
        (Grammar.rules("start: start"), "no text fits it"),
        (Grammar.rules('rule: "a"'), "Expected ::="),
        (Grammar.rules("root ::= ("), "rules cannot be used"),
        (Grammar.rules("start: <nothing>"), "unknown special token"),
    ],
)  # fmt: skip
def test_a_grammar_that_cannot_be_used_is_refused_with_the_reason(model: Model, grammar: Grammar, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as caught:
        model.grammars.compile(grammar)
    assert caught.value.param == "grammar"
    assert len(str(caught.value)) < 600
    assert "<state>" not in str(caught.value)
    assert model.grammars.find(grammar) is None


def test_a_token_against_the_grammar_fails_that_output_alone(model: Model) -> None:
    compiled = model.grammars.compile(Grammar.regex("ab"))
    one, other = (Follower(Following(compiled), HELPER) for _ in range(2))
    [wrong] = tokens_of(model, "x")
    one.mask()
    with pytest.raises(GrammarError, match=r"cannot be followed: .*doesn't satisfy the grammar"):
        one.accept(wrong)
    assert allowed(model, other.mask()) == {b"a"}
    with pytest.raises(GrammarError, match="cannot be followed"):
        Follower(Following(compiled, [wrong]), HELPER).mask()


def test_the_grammars_used_last_are_kept(model: Model) -> None:
    grammars = Grammars(model.vocabulary)
    first, second = Grammar.regex("first"), Grammar.regex("second")
    kept = grammars.compile(first)
    grammars.compile(second)
    for number in range(KEPT_GRAMMARS - 1):
        assert grammars.find(first) is kept is grammars.compile(first)
        grammars.compile(Grammar.regex(f"{number}"))
    assert grammars.find(first) is kept
    assert grammars.find(second) is None


def test_grammars_of_a_closed_model_are_refused(tiny_model: Path) -> None:
    with Model(ModelOptions(path=tiny_model)) as model:
        model.grammars.compile(Grammar.regex("a"))
    with pytest.raises(ModelLoadError, match="closed"):
        model.grammars.compile(Grammar.regex("b"))


def test_a_model_without_an_end_takes_no_grammars(vocabulary: Vocabulary, tiny_model: Path) -> None:
    with Model(ModelOptions(path=tiny_model)) as model:
        model.vocabulary.end_of_generation = frozenset()
        with pytest.raises(InvalidRequestError, match="no token that ends generation"):
            model.grammars.compile(Grammar.regex("a"))


def test_control_tokens_are_no_text(model: Model) -> None:
    mask = Follower(Following(model.grammars.compile(Grammar.regex("(?s:.*)"))), HELPER).mask()
    control = [token for token, piece in enumerate(model.vocabulary.pieces) if not piece]
    assert [token for token in control if mask.bias[token] == 0] == [EOS]
    marked = model.vocabulary.marked_pieces(b"\xff")
    assert [token for token, piece in enumerate(marked) if piece.startswith(b"\xff") and len(piece) > 1] == control


def test_the_deepest_grammars_end_no_process(tiny_model: Path) -> None:
    command = [sys.executable, "-m", "tests.streams.llama.deep_grammars", str(tiny_model)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split().count("compiled") >= 6


def test_a_choice_is_written_as_json(model: Model) -> None:
    texts = ['quoted "x"', "back\\slash", "line\nbreak", "\x00\x1f\x7f", "😀", "é"]
    assert json.loads(Grammar.choice(texts).text) == texts
    assert all(accepts(model, Grammar.choice(texts), text) for text in texts)

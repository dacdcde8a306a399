"""Grammars as llguidance reads them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import llguidance

from llamalane.errors import InvalidRequestError
from llamalane.streams.grammar import Grammar, GrammarKind, GrammarPart

WHITESPACE = r" |\n[ \t]{0,20}"
"""What may stand between two parts of JSON, once. Without a bound a weak model goes on with it for ever."""

FindMark = Callable[[str], int | None]
"""Returns the control token of that name, None if the vocabulary has none."""

_OPTIONS = "x-guidance"
"""The keyword of a schema with options for llguidance."""
_LONGEST_REASON = 500
_NOTHING_FITS = frozenset({"NoExtension", "NoExtensionBias"})


def source_of(grammar: Grammar, find_mark: FindMark) -> str:
    """Return `grammar` as llguidance reads it; raises `InvalidRequestError` for one that is wrong at first sight."""
    try:
        match grammar.kind:
            case GrammarKind.JSON_SCHEMA:
                _check_options(grammar)
                return llguidance.LLMatcher.grammar_from_json_schema(
                    grammar.text, defaults={"whitespace_pattern": WHITESPACE}
                )
            case GrammarKind.CHOICE:
                # One terminal: thousands of alternatives of a rule would be too many for the parser.
                choices = map(json.dumps, json.loads(grammar.text))
                return llguidance.grammar_from("lark", f"start: CHOICE\nCHOICE: {' | '.join(choices)}")
            case GrammarKind.REGEX | GrammarKind.RULES:
                return llguidance.grammar_from(grammar.kind.value, grammar.text)
            case GrammarKind.COMPOSITE:
                return _composite(json.loads(grammar.text), find_mark)
    except ValueError as error:
        raise unusable(grammar, str(error)) from None


def parts_of(grammar: Grammar) -> list[GrammarPart]:
    """Return the grammars that one is put together from, none for one that is not."""
    if grammar.kind is not GrammarKind.COMPOSITE:
        return []
    parts = json.loads(grammar.text)["parts"].values()
    return [GrammarPart(part["label"], Grammar(GrammarKind(part["kind"]), part["text"])) for part in parts]


def unusable(grammar: Grammar, reason: str) -> InvalidRequestError:
    """Return the error for a grammar that llguidance refuses."""
    name = "rules" if grammar.kind is GrammarKind.RULES else grammar.kind.value.replace("_", " ")
    return InvalidRequestError(f"the {name} cannot be used as a grammar: {shorten(reason)}", param="grammar")


def labelled(label: str, error: InvalidRequestError) -> InvalidRequestError:
    """Return the error of a part, which says whose it is."""
    return InvalidRequestError(f"{label}: {error}", param=label)


def shorten(reason: str) -> str:
    """Return an error of llguidance without the parser's state, which stands in angle brackets after it."""
    reason, _, _ = reason.partition("\n<")
    return "no text fits it" if reason in _NOTHING_FITS else reason[:_LONGEST_REASON]


def _check_options(grammar: Grammar) -> None:
    """Raise `InvalidRequestError` for a schema whose options llguidance would overlook, or that let it overlook others.

    It refuses unknown options, and values of the wrong type, by itself.
    """
    schema = json.loads(grammar.text) if _OPTIONS in grammar.text else None
    if not isinstance(schema, dict) or _OPTIONS not in schema:
        return
    options = schema[_OPTIONS]
    if not isinstance(options, dict):
        example = '{"whitespace_pattern": "..."}'
        raise unusable(grammar, f"{_OPTIONS} must be an object, such as {example}; got {json.dumps(options)}")
    if options.get("lenient"):
        raise unusable(grammar, f"{_OPTIONS} may not set lenient, which lets keywords be dropped silently")


def _composite(content: Mapping[str, Any], find_mark: FindMark) -> str:
    lines = ["%llguidance {}", content["rules"], r"TEXT: /(.|\n)*/"]
    for name, mark in content["marks"].items():
        token = find_mark(mark)
        if token is None:
            lines += [f"{name}: {json.dumps(mark)}", f"to_{name}[lazy]: TEXT {json.dumps(mark)}"]
        else:  # no text can hold it
            lines += [f"{name}: <[{token}]>", f"to_{name}: TEXT <[{token}]>"]
    grammars = [{"name": "composite", "lark_grammar": "\n".join(lines)}]
    for name, part in content["parts"].items():
        try:
            source = source_of(Grammar(GrammarKind(part["kind"]), part["text"]), find_mark)
        except InvalidRequestError as error:
            raise labelled(part["label"], error) from None
        # llguidance writes some kinds in Lark, and some as a list of grammars that has one.
        body = json.loads(source)["grammars"][0] if source.startswith("{") else {"lark_grammar": source}
        grammars.append({**body, "name": name})
    return json.dumps({"grammars": grammars})

"""What a request may say about the form of its output."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from llamalane.errors import InvalidRequestError

MAX_CHARACTERS = 65_536
"""A grammar's text may have so many characters."""
MAX_RULES_CHARACTERS = 16_384
"""So many if it consists of rules, since compiling them can take time that grows with the square of their number."""
MAX_COMPOSITE_CHARACTERS = 131_072
"""So many if it is put together from others, such as the schemas of an agent's tools."""


class GrammarKind(enum.Enum):
    """What a grammar is written in."""

    JSON_SCHEMA = "json_schema"
    """A JSON schema: the output is JSON that fits it."""
    REGEX = "regex"
    """A regular expression in the syntax of Rust's crate `regex`, which the whole output matches."""
    CHOICE = "choice"
    """A JSON list of strings: the output is one of them."""
    RULES = "grammar"
    """A context-free grammar: Lark's syntax, with the rule `start`, or llama.cpp's GBNF, with the rule `root`."""
    COMPOSITE = "composite grammar"
    """What `Grammar.composite` makes: JSON that holds rules and the grammars that they refer to."""


@dataclass(frozen=True, slots=True)
class GrammarPart:
    """A grammar within another one; `label` is what errors call it."""

    label: str
    grammar: Grammar


@dataclass(frozen=True, slots=True)
class Grammar:
    """A form that an output must have. Raises `InvalidRequestError` for a text that is empty or too long.

    Whether the text is right is found out when it is compiled, on submission.
    """

    kind: GrammarKind
    text: str

    def __post_init__(self) -> None:
        most = _MOST_CHARACTERS.get(self.kind, MAX_CHARACTERS)
        if not isinstance(self.text, str) or not 0 < len(self.text) <= most:
            got = f"{len(self.text)} characters" if isinstance(self.text, str) else repr(self.text)[:100]
            raise InvalidRequestError(
                f"a {self.kind.value} must be a text of 1 to {most:,} characters; got {got}",
                param="grammar",
            )

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any] | str) -> Self:
        """JSON that fits `schema`, which is given as it is or as text."""
        return cls(GrammarKind.JSON_SCHEMA, schema if isinstance(schema, str) else json.dumps(schema))

    @classmethod
    def json_object(cls) -> Self:
        """Any JSON object."""
        return cls.json_schema({"type": "object"})

    @classmethod
    def regex(cls, pattern: str) -> Self:
        """A text that `pattern` matches as a whole."""
        return cls(GrammarKind.REGEX, pattern)

    @classmethod
    def choice(cls, texts: Sequence[str]) -> Self:
        """One of `texts`, of which there must be one, none of them empty."""
        if (
            not isinstance(texts, list | tuple)
            or not texts
            or not all(isinstance(text, str) and text for text in texts)
        ):
            raise InvalidRequestError(
                f"the choices must be a list of at least one text, none of them empty; got {texts!r:.200}",
                param="grammar",
            )
        return cls(GrammarKind.CHOICE, json.dumps(list(texts)))

    @classmethod
    def rules(cls, text: str) -> Self:
        """A text that a context-free grammar derives, in the syntax of Lark or GBNF."""
        return cls(GrammarKind.RULES, text)

    @classmethod
    def composite(cls, rules: str, *, marks: Mapping[str, str], parts: Mapping[str, GrammarPart]) -> Self:
        """A text that `rules` derive, in Lark's syntax, which may refer to other grammars and to a model's marks.

        `@name` stands for the part of that name, which may not be a composite itself. For each mark there are two
        rules: `name` is the mark, as the control token that it is in the model's vocabulary or else as text, and
        `to_name` is any text up to the first such mark, with it. `TEXT` is any text.
        """
        content = {
            "rules": rules,
            "marks": dict(marks),
            "parts": {
                name: {"label": part.label, "kind": part.grammar.kind.value, "text": part.grammar.text}
                for name, part in parts.items()
            },
        }
        return cls(GrammarKind.COMPOSITE, json.dumps(content))


_MOST_CHARACTERS: Mapping[GrammarKind, int] = {
    GrammarKind.RULES: MAX_RULES_CHARACTERS,
    GrammarKind.COMPOSITE: MAX_COMPOSITE_CHARACTERS,
}

"""Compiles the deepest grammars that fit their length; a process of its own, since a stack that overflows ends it."""

from __future__ import annotations

import itertools
import string
import sys
from collections.abc import Iterator
from pathlib import Path

from llamalane.errors import InvalidRequestError
from llamalane.streams import Grammar
from llamalane.streams.grammar import MAX_CHARACTERS, MAX_RULES_CHARACTERS
from llamalane.streams.llama import Model, ModelOptions

RULES = ("{0}:{1}\n", "{0}:((((((((((((((((({1})))))))))))))))))\n", '{0}:"b" {1}|"c"\n')
REFERENCES = (
    '"{0}":{{"$ref":"#/$defs/{1}"}},',
    '"{0}":{{"items":{{"$ref":"#/$defs/{1}"}}}},',
    '"{0}":{{"allOf":[{{"$ref":"#/$defs/{1}"}},{{"minLength":1}}]}},',
)


def names(letters: str) -> Iterator[str]:
    return ("".join(name) for length in (1, 2, 3) for name in itertools.product(letters, repeat=length))


def chain(link: str, letters: str, length: int) -> tuple[str, str]:
    """Return as many links as fit, each of which leads to the next one, and where they end."""
    text = ""
    for name, following in itertools.pairwise(names(letters)):
        if len(text) + len(link.format(name, following)) > length:
            return text, name
        text += link.format(name, following)
    raise AssertionError("there are too few names")


def grammars() -> Iterator[Grammar]:
    for letters in (string.ascii_lowercase, string.ascii_uppercase):
        for link in RULES:
            text, end = chain(link, letters, MAX_RULES_CHARACTERS - 100)
            yield Grammar.rules(f'start:{letters[0]}\n{text}{end}:"x"\n')
    for link in REFERENCES:
        text, end = chain(link, string.ascii_lowercase, MAX_CHARACTERS - 100)
        yield Grammar.json_schema(f'{{"$ref":"#/$defs/a","$defs":{{{text}"{end}":{{}}}}}}')
    for opening, closing in (("(", ")"), ("(?:", ")*")):
        yield Grammar.regex(opening * 10_000 + "a" + closing * 10_000)
    yield Grammar.json_schema('{"items":' * 5_000 + "{}" + "}" * 5_000)


def main(path: str) -> None:
    with Model(ModelOptions(path=Path(path))) as model:
        for grammar in grammars():
            try:
                model.grammars.compile(grammar).matcher().compute_bitmask()
            except InvalidRequestError:
                print("refused")
            else:
                print("compiled")


if __name__ == "__main__":
    main(sys.argv[1])

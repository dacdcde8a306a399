"""The form that a client wants its answers to have: OpenAI's `response_format`, and vLLM's fields for more."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from llamalane.errors import InvalidRequestError
from llamalane.scheduler import Grammar

_SCHEMA_FIELDS = frozenset({"name", "description", "schema", "strict"})


def read_grammar(fields: Mapping[str, Any]) -> tuple[str, Grammar] | None:
    """Return the grammar that a body asks for, and the name of the field that does; null fields are unset.

    Raises `InvalidRequestError`, whose `param` is the field's name, for what is not understood, and for more than one.
    """
    given = [name for name in READERS if fields.get(name) is not None]
    found: list[tuple[str, Grammar]] = []
    for name in given:
        try:
            grammar = READERS[name](fields[name])
        except InvalidRequestError as error:
            raise InvalidRequestError(f"{name} is not valid: {error}", param=name) from None
        if grammar is not None:
            found.append((name, grammar))
    if len(found) > 1:
        names = " and ".join(name for name, _ in found)
        raise InvalidRequestError(f"{names} each ask for a form of the output; set one of them", param=found[1][0])
    return found[0] if found else None


def read_text_format(value: Any, field: str) -> Grammar | None:
    """Return the grammar that OpenAI's newer `text.format` asks for, which has the schema beside its type.

    Raises `InvalidRequestError` for what is not understood; `field` is what the client calls it.
    """
    try:
        if isinstance(value, dict) and value.get("type") == "json_schema":
            return _named_schema({name: part for name, part in value.items() if name != "type"}, "it")
        return _response_format(value)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{field} is not valid: {error}", param=field) from None


def _response_format(value: Any) -> Grammar | None:
    kind = value.get("type") if isinstance(value, dict) else None
    if kind not in ("text", "json_object", "json_schema"):
        raise InvalidRequestError('it must be an object whose type is "text", "json_object" or "json_schema"')
    _check_fields(value, {"type", "json_schema"} if kind == "json_schema" else {"type"})
    if kind == "json_schema":
        return _named_schema(value.get("json_schema"))
    return Grammar.json_object() if kind == "json_object" else None


def _named_schema(value: Any, called: str = "json_schema") -> Grammar:
    """Return what OpenAI's `json_schema` asks for. It is always kept to, whether or not it is `strict`."""
    if not isinstance(value, dict) or not isinstance(value.get("schema"), dict):
        raise InvalidRequestError(f"{called} must be an object that has the JSON schema as its schema")
    _check_fields(value, _SCHEMA_FIELDS)
    if not isinstance(value.get("strict"), bool | None):
        raise InvalidRequestError(f"strict must be true or false; got {value['strict']!r:.100}")
    return Grammar.json_schema(value["schema"])


def _schema(value: Any) -> Grammar:
    if not isinstance(value, dict | str):
        raise InvalidRequestError("it must be a JSON schema, as it is or as text")
    return Grammar.json_schema(value)


def _structured_outputs(value: Any) -> Grammar | None:
    """Return what vLLM's `structured_outputs` asks for; options that are false or null are unset."""
    if not isinstance(value, dict):
        raise InvalidRequestError(f"it must be an object with one of {', '.join(_STRUCTURED)}")
    given = {name: choice for name, choice in value.items() if choice is not None and choice is not False}
    _check_fields(given, _STRUCTURED.keys())
    if len(given) > 1:
        raise InvalidRequestError(f"{' and '.join(given)} exclude each other; set one of them")
    return next((_STRUCTURED[name](choice) for name, choice in given.items()), None)


def _json_object(value: Any) -> Grammar:
    if value is not True:
        raise InvalidRequestError(f"json_object must be true or false; got {value!r:.100}")
    return Grammar.json_object()


def _check_fields(value: Mapping[str, Any], known: Collection[str]) -> None:
    for name in value:
        if name not in known:
            raise InvalidRequestError(f"unrecognized field {name[:200]!r}")


_STRUCTURED: Mapping[str, Callable[[Any], Grammar]] = {
    "json": _schema,
    "json_object": _json_object,
    "regex": Grammar.regex,
    "choice": Grammar.choice,
    "grammar": Grammar.rules,
}
READERS: Mapping[str, Callable[[Any], Grammar | None]] = {
    "response_format": _response_format,
    "guided_json": _schema,
    "guided_regex": Grammar.regex,
    "guided_choice": Grammar.choice,
    "guided_grammar": Grammar.rules,
    "structured_outputs": _structured_outputs,
}
"""The fields of a body that say what form the output has, and what reads them."""

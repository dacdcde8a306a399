"""Reads request bodies: checked in full, and large ones beside the event loop."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any, Protocol, Self, TypeVar

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar
from pydantic import ValidationError

from llamalane.api.sampling_fields import SampledBody
from llamalane.errors import InvalidRequestError
from llamalane.scheduler import Engine

LARGE_BODY = 64 * 1024
"""A body of more bytes is parsed on a worker thread."""
MAX_PARTS = 200_000
"""So many objects, lists and strings may a large body hold, and so many values beside the tokens of its prompts."""

# A parser lets nothing else of Python run before it is done, on whichever thread: a body of too many parts must be
# refused before it is parsed, and one parser at a time is enough.
_PARSER: RunVar[anyio.CapacityLimiter] = RunVar("llamalane_parser")
_WINDOW = 256 * 1024

BodyT = TypeVar("BodyT", bound=SampledBody)


class CheckedBody(Protocol):
    """A body that is parsed, and then checked as a whole."""

    @classmethod
    def model_validate_json(cls, json_data: bytes, /) -> Self: ...  # noqa: D102  (pydantic's)

    def check(self) -> None:
        """Raise `InvalidRequestError` for what cannot be used."""


CheckedT = TypeVar("CheckedT", bound=CheckedBody)


async def read_body(engine: Engine, kind: type[CheckedT], data: bytes) -> CheckedT:
    """Return the body that `data` (JSON) holds; raises `InvalidRequestError`, with the field at fault."""
    if len(data) <= LARGE_BODY:
        return parse_body(kind, data)
    max_tokens = max(engine.config.scheduler.queue.max_tokens, engine.limit)

    def parse() -> CheckedT:
        check_parts(data, max_values=max_tokens + MAX_PARTS)
        return parse_body(kind, data)

    return await anyio.to_thread.run_sync(parse, limiter=_parser())


def parse_body(kind: type[CheckedT], data: bytes) -> CheckedT:
    """Return the body that `data` (JSON) holds; raises `InvalidRequestError`, with the field at fault."""
    try:
        body = kind.model_validate_json(data)
    except ValidationError as error:
        raise explain(error) from None
    json.loads(data, object_pairs_hook=_check_keys, parse_constant=_refuse_number, parse_float=_check_number)
    body.check()
    return body


def check_parts(data: bytes, *, max_values: int, max_parts: int = MAX_PARTS) -> None:
    """Raise `InvalidRequestError` for JSON that has too many values, or too many parts, to be parsed."""
    if data.count(b",") <= max_values and _parts(data) + data.count(b'"') // 2 <= max_parts:
        return
    values = parts = 0
    for piece in outside_strings(data):
        values += piece.count(b",")
        parts += _parts(piece) + piece.count(b'"')
    if values > max_values:
        raise InvalidRequestError(f"the body has {values} values, which are too many: at most {max_values} are taken")
    if parts > max_parts:
        raise InvalidRequestError(
            f"the body has {parts} objects, lists and strings, which are too many: at most {max_parts} are taken"
        )


def outside_strings(data: bytes) -> Iterator[bytes]:
    """Yield JSON piece by piece without its strings; a quotation mark stands for each of them, or for nearly each."""
    start, inside = 0, False
    while start < len(data):
        end = data.find(b'"', start + _WINDOW) + 1 or len(data)  # behind a quotation mark no escape is cut in two
        parts = data[start:end].replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        yield b'"'.join(parts[inside::2])
        inside ^= len(parts) % 2 == 0
        start = end


def _parts(data: bytes) -> int:
    return data.count(b"{") + data.count(b"[")


def _parser() -> anyio.CapacityLimiter:
    limiter = _PARSER.get(None)
    if limiter is None:
        limiter = anyio.CapacityLimiter(1)
        _PARSER.set(limiter)
    return limiter


def _check_keys(pairs: list[tuple[str, Any]]) -> None:
    keys = [key for key, _ in pairs]
    if len(set(keys)) < len(keys):
        [(key, _)] = Counter(keys).most_common(1)
        raise InvalidRequestError(f"the key {key[:200]!r} stands twice in the same object", param=key[:200])


def _check_number(text: str) -> None:
    if math.isinf(float(text)):
        _refuse_number(text)


def _refuse_number(text: str) -> None:
    """Refuse what is no number to others, who are told it again: in an answer, or in a prompt."""
    raise InvalidRequestError(f"the body is not valid JSON: {text[:50]} is no finite number")


def explain(refusal: ValidationError, where: str = "") -> InvalidRequestError:
    """Return what tells a client of the first thing that is wrong with a body, or with the part of it at `where`."""
    error = refusal.errors(include_url=False, include_input=False)[0]
    if error["type"] == "json_invalid":
        reason = error.get("ctx", {}).get("error", error["msg"])
        return InvalidRequestError(f"the body is not valid JSON: {reason}")
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error["loc"])
    param = where + path if where else path[1:]
    if not param:
        return InvalidRequestError("the body must be a JSON object")
    if error["type"] == "missing":
        return InvalidRequestError(f"{param} is missing", param=param)
    message = error["msg"]
    return InvalidRequestError(f"{param} is not valid: {message[:1].lower()}{message[1:]}", param=param)

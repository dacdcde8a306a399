"""Log probabilities in OpenAI's shapes: that of chats, which responses share, and the older one of completions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from llamalane.scheduler import OutputToken, PromptLogprobs, ScoredToken, Token, TokenLogprob
from llamalane.scheduler.spelling import starts_in

LOWEST = -9999.0
"""Stands for what is less likely still, down to −∞, which JSON cannot hold; OpenAI's API does the same."""


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt that stands before each of its outputs, with its log probabilities if they are asked for."""

    text: str
    logprobs: PromptLogprobs | None = None


def chat_logprobs(tokens: Iterable[OutputToken]) -> dict[str, Any]:
    """Return what is told of a chat's output, or of a piece of it."""
    content = [{**_entry(token), "top_logprobs": list(map(_entry, token.alternatives))} for token in tokens]
    return {"content": content, "refusal": None}


def response_logprobs(tokens: Iterable[OutputToken]) -> list[dict[str, Any]]:
    """Return what is told of the text of a response, which has no bytes where a chat has null for them."""
    return [
        {**_entry(token, []), "top_logprobs": [_entry(other, []) for other in token.alternatives]} for token in tokens
    ]


def completion_logprobs(tokens: Sequence[OutputToken], echo: Echo | None = None) -> dict[str, Any]:
    """Return what is told of a completion's output, or of a piece of it; `echo` is what stands before the output."""
    before = 0 if echo is None else len(echo.text)
    return _columns(tokens, [before + token.start for token in tokens])


def echo_logprobs(echo: Echo) -> dict[str, Any] | None:
    """Return what is told of the prompt before a completion; of its first token, nothing can be told but what it is."""
    if echo.logprobs is None:
        return None
    first, rest = echo.logprobs.first, echo.logprobs.rest
    starts = starts_in(echo.text, [first, *rest])
    start = {"tokens": [_name(first)], "token_logprobs": [None], "top_logprobs": [None], "text_offset": starts[:1]}
    return joined(start, _columns(rest, starts[1:]))


def joined(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Return what is told of two pieces of a completion that follow each other."""
    return {name: [*first[name], *second[name]] for name in first}


def _entry(token: TokenLogprob, no_bytes: list[int] | None = None) -> dict[str, Any]:
    return {
        "token": token.text,
        "logprob": _finite(token.logprob),
        "bytes": no_bytes if token.bytes is None else list(token.bytes),
    }


def _columns(tokens: Sequence[ScoredToken], starts: Sequence[int]) -> dict[str, Any]:
    return {
        "tokens": [_name(token) for token in tokens],
        "token_logprobs": [_finite(token.logprob) for token in tokens],
        "top_logprobs": [_likeliest(token) for token in tokens],
        "text_offset": list(starts),
    }


def _likeliest(token: ScoredToken) -> dict[str, float]:
    """Return the likeliest tokens by their names, and the one that stands there; of two of a name, the likelier one."""
    found: dict[str, float] = {}
    for one in (*token.alternatives, token):
        found.setdefault(_name(one), _finite(one.logprob))
    return found


def _name(token: Token) -> str:
    """Return how the older shape names a token; `bytes:` stands before one that is not whole characters."""
    try:
        return token.text if token.bytes is None else token.bytes.decode()
    except UnicodeDecodeError:
        return f"bytes:{token.text}"


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST)

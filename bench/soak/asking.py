"""What the clients of a soak ask for: everything that the API has, at all levels, right and wrong."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

OK, BAD, CONFLICT, FULL, LATE = 200, 400, 409, 429, 504
REFUSALS = frozenset({FULL})
"""What anybody may be told when there is too much to do."""
MOST_TOKENS = 48
MOST_WORDS = 60
_SUPERSEDED = 6
"""So many keys of `supersede` there are."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request, and the statuses with which it may be answered. `body` is None for a GET."""

    kind: str
    path: str
    body: Mapping[str, Any] | None
    allowed: frozenset[int]

    @property
    def streams(self) -> bool:
        """Whether the answer is a stream."""
        return self.body is not None and bool(self.body.get("stream"))

    def encode(self) -> bytes:
        """Return it as it goes over the wire, on a connection of its own."""
        content = b"" if self.body is None else json.dumps(self.body).encode()
        head = (
            f"{'GET' if self.body is None else 'POST'} {self.path} HTTP/1.1\r\nHost: server\r\n"
            f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + content


class Asker:
    """Draws requests. `limit` is the most tokens of a sequence; `embedder` names a model that embeds, if one does."""

    def __init__(self, seed: int, *, limit: int, embedder: str | None) -> None:
        self._random = random.Random(seed)
        self._limit = limit
        self._embedder = embedder
        self._kinds: dict[Callable[[], Ask], int] = {
            self._completion: 8,
            self._chat: 8,
            self._choices: 2,
            self._late: 2,
            self._superseded: 2,
            self._structured: 1,
            self._too_long: 1,
            self._wrong: 2,
            self._look: 2,
            self._tokens: 1,
        }
        if embedder is not None:
            self._kinds[self._texts] = 4

    def draw(self) -> Ask:
        """Return another request."""
        [kind] = self._random.choices(list(self._kinds), list(self._kinds.values()))
        return kind()

    def _completion(self) -> Ask:
        return self._generation("completion", prompt=self._words())

    def _chat(self) -> Ask:
        messages = [{"role": "user", "content": self._words()}]
        return _ask("chat", "/v1/chat/completions", {"messages": messages, **self._options()})

    def _choices(self) -> Ask:
        return self._generation("choices", prompt=self._words(), n=self._random.randint(2, 3))

    def _late(self) -> Ask:
        deadline = self._random.uniform(0.01, 2.0)
        return self._generation("deadline", LATE, prompt=self._words(), deadline=deadline)

    def _superseded(self) -> Ask:
        key = f"editor {self._random.randrange(_SUPERSEDED)}"
        return self._generation("supersede", CONFLICT, prompt=self._words(), supersede=key)

    def _structured(self) -> Ask:
        return self._generation("structured", prompt=self._words(), guided_choice=["yes", "no", "perhaps"])

    def _too_long(self) -> Ask:
        return Ask("too long", "/v1/completions", {"prompt": [5] * (self._limit + 1)}, frozenset({BAD, FULL}))

    def _wrong(self) -> Ask:
        bodies: list[dict[str, Any]] = [{"temperature": -1}, {"prompt": 7}, {"prompt": "x", "nonsense": True}]
        wrong = self._random.choice(bodies)
        return Ask("wrong", "/v1/completions", wrong, frozenset({BAD}))

    def _look(self) -> Ask:
        path = self._random.choice(["/v1/queue", "/metrics", "/health", "/v1/models"])
        return Ask("look", path, None, frozenset({OK}))

    def _tokens(self) -> Ask:
        return Ask("tokenize", "/tokenize", {"prompt": self._words()}, frozenset({OK}))

    def _texts(self) -> Ask:
        texts = [self._words() for _ in range(self._random.randint(1, 4))]
        body = {"model": self._embedder, "input": texts, "priority": self._level(), "truncate_prompt_tokens": -1}
        return _ask("embeddings", "/v1/embeddings", body)

    def _generation(self, kind: str, *more: int, **fields: Any) -> Ask:
        return _ask(kind, "/v1/completions", {**fields, **self._options()}, *more)

    def _options(self) -> dict[str, Any]:
        return {
            "stream": self._random.random() < 0.7,
            "max_tokens": self._random.randint(1, MOST_TOKENS),
            "ignore_eos": True,
            "priority": self._level(),
            "user": self._random.choice("abc"),
        }

    def _level(self) -> int:
        return self._random.randint(1, 5)

    def _words(self) -> str:
        return " ".join(self._random.choices(["ab", "cd", "ef", "gh"], k=self._random.randint(1, MOST_WORDS)))


def _ask(kind: str, path: str, body: Mapping[str, Any], *more: int) -> Ask:
    return Ask(kind, path, body, frozenset({OK, *REFUSALS, *more}))

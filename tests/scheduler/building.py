"""Makes requests without a model: their tokens are the code points of their text."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from llamalane.ids import Level, RequestId
from llamalane.scheduler.output import OutputText
from llamalane.scheduler.priority import Aging
from llamalane.scheduler.request import Request
from llamalane.streams import SamplingParameters

AGING = Aging(ceiling=3, interval=32)
END = 0
"""The token that ends an output; it stands for no text."""


class CodePoints:
    """Decodes a token as the character whose code point it is."""

    def add(self, token: int) -> str:
        return "" if token == END else chr(token)

    def flush(self) -> str:
        return ""


class RequestMaker:
    """Makes requests whose order is that of their making."""

    def __init__(self, aging: Aging = AGING) -> None:
        self.aging = aging
        self._orders = itertools.count(1)

    def make(
        self,
        level: int = 3,
        arrival: float = 0.0,
        *,
        prompt: str = "prompt",
        max_tokens: int = 8,
        stop: Sequence[str] = (),
        tenant: str = "",
        deadline: float | None = None,
        request_id: RequestId | None = None,
    ) -> Request:
        order = next(self._orders)
        return Request(
            id=request_id or RequestId(f"request-{order}"),
            tokens=[ord(letter) for letter in prompt],
            sampling=SamplingParameters(stop=tuple(stop), seed=0),
            max_tokens=max_tokens,
            level=Level(level),
            tenant=tenant,
            choice=0,
            arrival=arrival,
            key=self.aging.key(Level(level), arrival),
            order=order,
            output=OutputText(CodePoints(), stop),
            deadline=None if deadline is None else arrival + deadline,
            deadline_after=deadline or 0.0,
        )

"""What the answers to all requests that carry a priority have in common."""

from __future__ import annotations

from typing import Protocol

from starlette.responses import Response

from llamalane.api.config import ApiConfig
from llamalane.api.keys import Caller
from llamalane.api.priority import choose_level
from llamalane.ids import Level
from llamalane.scheduler import Engine


class PrioritizedBody(Protocol):
    """What of a body says how urgent it is."""

    @property
    def priority(self) -> object:
        """A level, or its name; None for none."""

    @property
    def service_tier(self) -> str | None:
        """OpenAI's word for it."""


class PrioritizedResponse(Response):
    """Answers a request of `caller`, whose header said `priority_header`."""

    def __init__(self, engine: Engine, *, caller: Caller, api: ApiConfig, priority_header: str | None) -> None:
        super().__init__()
        self._engine = engine
        self._caller = caller
        self._api = api
        self._priority_header = priority_header

    def _level_of(self, body: PrioritizedBody) -> Level:
        """Return the level that the request is served at; raises what `choose_level` raises."""
        return choose_level(
            self._engine.levels,
            body.priority,
            self._priority_header,
            body.service_tier,
            most_urgent=self._caller.most_urgent,
            cap=self._api.above_level == "cap",
        )

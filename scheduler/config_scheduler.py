"""The section for who is served next."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from llamalane.ids import LEAST_URGENT, MOST_URGENT
from llamalane.scheduler.config_fields import Integer, NotABool, Number, Section, refuse
from llamalane.scheduler.config_file import Location

DEFAULT_TARGET = 0.15
"""Seconds between two tokens that a level without a target of its own should see at most."""


def _level_name(name: str) -> str:
    if not re.fullmatch("[a-z][a-z0-9_-]*", name):
        raise ValueError(f"{name!r} cannot name a level: a lower-case letter, then letters, digits, - and _ can")
    return name


LevelName = Annotated[str, AfterValidator(_level_name)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False), NotABool]
LevelNumber = Annotated[int, Field(ge=MOST_URGENT, le=LEAST_URGENT), NotABool]


class QueueConfig(Section):
    """Bounds of the waiting queue; a request beyond them is refused at once."""

    max_requests: Integer = Field(default=1000, ge=1)
    """The most requests that wait."""
    max_tokens: Integer = Field(default=1_000_000, ge=1)
    """The most prompt tokens that wait, all requests together."""


class SchedulerConfig(Section):
    """Who is served next."""

    levels: dict[LevelName, LevelNumber] = Field(
        default={"interactive": 1, "agent": 2, "normal": 3, "background": 4, "batch": 5}, min_length=1
    )
    """Names for the priority levels: 1 is the most urgent, 5 the least."""
    default_level: str = Field(default="normal")
    """The name of the level of a request that names none."""
    ceiling: LevelNumber = Field(default=3)
    """The level that waiting lifts a request to at most; better levels do not age."""
    aging_interval: Number = Field(default=30.0, gt=0)
    """How many seconds of waiting make a request more urgent by one level."""
    guaranteed_share: Integer = Field(default=10, ge=0)
    """One in so many admissions goes to the request that has waited longest; 0 turns that off."""
    reserve: dict[str, Annotated[int, Field(ge=0), NotABool]] = Field(default={})
    """How many places are kept free for a level and better ones, such as {interactive: 1}. At least one place
    stays open to every level."""
    queue: QueueConfig = Field(default_factory=QueueConfig)
    """How much may wait; a request beyond it is refused at once."""
    target_itl: Seconds | dict[str, Seconds] = Field(default=DEFAULT_TARGET)
    """How many seconds there should be at most between two tokens of a sequence, for all levels, or for each by its
    name, such as {interactive: 0.1, batch: 1.0}; the others have 0.15. Prompts are computed in pieces that fit into
    it, and rows less urgent than those that would miss it sit out steps."""
    park: Literal["auto", "pause", "swap", "recompute"] = Field(default="auto")
    """How a request is parked that has to give way: its cells stay on the lane, go to host memory, or are computed
    again; auto takes what costs least."""
    max_parks: Integer = Field(default=3, ge=0)
    """How often in a row a request may have to give way to more urgent ones; 0 lets nobody be displaced."""
    abort_after: Seconds | None = Field(default=0.015)
    """A step on the CPU is broken off for a more urgent request that would wait longer than so many seconds for its
    end; null never does that."""
    drain_timeout: Number = Field(default=30.0, ge=0)
    """How many seconds the running requests have for finishing when the engine closes."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        named: list[tuple[Location, str]] = [(("default_level",), self.default_level)]
        named += [(("reserve", name), name) for name in self.reserve]
        if isinstance(self.target_itl, dict):
            named += [(("target_itl", name), name) for name in self.target_itl]
        levels = ", ".join(self.levels)
        refuse(
            [
                (location, f"{name!r} is none of the levels, which are {levels}")
                for location, name in named
                if name not in self.levels
            ]
        )
        return self

    def target_of(self, level: int) -> float:
        """Return the seconds that there should be at most between two tokens of a sequence of `level`."""
        if not isinstance(self.target_itl, dict):
            return self.target_itl
        named = [seconds for name, seconds in self.target_itl.items() if self.levels[name] == level]
        return min(named, default=DEFAULT_TARGET)

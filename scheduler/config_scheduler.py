"""The section for who is served next."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from llamalane.ids import LEAST_URGENT, MOST_URGENT, Level
from llamalane.scheduler.config_fields import Integer, NotABool, Number, Section, refuse
from llamalane.scheduler.config_file import Location


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
    reserve: dict[str, Annotated[int, Field(ge=0), NotABool]] = Field(default={})
    """How many of the requests that may wait can only be of a level and better ones, such as {interactive: 50}."""
    overflow: Literal["reject", "shed"] = Field(default="reject")
    """What becomes of a request that a full queue has no room for. reject: it is refused. shed: of those that wait,
    are less urgent and have not begun to answer, the last who came is turned out for it, if there is one."""


class TenantConfig(Section):
    """What one tenant may have: an API key, or whoever a request names if that is allowed."""

    weight: Number = Field(default=1.0, gt=0)
    """Its share of the tokens while others of the same level want theirs, in proportion to theirs."""
    concurrent: Annotated[int, Field(ge=1), NotABool] | None = Field(default=None)
    """The most requests that wait or run at once; null for no limit."""
    tokens_per_minute: Annotated[int, Field(ge=1), NotABool] | None = Field(default=None)
    """The most tokens in a minute, of prompts and outputs together; null for no limit."""


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
    target_itl: Number = Field(default=0.2, gt=0)
    """How many seconds there should be at most between two tokens of a sequence. Prompts are computed in pieces
    that fit into it, and rows less urgent than those that would miss it sit out steps."""
    level_targets: dict[str, Seconds] = Field(default={})
    """The same for a level that shall have another one, such as {interactive: 0.1, batch: 1.0}."""
    park: Literal["auto", "pause", "swap", "recompute"] = Field(default="auto")
    """How a request is parked that has to give way: its cells stay on the lane, go to host memory, or are computed
    again; auto takes what costs least."""
    max_parks: Integer = Field(default=3, ge=0)
    """How often in a row a request may have to give way to more urgent ones; 0 lets nobody be displaced."""
    abort_after: Seconds | None = Field(default=0.015)
    """A step on the CPU is broken off for a more urgent request that would wait longer than so many seconds for its
    end; null never does that."""
    handover: Literal["auto", "always", "never"] = Field(default="auto")
    """Whether prompts are computed on lanes of role prefill, and their cells handed over to the lane of the output.
    auto: if that saves time, as measured. always: all but short ones. never: lanes' roles have no effect. Without lanes
    of role prefill it has no effect."""
    tenants: dict[str, TenantConfig] = Field(default={})
    """What each tenant may have, by its name."""
    other_tenants: TenantConfig = Field(default_factory=TenantConfig)
    """What each of those may have that are not named."""
    drain_timeout: Number = Field(default=30.0, ge=0)
    """How many seconds the running requests have for finishing when the engine closes."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        named: list[tuple[Location, str]] = [(("default_level",), self.default_level)]
        named += [(("reserve", name), name) for name in self.reserve]
        named += [(("queue", "reserve", name), name) for name in self.queue.reserve]
        named += [(("level_targets", name), name) for name in self.level_targets]
        levels = ", ".join(self.levels)
        refuse(
            [
                (location, f"{name!r} is none of the levels, which are {levels}")
                for location, name in named
                if name not in self.levels
            ]
        )
        if sum(self.queue.reserve.values()) >= self.queue.max_requests:
            _refuse_reserve(self.queue)
        return self

    def by_level(self, counts: Mapping[str, int]) -> dict[Level, int]:
        """Return counts that go by the names of levels by the levels themselves."""
        totals: Counter[Level] = Counter()
        for name, count in counts.items():
            totals[Level(self.levels[name])] += count
        return dict(totals)

    def target_of(self, level: int) -> float:
        """Return the seconds that there should be at most between two tokens of a sequence of `level`."""
        named = [seconds for name, seconds in self.level_targets.items() if self.levels[name] == level]
        return min(named, default=self.target_itl)


def _refuse_reserve(queue: QueueConfig) -> None:
    reserved = sum(queue.reserve.values())
    message = f"{reserved} of {queue.max_requests} requests are reserved; one must stay open to every level"
    refuse([(("queue", "reserve"), message)])

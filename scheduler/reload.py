"""Which settings can change while an engine runs, and what differs between two configurations. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from pydantic import BaseModel, ValidationError

from llamalane.errors import ConfigError
from llamalane.scheduler.changes import Changes
from llamalane.scheduler.config import EngineConfig, SchedulerConfig

RELOADABLE = frozenset({"level_targets", "other_tenants", "queue", "target_itl", "tenants"})
"""The settings under `scheduler` that a running engine can take over."""


def engine_changes(old: EngineConfig, new: EngineConfig) -> Changes:
    """Tell what differs between two configurations of an engine."""
    changes = compare(old.scheduler, new.scheduler, "scheduler.", reloadable=RELOADABLE)
    for name in EngineConfig.model_fields.keys() - {"scheduler"}:
        changes += Changes(restart=tuple(_differing(getattr(old, name), getattr(new, name), name)))
    return changes


def compare(old: BaseModel, new: BaseModel, section: str = "", *, reloadable: Collection[str] = ()) -> Changes:
    """Tell what differs between two configurations of one kind, below the name of their section.

    The fields in `reloadable` count as applied, all others as what needs a restart.
    """
    applied: list[str] = []
    restart: list[str] = []
    for name in type(old).model_fields:
        differing = tuple(_differing(getattr(old, name), getattr(new, name), f"{section}{name}"))
        (applied if name in reloadable else restart).extend(differing)
    return Changes(tuple(applied), tuple(restart))


def merge(old: SchedulerConfig, new: SchedulerConfig) -> SchedulerConfig:
    """Return `old` with what can be taken over of `new`; raises `ConfigError` when the two do not go together."""
    values = {name: getattr(new if name in RELOADABLE else old, name) for name in SchedulerConfig.model_fields}
    try:
        return SchedulerConfig.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, ("scheduler", *first["loc"])))
        raise ConfigError(f"{where}: {first['msg']}; scheduler.levels can be changed by a restart only") from None


def _differing(old: object, new: object, name: str) -> Iterator[str]:
    if isinstance(old, BaseModel) and type(old) is type(new):
        assert isinstance(new, BaseModel)
        for field in type(old).model_fields:
            yield from _differing(getattr(old, field), getattr(new, field), f"{name}.{field}")
    elif old != new:
        yield name

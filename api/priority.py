"""Which priority a request has: its body says it, else its header, else its service tier."""

from __future__ import annotations

from llamalane.errors import InvalidPriorityError, InvalidRequestError, PermissionDeniedError
from llamalane.ids import MOST_URGENT, Level
from llamalane.scheduler import PriorityLevels

PRIORITY_HEADER = "X-Priority"
TIERS = ("auto", "default", "flex", "priority")


def choose_level(
    levels: PriorityLevels,
    body: object,
    header: str | None,
    tier: str | None,
    *,
    most_urgent: Level = MOST_URGENT,
    cap: bool = False,
) -> Level:
    """Return the level that a request asks for; where it does not say any, the default, if it may have that.

    It may have none better than `most_urgent`: with `cap` it gets that instead. Raises `PermissionDeniedError`
    otherwise, `InvalidPriorityError` for a priority that is no level and no name, and `InvalidRequestError` for an
    unknown service tier, even if it does not decide.
    """
    asked = _asked(levels, body, header, tier)
    if asked is None:
        return max(levels.default, most_urgent)
    if asked >= most_urgent:
        return asked
    if cap:
        return most_urgent
    raise PermissionDeniedError(
        f"this API key allows priorities from {most_urgent} ({levels.name(most_urgent)}) to {levels.least_urgent}, "
        f"and the request asks for {asked}: ask for a less urgent one, or for none",
        param="service_tier" if body is None and header is None else "priority",
    )


def _asked(levels: PriorityLevels, body: object, header: str | None, tier: str | None) -> Level | None:
    if tier is not None and tier not in TIERS:
        raise InvalidRequestError(
            f"service_tier must be one of {', '.join(TIERS)}; got {tier[:100]!r}", param="service_tier"
        )
    if body is not None:
        if isinstance(body, bool) or not isinstance(body, int | str):
            raise InvalidPriorityError(body, levels.names, levels.most_urgent, levels.least_urgent)
        return levels.parse(body)
    if header is not None:
        return levels.parse(header.strip())
    if tier == "priority":
        return levels.most_urgent
    if tier == "flex":
        return levels.least_urgent
    return None


def tier_of(levels: PriorityLevels, level: Level) -> str:
    """Return the service tier that a request of `level` is served at."""
    if level == levels.default:
        return "default"
    return {levels.most_urgent: "priority", levels.least_urgent: "flex"}.get(level, "default")

"""Which priority a request has: its body says it, else its header, else its service tier."""

from __future__ import annotations

from llamalane.errors import InvalidPriorityError, InvalidRequestError
from llamalane.ids import Level
from llamalane.scheduler import PriorityLevels

PRIORITY_HEADER = "X-Priority"
TIERS = ("auto", "default", "flex", "priority")


def choose_level(levels: PriorityLevels, body: object, header: str | None, tier: str | None) -> Level:
    """Return the level that a request asks for; where it does not say any, the default.

    Raises `InvalidPriorityError` for a priority that is no level and no name, and `InvalidRequestError` for an
    unknown service tier, even if it does not decide.
    """
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
    return levels.default


def tier_of(levels: PriorityLevels, level: Level) -> str:
    """Return the service tier that a request of `level` is served at."""
    if level == levels.default:
        return "default"
    return {levels.most_urgent: "priority", levels.least_urgent: "flex"}.get(level, "default")

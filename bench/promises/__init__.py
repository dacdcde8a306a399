"""Measures what the scheduler promises, on a real engine in this process."""

from __future__ import annotations

import enum


class Promise(enum.Enum):
    """What can be measured."""

    URGENCY = "urgency"
    """An urgent request where every place is taken by less urgent ones."""
    REFUSALS = "refusals"
    """What turning somebody away costs."""
    OVERLOAD = "overload"
    """What is left of the service when three times as much is asked for as there is room for."""
    PARKING = "parking"
    """What parking does to the others, where KV cells are enough for a part of the requests."""
    ENDLESS = "endless"
    """How long the least urgent wait behind urgent work without end, and what urgent ones feel of a long queue."""
    TENANTS = "tenants"
    """What two tenants get, one of which asks twenty times as much."""

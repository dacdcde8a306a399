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

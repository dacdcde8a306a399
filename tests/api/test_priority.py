from __future__ import annotations

import pytest

from llamalane.api.priority import choose_level, tier_of
from llamalane.errors import InvalidPriorityError, InvalidRequestError
from llamalane.ids import Level
from llamalane.scheduler import PriorityLevels

LEVELS = PriorityLevels({"interactive": 1, "normal": 3, "batch": 5}, Level(3))


@pytest.mark.parametrize(
    ("body", "header", "tier", "level"),
    [
        (None, None, None, 3),
        (1, None, None, 1),
        ("batch", None, None, 5),
        (None, "2", None, 2),
        (None, " interactive ", None, 1),
        (None, None, "priority", 1),
        (None, None, "flex", 5),
        (None, None, "auto", 3),
        (None, None, "default", 3),
        (4, "1", "priority", 4),
        (None, "2", "flex", 2),
    ],
)
def test_body_before_header_before_tier(body: object, header: str | None, tier: str | None, level: int) -> None:
    assert choose_level(LEVELS, body, header, tier) == level


@pytest.mark.parametrize("body", [0, 6, -1, True, 1.0, 2.5, "urgent", "", [], {}])
def test_other_priorities_are_refused_with_the_range(body: object) -> None:
    with pytest.raises(InvalidPriorityError, match=r"from 1 .* to 5 .* or one of interactive, normal, batch"):
        choose_level(LEVELS, body, None, None)


@pytest.mark.parametrize("header", ["0", "6", "", "urgent", "1.5", "²"])
def test_other_headers_are_refused(header: str) -> None:
    with pytest.raises(InvalidPriorityError):
        choose_level(LEVELS, None, header, None)


def test_an_unknown_tier_is_refused_even_if_it_does_not_decide() -> None:
    with pytest.raises(InvalidRequestError, match="one of auto, default, flex, priority") as caught:
        choose_level(LEVELS, 1, None, "scale")
    assert caught.value.param == "service_tier"


def test_the_tier_that_a_level_is_served_at() -> None:
    assert [tier_of(LEVELS, Level(level)) for level in (1, 2, 3, 4, 5)] == [
        "priority",
        "default",
        "default",
        "default",
        "flex",
    ]
    assert tier_of(PriorityLevels({"only": 1}, Level(1)), Level(1)) == "default"

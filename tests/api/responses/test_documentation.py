"""The page about responses tells of all that there is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from llamalane.api.responses.body import ReasoningOptions, ResponsesBody, TextOptions
from llamalane.api.responses.items import KINDS
from llamalane.api.responses.schemas import AnyEvent

PAGE = (Path(__file__).parents[3] / "docs" / "responses.md").read_text()


def events() -> list[str]:
    models = get_args(AnyEvent)
    return [name for model in models for name in get_args(model.model_fields["type"].annotation)]


@pytest.mark.parametrize(
    "names",
    [
        ResponsesBody.model_fields.keys() - {"model"},
        {*TextOptions.model_fields, *ReasoningOptions.model_fields},
        KINDS,
        [name for name in events() if not name.endswith("done")],
        [name for name in events() if re.search("(part|item).done$", name)],
    ],
    ids=["fields", "options", "items", "events", "endings"],
)
def test_everything_is_documented(names: list[str]) -> None:
    assert [name for name in names if f"`{name}`" not in PAGE] == []

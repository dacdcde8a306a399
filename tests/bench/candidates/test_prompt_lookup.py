"""Drafts by prompt lookup: what is drafted, and that verified drafts change nothing but the time."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from llamalane.bench.candidates.lookup import PromptLookup
from llamalane.bench.candidates.prompt_lookup import (
    COUNTS,
    TOKENS,
    Speculation,
    ordinary_prompts,
    repeating_prompts,
)
from llamalane.streams.llama import Model, ModelOptions


def test_what_followed_the_last_three_tokens_is_drafted() -> None:
    assert PromptLookup([1, 2, 3, 4, 5, 6, 1, 2, 3]).draft() == [4, 5, 6, 1, 2, 3]


def test_two_tokens_do_where_three_stand_nowhere() -> None:
    assert PromptLookup([9, 2, 3, 4, 5, 1, 2, 3]).draft(2) == [4, 5]


def test_the_latest_place_counts() -> None:
    assert PromptLookup([1, 2, 7, 1, 2, 8, 5, 1, 2]).draft(1) == [8]


def test_three_tokens_go_before_a_later_place_of_two() -> None:
    assert PromptLookup([1, 2, 3, 7, 0, 2, 3, 8, 1, 2, 3]).draft(1) == [7]


@pytest.mark.parametrize("tokens", [[], [1], [1, 2], [1, 2, 3, 4]])
def test_nothing_is_drafted_where_nothing_repeats(tokens: list[int]) -> None:
    assert PromptLookup(tokens).draft() == []


def test_a_sequence_that_grows_finds_what_it_has_grown_by() -> None:
    lookup = PromptLookup([1, 2, 3])
    lookup.extend([4])
    lookup.extend([1, 2])
    assert lookup.draft() == [3, 4, 1, 2]


@pytest.mark.parametrize("kind", ["repeating", "ordinary"])
def test_drafts_change_nothing_of_the_output(tiny_model: Path, kind: str) -> None:
    with Model(ModelOptions(path=tiny_model)) as model:
        prompts = repeating_prompts(model, 1) if kind == "repeating" else ordinary_prompts(model)
        with closing(Speculation(model, 1, prompts)) as speculation:
            plain = outputs(speculation, drafts=False)
            assert speculation.drafted == 0
            assert outputs(speculation, drafts=True) == plain
            assert 0 < speculation.accepted < speculation.drafted, "some drafts were right, and some were not"


def test_an_output_that_is_whole_begins_again(tiny_model: Path) -> None:
    with (
        Model(ModelOptions(path=tiny_model)) as model,
        closing(Speculation(model, 1, ordinary_prompts(model))) as speculation,
    ):
        first = outputs(speculation, drafts=False)
        started = speculation.begin(1)
        twice = [token for _ in range(2 * TOKENS) for token in speculation.step(started, drafts=False)[0]]
        assert twice == first[0] * 2


def outputs(speculation: Speculation, *, drafts: bool) -> list[list[int]]:
    """Return the outputs of as many sequences as there are, each without what was found beyond its end."""
    started = speculation.begin(max(COUNTS))
    found: list[list[int]] = [[] for _ in started]
    while min(map(len, found)) < TOKENS:
        for tokens, more in zip(found, speculation.step(started, drafts=drafts), strict=True):
            if len(tokens) < TOKENS:
                tokens += more
    return [tokens[:TOKENS] for tokens in found]

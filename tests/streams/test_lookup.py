"""What came next before, and how much of it is drafted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamalane.streams.lookup import FIRST_DRAFT, FIRST_REST, LONGEST_REST, Drafter, PromptLookup

TOKENS = st.lists(st.integers(0, 3), max_size=40)
LONGEST = 8


def looked_up(tokens: Sequence[int], most: int) -> list[int]:
    """Look up what came next by trying every place, the last one first."""
    for length in (3, 2):
        for start in range(len(tokens) - 1, length - 1, -1):
            if len(tokens) >= length and tokens[start - length : start] == tokens[-length:]:
                text = list(tokens)
                text += (text[start + count] for count in range(most))
                return text[len(tokens) :]
    return []


@given(tokens=TOKENS, most=st.integers(1, 20))
def test_a_draft_is_what_came_next_before(tokens: list[int], most: int) -> None:
    assert PromptLookup(tokens).find(most) == looked_up(tokens, most)


@given(tokens=TOKENS, added=st.lists(TOKENS, max_size=5), most=st.integers(1, 20))
def test_a_sequence_that_grows_is_looked_up_as_it_is_then(tokens: list[int], added: list[list[int]], most: int) -> None:
    lookup = PromptLookup(tokens)
    for more in added:
        tokens += more
        assert lookup.find(most) == looked_up(tokens, most)


@pytest.mark.parametrize(
    ("tokens", "draft"),
    [
        ([], []),
        ([1], []),
        ([1, 2], []),
        ([1, 2, 3, 1, 2], [3, 1, 2, 3]),
        ([1, 2, 3, 4, 5, 9, 2, 3], [4, 5, 9, 2]),
        ([1, 2, 3, 4, 2, 3, 5, 1, 2, 3], [4, 2, 3, 5]),  # three tokens tell more than the last two, which came later
        ([2, 3, 4, 2, 3, 5, 2, 3], [5, 2, 3, 5]),  # of several places, the last one
        ([7, 7, 7], [7, 7, 7, 7]),
        ([1, 2, 3, 4], []),
    ],
)
def test_drafts(tokens: list[int], draft: list[int]) -> None:
    assert PromptLookup(tokens).find(4) == draft


class CountedList(list[int]):
    """A list that counts how often one of its items is asked for."""

    asked = 0

    def __getitem__(self, index: int | slice) -> int | list[int]:  # type: ignore[override]
        self.asked += 1
        return super().__getitem__(index)


def test_a_lookup_takes_as_long_however_long_the_sequence_is() -> None:
    def asked(length: int) -> int:
        tokens = CountedList(number % 50 for number in range(length))
        lookup = PromptLookup(tokens)
        lookup.find(4)
        tokens.asked = 0
        for number in range(100):
            tokens.append(number % 50)
            lookup.find(4)
        return tokens.asked

    assert asked(100) == asked(10_000)


def drafts(follow: Callable[[int], int], tokens: list[int], count: int, longest: int = LONGEST) -> list[int]:
    """Let a sequence grow by `count` tokens, number i being ``follow(i)``; returns how long each step's draft was."""
    drafter = Drafter(tokens, longest)
    lengths = []
    end = len(tokens) + count
    while len(tokens) < end:
        draft = drafter.draft(longest)
        right = 0
        while right < len(draft) and draft[right] == follow(len(tokens)):
            tokens.append(draft[right])
            right += 1
        tokens.append(follow(len(tokens)))
        if draft:
            drafter.note(len(draft), right)
        lengths.append(len(draft))
    return lengths


def test_who_repeats_its_prompt_drafts_more_and_more() -> None:
    prompt = list(range(200))
    lengths = drafts(lambda place: place % 200, [*prompt, 0, 1, 2], 150)
    assert lengths[:4] == [FIRST_DRAFT, 2 * FIRST_DRAFT, LONGEST, LONGEST]
    assert set(lengths[2:]) == {LONGEST}


@given(longest=st.integers(1, 16))
def test_nobody_drafts_more_than_allowed(longest: int) -> None:
    lengths = drafts(lambda place: place % 3, [0, 1, 2] * 4, 100, longest)
    assert max(lengths) == longest


def test_whose_drafts_are_all_wrong_soon_drafts_next_to_nothing() -> None:
    lengths = drafts(lambda place: place % 2 or place, [1, 1] * 10, 1000)
    assert 0 < sum(lengths) < 20
    assert max(lengths) <= FIRST_DRAFT


def rest(drafter: Drafter, tokens: list[int]) -> int:
    """Return how many tokens must come before a sequence of equal ones drafts again."""
    before = len(tokens)
    while not drafter.draft(1):
        tokens.append(5)
    return len(tokens) - before


def test_a_rest_gets_longer_up_to_a_bound() -> None:
    tokens = [5, 5, 5]
    drafter = Drafter(tokens, 1)
    rests = []
    for _ in range(8):
        rests.append(rest(drafter, tokens))
        drafter.note(1, 0)
    assert rests == [0, FIRST_REST, 32, 64, 128, LONGEST_REST, LONGEST_REST, LONGEST_REST]


def test_right_drafts_make_the_next_rest_shorter_again() -> None:
    tokens = [5, 5, 5]
    drafter = Drafter(tokens, 1)
    for _ in range(5):
        drafter.note(1, 0)
    for _ in range(2):
        drafter.note(1, 1)
    drafter.note(1, 0)
    assert rest(drafter, tokens) == LONGEST_REST // 4
    for _ in range(9):
        drafter.note(1, 1)
    drafter.note(1, 0)
    assert rest(drafter, tokens) == FIRST_REST


def test_who_begins_to_repeat_itself_drafts_again() -> None:
    def follow(place: int) -> int:
        return place if place < 100 else place % 10

    tokens = [1, 1] * 10
    lengths = drafts(follow, tokens, 600)
    assert LONGEST in lengths
    assert sum(lengths[-20:]) == 20 * LONGEST


def test_a_draft_that_is_partly_right_is_followed_by_one_as_long_as_what_was_right() -> None:
    tokens = [5] * 10
    drafter = Drafter(tokens, 16)
    for length in (2, 4, 8):
        assert drafter.draft(16) == [5] * length
        drafter.note(length, length)
    assert len(drafter.draft(16)) == 16
    drafter.note(16, 11)
    assert len(drafter.draft(16)) == 11
    drafter.note(11, 1)
    assert len(drafter.draft(16)) == 5
    drafter.note(5, 0)
    assert len(drafter.draft(16)) == 2


def test_a_draft_that_was_cut_short_from_outside_says_nothing_of_longer_ones() -> None:
    drafter = Drafter([5] * 10, 16)
    assert drafter.draft(1) == [5]
    drafter.note(1, 1)
    assert len(drafter.draft(16)) == FIRST_DRAFT

"""Prompts of levels whose prompts do not come back are not saved, and others are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamalane.ids import Level
from llamalane.scheduler.comebacks import TRIES, Comebacks
from llamalane.scheduler.statistics import EngineState, take_statistics
from tests.scheduler.harness import Harness

CHAT, BATCH = Level(1), Level(5)
Start = Callable[..., Harness]


def save(comebacks: Comebacks, level: Level, count: int, *, cost: float = 1.0, gain: float = 20.0) -> int:
    """Offer so many prompts, and return how many of them were worth it."""
    saved = 0
    for _ in range(count):
        if comebacks.worth(level, cost, gain):
            comebacks.note_saved(level)
            saved += 1
    return saved


def test_what_costs_more_than_it_brings_is_never_worth_it() -> None:
    assert save(Comebacks(), CHAT, 100, cost=2.0, gain=2.0) == 0


def test_a_level_is_trusted_at_first() -> None:
    assert save(Comebacks(), BATCH, 16) == 16


def test_of_what_never_comes_back_one_in_so_many_is_saved() -> None:
    comebacks = Comebacks()
    save(comebacks, BATCH, 1000)
    assert save(comebacks, BATCH, 10 * TRIES) == 10


def test_a_level_that_comes_back_is_saved_whatever_another_does() -> None:
    comebacks = Comebacks()
    for _ in range(1000):
        save(comebacks, BATCH, 1)
        assert save(comebacks, CHAT, 1) == 1
        comebacks.note_return(CHAT)


def test_a_level_is_trusted_again_when_its_prompts_come_back() -> None:
    comebacks = Comebacks()
    save(comebacks, BATCH, 1000)
    for _ in range(4):
        comebacks.note_return(BATCH)
    assert save(comebacks, BATCH, 10) == 10


def test_one_in_ten_is_enough_where_saving_costs_a_fiftieth() -> None:
    comebacks = Comebacks()
    for _ in range(200):
        assert save(comebacks, CHAT, 10, cost=1.0, gain=50.0) == 10
        comebacks.note_return(CHAT)


@given(st.lists(st.booleans(), max_size=300), st.floats(0.1, 10), st.floats(0.1, 100))
def test_returns_only_ever_make_more_worth_saving(returns: list[bool], cost: float, gain: float) -> None:
    with_returns, without = Comebacks(), Comebacks()
    for returned in returns:
        for comebacks in (with_returns, without):
            comebacks.note_saved(CHAT)
        if returned:
            with_returns.note_return(CHAT)
    assert with_returns.worth(CHAT, cost, gain) >= without.worth(CHAT, cost, gain)


@pytest.fixture
def harness(start: Start) -> Harness:
    """One place, so that every prompt drives out the one before. To compute a prompt takes 20 times as long as to save
    it.
    """

    def step_seconds(rows: int, prompt_tokens: int) -> float:
        return 0.01 + 0.02 * prompt_tokens

    return start([1], limit=64, cells=256, least_stowed=4, spare=0, shared=False, step_seconds=step_seconds)


def serve(harness: Harness, level: int, prompt: str) -> int:
    """Serve a prompt to its end, and return how many cells were saved meanwhile: those of the one before."""
    before = harness.lane.stowed_tokens
    harness.submit(level, prompt=prompt, max_tokens=2)
    harness.finish()
    return harness.lane.stowed_tokens - before


def test_a_batch_of_prompts_that_never_return_is_soon_saved_no_more(harness: Harness) -> None:
    saved = [serve(harness, 5, f"{number:03} of a batch") > 0 for number in range(250)]
    assert all(saved[1:8])
    assert sum(saved[-4 * TRIES :]) <= 8


def test_at_the_end_what_is_kept_is_saved_whatever_came_back(harness: Harness) -> None:
    for number in range(250):
        serve(harness, 5, f"{number:03} of a batch")
    before = harness.lane.stowed_tokens
    harness.scheduler.stow_all()
    harness.run()
    assert harness.lane.stowed_tokens - before == len("249 of a batch") + 1


def test_chats_are_saved_beside_such_a_batch(harness: Harness) -> None:
    for number in range(60):
        serve(harness, 5, f"{number:03} of a batch")
        chat = f"{number} is how this chat begins "
        before = take_statistics(EngineState.READY, harness.scheduler).restored_tokens
        serve(harness, 1, chat + "and on")
        assert serve(harness, 5, f"{number:03} of another") > 0, "the chat gives way to it, and is saved"
        serve(harness, 1, chat + "and on it goes")
        after = take_statistics(EngineState.READY, harness.scheduler).restored_tokens
        assert after > before, "it comes back"

"""Whose item is next."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from llamalane.api.batches.turns import Claim, Turns, Wish
from llamalane.ids import Level

BACKGROUND, BATCH = Level(4), Level(5)
ALICE = Claim(BATCH, "alice", 1)
ALICES_SECOND = Claim(BATCH, "alice", 2)
BOB = Claim(BATCH, "bob", 3)
URGENT = Claim(BACKGROUND, "bob", 4)


def choose(turns: Turns, *claims: Claim, now: float = 0) -> Claim | None:
    wish = turns.choose(map(Wish, claims), now)
    return None if wish is None else wish.claim


def test_as_many_of_a_level_are_under_way_as_the_width_says() -> None:
    turns = Turns(width=2)
    for _ in range(2):
        assert choose(turns, ALICE) == ALICE
        turns.begin(ALICE)
    assert choose(turns, ALICE, BOB) is None
    assert choose(turns, ALICE, URGENT) == URGENT
    turns.end(ALICE)
    assert choose(turns, ALICE) == ALICE


def test_nobody_has_a_turn_while_the_width_is_nothing() -> None:
    assert choose(Turns(width=0), ALICE) is None


def test_the_tenant_with_the_fewest_items_under_way_is_next_and_its_oldest_batch() -> None:
    turns = Turns(width=10)
    assert choose(turns, BOB, ALICES_SECOND, ALICE) == ALICE
    turns.begin(ALICE)
    assert choose(turns, ALICE, ALICES_SECOND, BOB) == BOB
    turns.begin(BOB)
    assert choose(turns, ALICES_SECOND, BOB) == ALICES_SECOND
    turns.withdraw(ALICE)
    assert choose(turns, BOB, ALICES_SECOND) == ALICES_SECOND


def test_an_item_that_was_sent_back_is_before_what_its_tenant_has_not_sent() -> None:
    turns = Turns(width=10)
    again = Wish(ALICES_SECOND, again=True)
    assert turns.choose([Wish(ALICE), again], 0) == again


def test_a_full_queue_holds_back_all_that_is_no_more_urgent_until_it_is_time() -> None:
    turns = Turns(width=10)
    turns.hold_level(BACKGROUND, until=5)
    assert choose(turns, ALICE, URGENT, now=4.9) is None
    assert turns.next_change(4) == 5
    assert choose(turns, ALICE, URGENT, now=5) == URGENT
    assert turns.next_change(5) is None
    turns.hold_level(BATCH, until=9)
    assert choose(turns, ALICE, URGENT, now=6) == URGENT


def test_a_limit_holds_back_the_tenant_alone() -> None:
    turns = Turns(width=10)
    turns.hold_tenant("alice", until=5)
    assert choose(turns, ALICE, ALICES_SECOND) is None
    assert choose(turns, ALICE, BOB) == BOB
    assert choose(turns, ALICE, now=5) == ALICE


def test_an_item_that_ends_makes_room_and_one_that_was_sent_back_does_not() -> None:
    turns = Turns(width=10)
    for _ in range(2):
        turns.begin(ALICE)
    turns.begin(BOB)
    turns.hold_level(BATCH, until=5)
    turns.hold_tenant("alice", until=6)
    turns.withdraw(ALICE)
    assert choose(turns, ALICE, BOB) is None
    turns.end(BOB)
    assert choose(turns, ALICE) is None
    assert choose(turns, BOB) == BOB
    turns.end(ALICE)
    assert choose(turns, ALICE) == ALICE


CLAIMS = st.builds(Claim, st.sampled_from([BACKGROUND, BATCH]), st.sampled_from("abc"), st.integers(1, 4))


@given(st.integers(1, 4), st.lists(st.one_of(CLAIMS, st.integers(0, 9)), max_size=60))
def test_tenants_who_want_turns_have_as_many_as_each_other(width: int, steps: list[Claim | int]) -> None:
    """Whoever ends: the one who has a turn is never ahead by more than one that was given while others waited."""
    turns = Turns(width)
    under_way: list[Claim] = []
    wishes: list[Wish] = []
    for step in steps:
        if isinstance(step, Claim):
            wishes.append(Wish(step))
        elif under_way:
            turns.end(under_way.pop(step % len(under_way)))
        while (wish := turns.choose(wishes, 0)) is not None:
            of_level = Counter(claim.tenant for claim in under_way if claim.level == wish.claim.level)
            rivals = {other.claim.tenant for other in wishes if other.claim.level == wish.claim.level}
            assert of_level[wish.claim.tenant] == min(of_level[tenant] for tenant in rivals)
            wishes.remove(wish)
            under_way.append(wish.claim)
            turns.begin(wish.claim)
        levels = Counter(claim.level for claim in under_way)
        assert all(count <= width for count in levels.values())
        assert all(levels[wish.claim.level] == width for wish in wishes)

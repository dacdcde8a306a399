from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from llamalane.errors import PoolError
from llamalane.kvcache import Match, PrefixTree


def tree(**paths: Sequence[int]) -> PrefixTree[str]:
    """Return a tree in which each name holds its path, all in one scope."""
    books = PrefixTree[str]()
    for holder, tokens in paths.items():
        books.insert(holder, "", tokens)
    return books


def test_an_empty_tree_holds_nothing() -> None:
    books = tree()
    assert (len(books), books.span, books.runs()) == (0, 0, 0)
    assert books.match("", [1, 2]) == Match(0, None)
    assert books.match_whole("", [1, 2]) == Match(0, None)


def test_paths_that_begin_alike_hold_their_beginning_together() -> None:
    books = tree(a=[1, 2, 3, 4])
    assert books.insert("b", "", [1, 2, 3, 5, 6]) == 3
    assert books.span == 6
    assert (books.exclusive("a"), books.exclusive("b")) == (1, 2)
    assert (books.tokens("a"), books.tokens("b")) == ([1, 2, 3, 4], [1, 2, 3, 5, 6])
    assert books.runs() == 3


def test_equal_paths_are_held_once() -> None:
    books = tree(a=[1, 2, 3], b=(1, 2, 3))
    assert (books.span, books.runs()) == (3, 1)
    assert books.exclusive("a") == books.exclusive("b") == 0


def test_nothing_is_shared_between_scopes() -> None:
    books = PrefixTree[str]()
    books.insert("a", "one tenant", [1, 2, 3])
    assert books.insert("b", "another", [1, 2, 3]) == 0
    assert books.span == 6
    assert books.match("a third", [1, 2, 3]) == Match(0, None)
    assert books.match("another", [1, 2, 9]) == Match(2, "b")
    assert (books.scope("a"), books.scope("b")) == ("one tenant", "another")


@pytest.mark.parametrize(
    ("prompt", "length", "holders"),
    [
        ([1, 2, 3, 4, 9], 4, {"a"}),
        ([1, 2, 9], 2, {"a", "b"}),
        ([1, 2, 3], 3, {"a"}),
        ([1, 2, 5, 6, 7, 8], 5, {"b"}),
        ([9, 1, 2], 0, {None}),
        ([], 0, {None}),
    ],
)
def test_a_match_is_as_long_as_anybody_holds(prompt: list[int], length: int, holders: set[str | None]) -> None:
    match = tree(a=[1, 2, 3, 4], b=[1, 2, 5, 6, 7]).match("", prompt)
    assert match.length == length
    assert match.holder in holders
    assert match == tree(a=[1, 2, 3, 4], b=[1, 2, 5, 6, 7]).match("", tuple(prompt)), "the same answer again"


def test_a_whole_match_is_a_path_that_the_prompt_goes_on_from() -> None:
    books = tree(short=[1, 2], longer=[1, 2, 3, 4], other=[1, 2, 3, 5])
    assert books.match_whole("", [1, 2, 3]) == Match(2, "short")
    assert books.match_whole("", [1, 2, 3, 4]) == Match(4, "longer")
    assert books.match_whole("", [1, 2, 3, 5, 6]) == Match(4, "other")
    assert books.match_whole("", [1]) == Match(0, None)


def test_growing_along_another_path_shares_its_tokens() -> None:
    books = tree(a=[1, 2, 3, 4, 5], b=[1, 2])
    assert books.extend("b", [3, 4, 9, 9]) == 2
    assert books.tokens("b") == [1, 2, 3, 4, 9, 9]
    assert (books.span, books.exclusive("a"), books.exclusive("b")) == (7, 1, 2)
    assert books.extend("b", [7]) == 0
    assert (books.span, books.exclusive("b")) == (8, 3)
    books.check()


def test_the_own_end_of_a_path_grows_without_a_new_run() -> None:
    books = tree(a=[1, 2])
    for token in range(3, 50):
        assert books.extend("a", [token]) == 0
    assert (books.runs(), books.span, books.length("a")) == (1, 49, 49)


def test_an_empty_path_holds_a_place_for_what_comes() -> None:
    books = tree(a=[], b=[1, 2])
    assert (books.length("a"), books.exclusive("a"), books.tokens("a")) == (0, 0, [])
    assert books.extend("a", [1, 2, 3]) == 2
    assert books.shorten("a", 0) == 1
    assert books.remove("a") == 0
    assert "a" not in books
    assert books.span == 2


def test_shortening_frees_what_nobody_else_holds() -> None:
    books = tree(a=[1, 2, 3, 4, 5, 6], b=[1, 2, 3, 9])
    assert books.shorten("a", 5) == 1
    assert books.shorten("a", 2) == 2, "the third token is still held by b"
    assert (books.tokens("a"), books.tokens("b"), books.span) == ([1, 2], [1, 2, 3, 9], 4)
    assert books.shorten("a", 2) == 0
    books.check()


def test_removing_frees_what_nobody_else_holds_and_the_rest_is_one_run_again() -> None:
    books = tree(a=[1, 2, 3, 4], b=[1, 2, 3, 5, 6])
    assert books.remove("b") == 2
    assert (books.runs(), books.span, books.exclusive("a")) == (1, 4, 4)
    assert books.remove("a") == 4
    assert (books.runs(), books.span, len(books)) == (0, 0, 0)
    assert books.match("", [1]) == Match(0, None)


def test_a_removed_holder_can_come_back() -> None:
    books = tree(a=[1, 2])
    books.remove("a")
    assert books.insert("a", "", [1, 2, 3]) == 0
    assert books.match("", [1, 2]) == Match(2, "a")


def test_a_path_is_handed_over() -> None:
    books = tree(a=[1, 2, 3])
    books.pin("a")
    books.rename("a", "b")
    assert list(books.holders) == ["b"]
    assert books.match("", [1, 2, 3]) == Match(3, "b", pinned=3)
    assert books.pinned("b")
    assert books.pinned_span == 3


def test_pinned_tokens_count_once() -> None:
    books = tree(a=[1, 2, 3], b=[1, 2, 4, 5], c=[7])
    books.pin("a")
    assert books.pinned_span == 3
    books.pin("b")
    assert books.pinned_span == 5
    books.unpin("a")
    assert books.pinned_span == 4
    books.unpin("b")
    assert books.pinned_span == 0


def test_what_none_but_some_pin_is_known() -> None:
    books = tree(unpinned=[1, 2, 3, 4])
    books.insert("a", "", [1, 2, 3], pinned=True)
    books.insert("b", "", [1, 2, 5, 6], pinned=True)
    assert (books.pinned_by(["a"]), books.pinned_by(["b"]), books.pinned_by(["a", "b"])) == (1, 2, 5)
    assert books.pinned_by([]) == 0


def test_a_pinned_path_grows_and_shrinks_pinned() -> None:
    books = tree(a=[1, 2, 3, 4])
    books.insert("b", "", [1, 2], pinned=True)
    assert books.pinned_span == 2
    books.extend("b", [3, 9])
    assert books.pinned_span == 4
    books.shorten("b", 1)
    assert books.pinned_span == 1
    books.check()


def test_a_pinned_path_is_not_given_up() -> None:
    books = tree(a=[1, 2, 3])
    books.pin("a")
    with pytest.raises(PoolError, match="'a' is pinned and cannot be removed"):
        books.remove("a")
    books.unpin("a")
    assert books.remove("a") == 3


def test_what_is_pinned_of_a_match_is_what_one_pinned_holder_has_of_it() -> None:
    books = tree(a=[1, 2, 3, 4], b=[1, 2, 5])
    assert books.match("", [1, 2, 3, 4]) == Match(4, "a")
    books.pin("b")
    assert books.match("", [1, 2, 3, 4]) == Match(4, "a", pinned=2)
    assert books.match("", (1, 2, 5, 6)) == Match(3, "b", pinned=3)
    books.pin("a")
    assert books.match("", [1, 2, 3, 9]) == Match(3, "a", pinned=3)


def test_what_is_pinned_in_other_cells_does_not_count() -> None:
    books = tree(a=[1, 2, 3])
    books.insert("b", "", [1, 2, 4], apart=True, pinned=True)
    assert books.match("", [1, 2, 3]) == Match(3, "a")
    assert books.match("", [1, 2, 4]) == Match(3, "b", pinned=3)


def test_the_same_tokens_in_cells_of_its_own_count_twice() -> None:
    books = tree(a=[1, 2, 3])
    assert books.insert("b", "", [1, 2, 3, 4], apart=True) == 0
    assert (books.span, books.runs(), books.common("a", "b")) == (7, 2, 0)
    assert (books.exclusive("a"), books.exclusive("b")) == (3, 4)
    assert books.match("", [1, 2, 3, 4]) == Match(4, "b")
    assert books.remove("b") == 4
    assert books.match("", [1, 2, 3, 4]) == Match(3, "a")


def test_a_path_begins_beside_another_and_goes_on_apart() -> None:
    books = tree(a=[1, 2, 3, 4, 5])
    assert books.insert("b", "", [1, 2, 3, 4, 6], beside=("a", 2), apart=True) == 2
    assert (books.span, books.common("a", "b"), books.common("b", "a")) == (8, 2, 2)
    assert (books.exclusive("a"), books.exclusive("b")) == (3, 3)
    assert books.tokens("b") == [1, 2, 3, 4, 6]
    books.check()


def test_a_path_begins_beside_the_one_named_though_others_hold_more() -> None:
    books = tree(a=[1, 2])
    books.insert("b", "", [1, 2, 3, 4], apart=True)
    assert books.insert("c", "", [1, 2, 3, 5], beside=("a", 2)) == 2, "in the cells of a, nobody holds more"
    assert (books.common("a", "c"), books.common("b", "c")) == (2, 0)


def test_a_path_begins_beside_another_and_shares_what_follows() -> None:
    books = tree(a=[1, 2, 3, 4], b=[1, 2, 5])
    assert books.insert("c", "", [1, 2, 3, 4], beside=("b", 1)) == 4
    assert (books.common("a", "c"), books.common("b", "c"), books.span) == (4, 2, 5)
    books.check()


def test_all_of_a_path_can_be_beside_another() -> None:
    books = tree(a=[1, 2, 3])
    assert books.insert("b", "", [1, 2], beside=("a", 2), apart=True) == 2
    assert books.insert("c", "", [], beside=("a", 0), apart=True) == 0
    assert (books.span, books.exclusive("a"), books.length("b"), books.length("c")) == (3, 1, 2, 0)
    books.check()


@pytest.mark.parametrize(
    ("scope", "tokens", "length"),
    [
        ("elsewhere", [1, 2, 3], 2),
        ("", [1, 2, 3, 4], 4),
        ("", [1, 2], 3),
        ("", [1, 9, 3], 2),
        ("", [1, 2, 3], -1),
    ],
)
def test_a_path_does_not_begin_beside_what_is_not_there(scope: str, tokens: list[int], length: int) -> None:
    books = tree(a=[1, 2, 3])
    with pytest.raises(PoolError, match=f"'a' does not hold the first {length} of these tokens in that scope"):
        books.insert("b", scope, tokens, beside=("a", length))
    with pytest.raises(PoolError, match="'z' holds nothing"):
        books.insert("b", scope, tokens, beside=("z", 0))
    books.check()
    assert list(books.holders) == ["a"]


def test_growing_apart_shares_nothing() -> None:
    books = tree(a=[1, 2, 3, 4], b=[1, 2])
    assert books.extend("b", [3, 4], apart=True) == 0
    assert (books.span, books.common("a", "b"), books.exclusive("b")) == (6, 2, 2)
    assert books.extend("b", [5], apart=True) == 0
    assert (books.runs(), books.tokens("b")) == (3, [1, 2, 3, 4, 5])
    books.check()


def test_growing_finds_only_what_follows_its_own_cells() -> None:
    books = tree(a=[1, 2, 3])
    books.insert("b", "", [1, 2], apart=True)
    assert books.extend("b", [3]) == 0
    assert books.span == 6


def test_holders_of_different_scopes_have_nothing_in_common() -> None:
    books = tree(a=[1, 2])
    books.insert("b", "elsewhere", [1, 2])
    assert books.common("a", "b") == 0
    assert books.common("a", "a") == 2


def test_a_match_is_with_a_filled_holder_where_one_is_wanted() -> None:
    books = tree(a=[1, 2])
    books.insert("b", "", [1, 2, 3, 4], filled=False)
    assert books.match("", [1, 2, 3, 4, 5]) == Match(4, "b")
    assert books.match("", [1, 2, 3, 4, 5], filled=True) == Match(2, "a")
    books.note_filled("b", True)
    assert books.match("", [1, 2, 3, 4, 5], filled=True) == Match(4, "b")
    books.note_filled("b", False)
    books.note_filled("b", False)
    assert books.match("", [1, 2, 3, 4, 5], filled=True) == Match(2, "a")
    books.check()


def test_a_filled_holder_is_found_behind_others_that_are_not() -> None:
    books = PrefixTree[str]()
    books.insert("a", "", [1, 2], filled=False)
    books.insert("b", "", [1, 2, 3, 4], filled=False)
    books.insert("c", "", [1, 2, 3, 5])
    assert books.match("", [1, 2, 3, 4], filled=True) == Match(3, "c")
    books.remove("c")
    assert books.match("", [1, 2, 3, 4], filled=True) == Match(0, None)


def test_a_filled_path_grows_and_shrinks_filled() -> None:
    books = tree(a=[1, 2])
    books.insert("b", "", [1, 2, 3], filled=False)
    books.extend("a", [3, 4])
    assert books.match("", [1, 2, 3, 4], filled=True) == Match(4, "a")
    books.shorten("a", 1)
    assert books.match("", [1, 2, 3, 4], filled=True) == Match(1, "a")
    books.check()


def test_pins_come_in_pairs() -> None:
    books = tree(a=[1])
    with pytest.raises(PoolError, match="'a' is not pinned"):
        books.unpin("a")
    books.pin("a")
    with pytest.raises(PoolError, match="'a' is pinned already"):
        books.pin("a")
    books.check()


@pytest.mark.parametrize(
    "use",
    [
        lambda books: books.extend("z", [1]),
        lambda books: books.shorten("z", 0),
        lambda books: books.remove("z"),
        lambda books: books.rename("z", "y"),
        lambda books: books.pin("z"),
        lambda books: books.unpin("z"),
        lambda books: books.note_filled("z", True),
        lambda books: books.pinned_by(["z"]),
        lambda books: books.common("a", "z"),
        lambda books: books.common("z", "a"),
        lambda books: books.length("z"),
        lambda books: books.tokens("z"),
    ],
)
def test_an_unknown_holder_is_refused(use: Callable[[PrefixTree[str]], object]) -> None:
    books = tree(a=[1])
    with pytest.raises(PoolError, match="'z' holds nothing"):
        use(books)
    books.check()
    assert len(books) == 1


def test_a_holder_has_one_path_only() -> None:
    books = tree(a=[1], b=[2])
    with pytest.raises(PoolError, match="'a' has a path already"):
        books.insert("a", "elsewhere", [3])
    with pytest.raises(PoolError, match="'b' has a path already"):
        books.rename("a", "b")
    books.check()
    assert books.span == 2


@pytest.mark.parametrize("length", [-1, 4])
def test_a_path_is_cut_only_where_it_is(length: int) -> None:
    books = tree(a=[1, 2, 3])
    with pytest.raises(PoolError, match=f"'a' holds 3 tokens and cannot be cut to {length}"):
        books.shorten("a", length)
    assert books.tokens("a") == [1, 2, 3]


def test_what_is_given_is_copied() -> None:
    prompt, more = [1, 2, 3], [4, 5]
    books = tree(a=prompt)
    books.extend("a", more)
    prompt.append(9)
    more[0] = 8
    books.tokens("a").clear()
    assert books.tokens("a") == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("part", ["held", "pinned"])
def test_sums_that_do_not_add_up_are_found(part: str) -> None:
    books = tree(a=[1, 2, 3])
    setattr(books._spans, part, 2)
    with pytest.raises(PoolError, match="3 tokens are held, 0 pinned"):
        books.check()


@pytest.mark.parametrize(
    ("part", "value"),
    [("holders", 4), ("pinned", 1), ("filled", 0), ("tokens", []), ("end", 2), ("ends", {}), ("children", {4: []})],
)
def test_damaged_runs_are_found(part: str, value: object) -> None:
    books = tree(a=[1, 2, 3], b=[1, 2, 3, 4], c=[1, 2, 3, 5])
    setattr(books._paths["a"].last, part, value)
    with pytest.raises(PoolError):
        books.check()


def test_somebody_who_ends_and_holds_nothing_is_found() -> None:
    books = tree(a=[1, 2, 3])
    books._paths["a"].last.ends["ghost"] = None
    with pytest.raises(PoolError, match="ends in the tree who holds nothing"):
        books.check()

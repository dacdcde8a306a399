from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from llamalane.errors import ConfigError, PoolError
from llamalane.kvcache import EntryId, HostStore


def stored(*prompts: list[int], max_bytes: int = 100, size: int = 10, whole: bool = False) -> HostStore:
    """Return a store in which each prompt was put in turn, with `size` bytes each."""
    store = HostStore(max_bytes)
    for number, prompt in enumerate(prompts):
        assert store.put("", prompt, bytes([number]) * size, whole=whole) is not None
    return store


def kept(store: HostStore, *prompts: list[int]) -> list[bool]:
    """Return which prompts are stored as they are."""
    matches = [store.match("", prompt) for prompt in prompts]
    return [match is not None and match.length == match.usable == len(prompt)
            for match, prompt in zip(matches, prompts, strict=True)]  # fmt: skip


def test_a_prompt_finds_what_it_begins_with() -> None:
    store = stored([1, 2, 3], [7, 8])
    match = store.match("", [1, 2, 3, 4])
    assert match is not None
    assert (match.data, match.length, match.usable) == (bytes(10), 3, 3)
    assert store.match("", [9]) is None
    assert store.match("", []) is None


def test_more_may_be_stored_than_a_prompt_can_use() -> None:
    match = stored([1, 2, 3, 4, 5]).match("", [1, 2, 3, 9])
    assert match is not None
    assert (match.length, match.usable) == (5, 3)


def test_the_entry_that_saves_most_is_found() -> None:
    match = stored([1, 2, 8], [1, 2, 3, 4], [1, 9]).match("", [1, 2, 3, 5])
    assert match is not None
    assert (match.data[:1], match.usable) == (b"\1", 3)


def test_a_model_that_cannot_roll_back_uses_only_what_its_prompt_goes_on_from() -> None:
    store = stored([1, 2], [1, 2, 3, 4], whole=True)
    match = store.match("", [1, 2, 3, 5], whole=True)
    assert match is not None
    assert (match.length, match.usable) == (2, 2)
    assert store.match("", [1], whole=True) is None


def test_tenants_never_see_what_others_have_stored() -> None:
    store = HostStore(100)
    store.put("one", [1, 2, 3], b"one's")
    assert store.match("other", [1, 2, 3]) is None
    assert store.put("other", [1, 2], b"other's") is not None
    assert len(store) == 2


def test_a_longer_prompt_replaces_all_that_it_begins_with() -> None:
    store = stored([1], [1, 2, 3], [1, 2, 3, 4, 5], [1, 2, 9])
    assert len(store) == 2
    assert kept(store, [1, 2, 3, 4, 5], [1, 2, 9]) == [True, True]
    assert store.used_bytes == 20
    assert store.statistics().evictions == 0


def test_a_model_that_cannot_roll_back_keeps_the_shorter_prompts_too() -> None:
    store = stored([1], [1, 2, 3], [1, 2], whole=True)
    assert len(store) == 3
    assert store.put("", [1, 2], b"again", whole=True) is None


@pytest.mark.parametrize("prompt", [[1, 2, 3], [1, 2], []])
def test_what_adds_nothing_is_not_stored(prompt: list[int]) -> None:
    store = stored([1, 2, 3])
    assert not store.wants("", prompt, 5)
    assert store.put("", prompt, b"again") is None
    assert (len(store), store.used_bytes) == (1, 10)


def test_the_entry_used_longest_ago_gives_way() -> None:
    store = stored([1], [2], [3], max_bytes=30)
    match = store.match("", [1])
    assert match is not None
    store.touch(match.entry)
    store.put("", [4], bytes(10))
    assert kept(store, [1], [2], [3], [4]) == [True, False, True, True]
    assert store.statistics().evictions == 1


def test_to_be_offered_again_is_to_be_used() -> None:
    store = stored([1], [2], max_bytes=20)
    store.put("", [1], bytes(10))
    store.put("", [3], bytes(10))
    assert kept(store, [1], [2], [3]) == [True, False, True]


def test_a_look_alone_is_no_use() -> None:
    store = stored([1], [2], max_bytes=20)
    store.match("", [1])
    store.put("", [3], bytes(10))
    assert kept(store, [1], [2]) == [False, True]
    assert store.statistics().hits == 0


def test_what_is_larger_than_the_bound_is_refused_and_displaces_nobody() -> None:
    store = stored([1], [1, 2], max_bytes=30)
    assert not store.wants("", [1, 2, 3], 31)
    assert store.put("", [1, 2, 3], bytes(31)) is None
    assert kept(store, [1, 2]) == [True]
    assert store.wants("", [1, 2, 3], 30)
    assert store.put("", [1, 2, 3], bytes(30)) is not None


def test_parked_requests_come_before_entries() -> None:
    store = stored([1], [2], [3], max_bytes=30)
    assert store.reserve(15)
    assert kept(store, [1], [2], [3]) == [False, False, True]
    assert (store.reserved_bytes, store.used_bytes) == (15, 10)
    assert store.put("", [4], bytes(16)) is None
    assert not store.reserve(16)
    assert kept(store, [3]) == [True]
    store.release(15)
    assert store.put("", [4], bytes(16)) is not None
    assert store.statistics().reserved_bytes == 0


def test_an_entry_is_taken_once() -> None:
    store = stored([1, 2])
    match = store.match("", [1, 2])
    assert match is not None
    assert store.take(match.entry) == bytes(10)
    assert (len(store), store.used_bytes, store.statistics().hits) == (0, 0, 1)
    with pytest.raises(PoolError, match="entry 1 is not stored"):
        store.take(match.entry)


def test_an_entry_that_is_gone_meanwhile_is_neither_touched_nor_forgotten() -> None:
    store = stored([1, 2], [3])
    match = store.match("", [1, 2])
    assert match is not None
    store.forget(match.entry)
    store.forget(match.entry)
    store.touch(match.entry)
    assert match.entry not in store
    assert len(store) == 1
    assert store.statistics().hits == 0
    store.check()


def test_a_store_without_bytes_stores_nothing() -> None:
    store = HostStore(0)
    assert store.put("", [1], b"x") is None
    assert store.reserve(0)
    assert not store.reserve(1)


def test_bytes_are_counted_whatever_they_are_held_in() -> None:
    store = HostStore(100)
    store.put("", [1], memoryview(bytes(16)).cast("I"))
    store.put("", [2], bytearray(7))
    assert store.used_bytes == 23


def test_a_bound_below_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="must be at least 0; got -1"):
        HostStore(-1)


@pytest.mark.parametrize("size", [-1, 6])
def test_no_more_is_released_than_is_reserved(size: int) -> None:
    store = HostStore(10)
    store.reserve(5)
    with pytest.raises(PoolError, match=f"{size} bytes cannot be released where 5 are reserved"):
        store.release(size)
    assert store.reserved_bytes == 5


def test_less_than_nothing_is_not_reserved() -> None:
    store = HostStore(10)
    with pytest.raises(PoolError, match="at least 0 bytes can be reserved; got -1"):
        store.reserve(-1)


@pytest.mark.parametrize(("part", "value"), [("_used", 3), ("_reserved", 95), ("_reserved", -1), ("_entries", {})])
def test_books_that_do_not_add_up_are_found(part: str, value: object) -> None:
    store = stored([1, 2, 3])
    setattr(store, part, value)
    with pytest.raises(PoolError):
        store.check()


MAX_BYTES = 20
SCOPES = st.sampled_from(["red", "blue"])
TOKENS = st.lists(st.integers(0, 1), max_size=5)


class StoreBesideAList(RuleBasedStateMachine):
    """The store beside a list of what it has to hold, those used longest ago first."""

    entries: list[tuple[EntryId, str, list[int], bytes]]

    @initialize(whole=st.booleans())
    def begin(self, whole: bool) -> None:
        self.store = HostStore(MAX_BYTES)
        self.whole = whole
        self.entries = []
        self.reserved = self.hits = self.evictions = 0

    def room(self) -> int:
        return MAX_BYTES - self.reserved - sum(len(data) for *_, data in self.entries)

    def evict(self, size: int) -> None:
        while self.room() < size:
            self.entries.pop(0)
            self.evictions += 1

    def renew(self, entry: EntryId) -> None:
        self.entries.sort(key=lambda one: one[0] == entry)

    def usable(self, scope: str, tokens: list[int]) -> dict[EntryId, int]:
        """Return how many tokens each entry saves, if any."""
        usable = {}
        for entry, where, path, _ in self.entries:
            common = next((i for i, pair in enumerate(zip(path, tokens, strict=False)) if pair[0] != pair[1]),
                          min(len(path), len(tokens)))  # fmt: skip
            if where == scope and common and (common == len(path) or not self.whole):
                usable[entry] = common
        return usable

    @rule(scope=SCOPES, tokens=TOKENS, size=st.integers(0, MAX_BYTES + 1))
    def put(self, scope: str, tokens: list[int], size: int) -> None:
        usable = self.usable(scope, tokens)
        covering = [entry for entry, length in usable.items() if length == len(tokens)]
        fits = size <= MAX_BYTES - self.reserved
        data = bytes(size)
        wanted = fits and bool(tokens) and not covering
        assert self.store.wants(scope, tokens, size, whole=self.whole) == wanted
        entry = self.store.put(scope, tokens, data, whole=self.whole)
        assert (entry is not None) == wanted
        if entry is not None:
            if not self.whole:
                self.entries = [
                    one for one in self.entries if not (one[1] == scope and one[2] == tokens[: len(one[2])])
                ]
            self.evict(size)
            self.entries.append((entry, scope, tokens, data))
        elif covering:  # any one of them counts as used
            last = list(self.store._entries)[-1]
            assert last in covering
            self.renew(last)

    @rule(scope=SCOPES, tokens=TOKENS, use=st.sampled_from(["look", "touch", "take", "forget"]))
    def match(self, scope: str, tokens: list[int], use: str) -> None:
        usable = self.usable(scope, tokens)
        match = self.store.match(scope, tokens, whole=self.whole)
        assert (match.usable if match else 0) == max(usable.values(), default=0)
        if match is None:
            return
        (path, data), = [(path, data) for entry, _, path, data in self.entries if entry == match.entry]  # fmt: skip
        assert (match.length, match.data) == (len(path), data)
        assert usable[match.entry] == match.usable
        if use == "touch":
            self.store.touch(match.entry)
            self.renew(match.entry)
        elif use == "take":
            assert self.store.take(match.entry) == data
        elif use == "forget":
            self.store.forget(match.entry)
        self.hits += use in ("touch", "take")
        if use in ("take", "forget"):
            self.entries = [one for one in self.entries if one[0] != match.entry]

    @rule(size=st.integers(0, MAX_BYTES))
    def reserve(self, size: int) -> None:
        fits = size <= MAX_BYTES - self.reserved
        assert self.store.reserve(size) == fits
        if fits:
            self.evict(size)
            self.reserved += size

    @precondition(lambda self: self.reserved)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        size = data.draw(st.integers(0, self.reserved))
        self.store.release(size)
        self.reserved -= size

    @invariant()
    def everything_adds_up(self) -> None:
        self.store.check()
        assert list(self.store._entries) == [entry for entry, *_ in self.entries]
        statistics = self.store.statistics()
        assert statistics.used_bytes == self.store.used_bytes == sum(len(data) for *_, data in self.entries)
        assert (statistics.entries, statistics.reserved_bytes) == (len(self.entries), self.reserved)
        assert (statistics.hits, statistics.evictions) == (self.hits, self.evictions)


StoreBesideAList.TestCase.settings = settings(max_examples=120, stateful_step_count=30, deadline=None)
TestStoreBesideAList = StoreBesideAList.TestCase

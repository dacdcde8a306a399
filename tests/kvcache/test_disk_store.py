from __future__ import annotations

import os
import stat
import struct
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llamalane.errors import ConfigError
from llamalane.kvcache import DiskStore
from llamalane.kvcache.state_file import VERSION, file_size

KEY = "build 1, model 2, f16"
TOKENS = [1, 2, 70_000]
CELLS = bytes(range(40))
SIZE = file_size(3, 40)
"""Bytes of a file with three tokens and forty bytes of cells."""


def open_store(directory: Path, *, key: str = KEY, max_bytes: int = 10_000) -> DiskStore:
    return DiskStore(directory, key, max_bytes)


def files(directory: Path) -> list[Path]:
    return sorted(directory.iterdir())


def only_file(directory: Path) -> Path:
    (path,) = files(directory)
    return path


def load(store: DiskStore, tokens: list[int], scope: str = "") -> bytearray | bytes | None:
    match = store.match(scope, tokens)
    return None if match is None else store.load(match)


def age(store: DiskStore, *prompts: list[int]) -> None:
    """Make the files of the prompts as old as their order says, long before now."""
    for second, prompt in enumerate(prompts):
        match = store.match("", prompt)
        assert match is not None
        os.utime(directory_of(store) / match.name, (second, second))


def directory_of(store: DiskStore) -> Path:
    return store._directory


def test_cells_come_back_after_a_restart(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    assert store.save("", TOKENS, CELLS)
    assert load(store, [*TOKENS, 4]) == CELLS
    again = open_store(tmp_path)
    match = again.match("", [1, 2, 9])
    assert match is not None
    assert (match.length, match.usable) == (3, 2)
    loaded = again.load(match)
    assert isinstance(loaded, bytearray), "the lane's context restores nothing else"
    assert bytes(loaded) == CELLS
    assert (again.statistics().entries, again.statistics().hits) == (1, 1)


@pytest.mark.parametrize("data", [bytearray(CELLS), memoryview(CELLS), memoryview(CELLS).cast("I"), b""])
def test_any_bytes_can_be_saved(tmp_path: Path, data: bytes | bytearray | memoryview) -> None:
    store = open_store(tmp_path)
    assert store.save("", TOKENS, data)
    assert load(store, TOKENS) == bytes(data)


def test_one_tenants_prompt_never_serves_another(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.save("one", TOKENS, CELLS)
    assert store.match("other", TOKENS) is None
    assert store.save("other", TOKENS, CELLS[::-1])
    again = open_store(tmp_path)
    assert load(again, TOKENS, "one") == CELLS
    assert load(again, TOKENS, "other") == CELLS[::-1]
    assert again.match("", TOKENS) is None


@pytest.mark.parametrize(("scope", "tokens"), [("other", TOKENS), ("one", [5, 6, 7])])
def test_a_file_that_came_under_the_name_of_another_one_is_not_used(
    tmp_path: Path, scope: str, tokens: list[int]
) -> None:
    store = open_store(tmp_path)
    store.save("one", TOKENS, CELLS)
    path = only_file(tmp_path)
    store.save(scope, tokens, CELLS[::-1])
    other = next(one for one in files(tmp_path) if one != path)
    os.replace(other, path)
    assert load(store, TOKENS, "one") is None
    assert path.exists(), "it is intact"
    assert store.statistics().damaged == 0


def test_cells_of_another_model_are_not_used_and_not_removed(tmp_path: Path) -> None:
    open_store(tmp_path).save("", TOKENS, CELLS)
    other = open_store(tmp_path, key="another model")
    assert other.match("", TOKENS) is None
    assert other.save("", TOKENS, CELLS[::-1])
    assert load(open_store(tmp_path), TOKENS) == CELLS
    assert load(other, TOKENS) == CELLS[::-1]


def test_a_key_is_compared_whole_not_only_by_the_files_name(tmp_path: Path) -> None:
    other = open_store(tmp_path, key="another model")
    other.save("", TOKENS, CELLS)
    path = only_file(tmp_path)
    store = open_store(tmp_path)
    forged = path.with_name(store._prefix + path.name.removeprefix(other._prefix))
    path.rename(forged)
    assert len(open_store(tmp_path)) == 0
    assert forged.exists()


def test_a_model_that_cannot_roll_back_uses_only_what_its_prompt_goes_on_from(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    assert store.save("", [1, 2], b"short", whole=True)
    assert store.save("", [1, 2, 3, 4], b"long", whole=True)
    match = store.match("", [1, 2, 3, 5], whole=True)
    assert match is not None
    assert (match.length, match.usable) == (2, 2)
    loaded = store.load(match)
    assert loaded is not None
    assert bytes(loaded) == b"short"
    assert not store.save("", [1, 2], b"again", whole=True)


def test_a_longer_prompt_replaces_all_that_it_begins_with(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for prompt in ([1], [1, 2], [1, 2, 3, 4], [1, 2, 9]):
        assert store.save("", prompt, bytes(prompt))
    assert len(files(tmp_path)) == len(store) == 2
    assert load(store, [1, 2, 3, 4]) == bytes([1, 2, 3, 4])
    assert store.statistics().evictions == 0
    store.check()


@pytest.mark.parametrize("prompt", [[1, 2, 3], [1, 2], []])
def test_what_adds_nothing_is_not_saved(tmp_path: Path, prompt: list[int]) -> None:
    store = open_store(tmp_path)
    store.save("", [1, 2, 3], CELLS)
    assert not store.wants("", prompt, 1)
    assert not store.save("", prompt, b"again")
    assert load(store, [1, 2, 3]) == CELLS


def test_the_file_used_longest_ago_gives_way(tmp_path: Path) -> None:
    store = open_store(tmp_path, max_bytes=3 * SIZE)
    for first in (1, 2, 3):
        store.save("", [first, 0, 0], CELLS)
    age(store, [3, 0, 0], [1, 0, 0], [2, 0, 0])
    load(store, [3, 0, 0])  # used just now
    assert not store.save("", [1, 0], CELLS), "it is known already, which is a use as well"
    assert store.save("", [4, 0, 0], CELLS)
    assert [load(store, [first, 0, 0]) is not None for first in (1, 2, 3, 4)] == [True, False, True, True]
    assert len(files(tmp_path)) == 3
    assert store.statistics().evictions == 1


def test_files_beyond_the_bound_give_way_at_the_start(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for first in (1, 2, 3):
        store.save("", [first, 0, 0], CELLS)
    age(store, [2, 0, 0], [3, 0, 0], [1, 0, 0])
    smaller = open_store(tmp_path, max_bytes=2 * SIZE - 1)
    assert [smaller.match("", [first, 0, 0]) is not None for first in (1, 2, 3)] == [True, False, False]
    assert len(files(tmp_path)) == 1


def test_files_of_other_models_and_unfinished_ones_count_and_give_way(tmp_path: Path) -> None:
    other = open_store(tmp_path, key="another model")
    other.save("", TOKENS, CELLS)
    (tmp_path / "left-by-a-crash.unfinished").write_bytes(bytes(SIZE))
    (tmp_path / "notes.txt").write_bytes(bytes(SIZE))
    for path in files(tmp_path):
        os.utime(path, (0, 0))
    store = open_store(tmp_path, max_bytes=SIZE)
    assert store.save("", TOKENS, CELLS)
    assert len(files(tmp_path)) == 2
    assert (tmp_path / "notes.txt").exists()
    assert other.load(other.match("", TOKENS) or pytest.fail("it does not know yet")) is None
    assert other.match("", TOKENS) is None


def test_what_is_larger_than_the_bound_is_refused_and_displaces_nobody(tmp_path: Path) -> None:
    store = open_store(tmp_path, max_bytes=SIZE)
    store.save("", [1, 0, 0], CELLS)
    assert not store.wants("", [1, 0, 0, 0], 40)
    assert not store.save("", [1, 0, 0, 0], CELLS)
    assert load(store, [1, 0, 0]) == CELLS
    assert store.wants("", [2, 0, 0], 40)


def test_a_file_is_forgotten_once(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.save("", TOKENS, CELLS)
    match = store.match("", TOKENS)
    assert match is not None
    store.forget(match)
    store.forget(match)
    assert store.load(match) is None
    assert (files(tmp_path), len(store)) == ([], 0)


def test_two_processes_share_what_they_save_and_do_not_mind_what_the_other_removes(tmp_path: Path) -> None:
    one, other = open_store(tmp_path), open_store(tmp_path)
    one.save("", [1, 1], b"from one")
    other.save("", [2, 2], b"from the other")
    assert load(other, [1, 1]) == b"from one"
    for path in files(tmp_path):
        path.unlink()
    assert load(one, [1, 1]) is None
    assert load(other, [2, 2]) is None
    assert other.save("", [1, 1], b"once more"), "it knew of a file, but that is gone"
    assert load(other, [1, 1]) == b"once more"


def test_threads_save_and_load_at_once(tmp_path: Path) -> None:
    stores = [open_store(tmp_path, max_bytes=6 * SIZE) for _ in range(2)]
    wrong: list[object] = []

    def work(store: DiskStore, first: int) -> None:
        for number in range(30):
            prompt = [number % 5, first % 2, 0]
            store.save("", prompt, bytes(prompt) * 10)
            loaded = load(store, prompt)
            if loaded is not None and loaded[:2] != bytes(prompt[:2]):
                wrong.append((prompt, loaded))

    threads = [threading.Thread(target=work, args=(stores[i % 2], i)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    for store in stores:
        store.check()
        assert store.statistics().damaged == 0
    assert not list(tmp_path.glob("*.unfinished"))


def test_files_are_private(tmp_path: Path) -> None:
    directory = tmp_path / "new" / "cells"
    open_store(directory).save("", TOKENS, CELLS)
    assert stat.S_IMODE(only_file(directory).stat().st_mode) == 0o600
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_no_prompt_shows_in_the_name_of_a_file(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.save("one", TOKENS, CELLS)
    store.save("other", TOKENS, CELLS)
    names = [path.stem for path in files(tmp_path)]
    assert len(set(names)) == 2
    assert all(set(name) <= set("0123456789abcdef-") for name in names)


def test_a_directory_that_everybody_can_write_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(ConfigError, match="can be written by everybody: chmod o-w it"):
        open_store(tmp_path)


def test_a_path_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    for directory in (path, path / "below"):
        with pytest.raises(ConfigError, match=f"directory {directory} for saved cells cannot be used: "):
            open_store(directory)


def test_a_bound_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must be at least 1; got 0"):
        open_store(tmp_path, max_bytes=0)


def test_a_disk_that_fails_costs_the_file_only(tmp_path: Path) -> None:
    store = open_store(tmp_path / "cells")
    store.save("", [1, 1], CELLS)
    only_file(tmp_path / "cells").unlink()
    (tmp_path / "cells").rmdir()
    assert load(store, [1, 1]) is None
    assert not store.save("", TOKENS, CELLS)
    assert store.statistics().failures == 1
    (tmp_path / "cells").mkdir()
    assert store.save("", TOKENS, CELLS)


def test_a_file_that_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.save("", TOKENS, CELLS)
    path = only_file(tmp_path)
    path.unlink()
    path.mkdir()
    assert load(store, TOKENS) is None
    assert store.statistics().failures == 1
    assert len(open_store(tmp_path)) == 0


def test_links_are_not_followed(tmp_path: Path) -> None:
    store = open_store(tmp_path / "cells")
    store.save("", TOKENS, CELLS)
    path = only_file(tmp_path / "cells")
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert len(open_store(tmp_path / "cells")) == 0


def test_a_file_of_another_version_is_left_alone(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.save("", TOKENS, CELLS)
    path = only_file(tmp_path)
    written = bytearray(path.read_bytes())
    struct.pack_into("<I", written, 8, VERSION + 1)
    path.write_bytes(written)
    assert load(store, TOKENS) is None
    assert path.exists()
    assert len(open_store(tmp_path)) == 0
    assert path.exists()


def flipped(intact: bytes, place: int) -> bytes:
    return intact[:place] + bytes([intact[place] ^ 0x10]) + intact[place + 1 :]


def cut(intact: bytes, place: int) -> bytes:
    return intact[:place]


def filled(intact: bytes, place: int) -> bytes:
    return intact[:place] + bytes(len(intact) - place)


def prolonged(intact: bytes, place: int) -> bytes:
    return intact + intact[: place + 1]


@pytest.mark.parametrize("damage", [flipped, cut, filled, prolonged])
def test_a_damaged_file_is_never_used_wherever_the_damage_is(
    tmp_path: Path, damage: Callable[[bytes, int], bytes]
) -> None:
    store = open_store(tmp_path)
    store.save("", TOKENS, CELLS)
    path = only_file(tmp_path)
    intact = path.read_bytes()
    assert len(intact) == SIZE
    for place in range(len(intact)):
        damaged = damage(intact, place)
        if damaged == intact:
            continue
        path.write_bytes(intact)
        running = open_store(tmp_path)
        assert running.match("", TOKENS) is not None
        path.write_bytes(damaged)
        restarted = open_store(tmp_path)
        for one in (restarted, running):
            assert load(one, TOKENS) is None, place
            assert one.match("", TOKENS) is None
            one.check()
        assert not path.exists() or damaged[8:12] != intact[8:12], "only another version's file may stay"


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_whatever_lies_in_the_directory_nothing_is_raised(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    directory = tmp_path_factory.mktemp("cells")
    store = open_store(directory)
    store.save("", TOKENS, CELLS)
    path = only_file(directory)
    intact = path.read_bytes()
    start = data.draw(st.integers(0, len(intact)))
    end = data.draw(st.integers(start, len(intact)))
    written = intact[:start] + data.draw(st.binary(max_size=60)) + intact[end:]
    path.write_bytes(written)
    for one in (open_store(directory), store):
        assert load(one, TOKENS) == (CELLS if written == intact else None)
    assert store.save("", TOKENS, CELLS) == (written != intact)
    assert load(store, TOKENS) == CELLS

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llamalane.errors import ConfigError
from llamalane.streams import cores
from llamalane.streams.cores import available_cores, share_cores

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a thread's cores")


@settings(deadline=None)
@given(st.sets(st.integers(0, 63), min_size=1), st.lists(st.none() | st.integers(1, 8), min_size=1, max_size=6))
def test_lanes_get_disjoint_cores_and_as_many_as_they_want(available: set[int], wanted: list[int | None]) -> None:
    try:
        sets = share_cores(sorted(available), wanted)
    except ConfigError:
        assert sum(count or 1 for count in wanted) > len(available)
        return
    used = [core for lane in sets for core in lane]
    assert len(used) == len(set(used))
    assert set(used) <= available
    open_lanes = [lane for lane, count in zip(sets, wanted, strict=True) if count is None]
    assert all(len(lane) == count for lane, count in zip(sets, wanted, strict=True) if count is not None)
    if open_lanes:
        assert set(used) == available, "a core is left idle"
        sizes = sorted(len(lane) for lane in open_lanes)
        assert sizes[0] >= 1
        assert sizes[-1] - sizes[0] <= 1


@pytest.mark.parametrize(
    ("available", "wanted", "sets"),
    [
        ((0, 1), [None], [(0, 1)]),
        ((4, 6, 8, 10), [None, None], [(4, 6), (8, 10)]),
        ((0, 1, 2, 3), [1, None], [(0,), (1, 2, 3)]),
        ((0, 1, 2, 3), [None, 2], [(0, 1), (2, 3)]),
        ((0, 1, 2, 3), [1], [(0,)]),
    ],
)
def test_cores_are_given_out_in_their_order(
    available: Sequence[int], wanted: Sequence[int | None], sets: list[tuple[int, ...]]
) -> None:
    assert share_cores(available, wanted) == sets


@pytest.mark.parametrize("wanted", [[3], [2, None], [None, None, None], [1, 2]])
def test_more_threads_than_cores_are_refused_with_both_numbers(wanted: list[int | None]) -> None:
    with pytest.raises(ConfigError, match="want 3 threads, but only 2 cores"):
        share_cores((0, 1), wanted)


@linux_only
def test_only_the_cores_that_this_process_may_use_are_available() -> None:
    last = max(os.sched_getaffinity(0))
    seen: list[tuple[int, ...]] = []

    def look() -> None:
        os.sched_setaffinity(0, {last})  # of this thread alone
        seen.append(available_cores())

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [(last,)]


@linux_only
def test_hardware_threads_of_one_core_count_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "_TOPOLOGY", tmp_path)
    allowed = sorted(os.sched_getaffinity(0))
    for cpu in allowed:
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{allowed[0]}-{allowed[-1]}\n")
    assert available_cores() == (allowed[0],)


@linux_only
def test_every_logical_cpu_counts_where_the_topology_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cores, "_TOPOLOGY", tmp_path / "nowhere")
    assert available_cores() == tuple(sorted(os.sched_getaffinity(0)))


@linux_only
@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 6),
        ({"sys/fs/cgroup/app/cpu.max": "max 100000\n"}, 6),
        ({"sys/fs/cgroup/app/cpu.max": "250000 100000\n"}, 2),
        ({"sys/fs/cgroup/app/cpu.max": "50000 100000\n"}, 1),
        ({"sys/fs/cgroup/app/cpu.max": "max 100000\n", "sys/fs/cgroup/cpu.max": "300000 100000\n"}, 3),
        ({"sys/fs/cgroup/app/cpu.max": "9900000 100000\n"}, 6),
        ({"sys/fs/cgroup/app/cpu.max": "nonsense\n"}, 6),
    ],
)
def test_no_more_cores_than_a_control_group_grants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: Mapping[str, str], cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(100, 106)))
    write(tmp_path, {"proc/self/cgroup": "0::/app\n", **files})
    assert available_cores(tmp_path) == tuple(range(100, 100 + cores))


@linux_only
@pytest.mark.parametrize(("quota", "cores"), [(-1, 6), (400_000, 4)])
def test_the_first_version_of_control_groups_limits_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: int, cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(100, 106)))
    folder = "sys/fs/cgroup/cpu/job"
    files = {f"{folder}/cpu.cfs_quota_us": f"{quota}\n", f"{folder}/cpu.cfs_period_us": "100000\n"}
    write(tmp_path, {"proc/self/cgroup": "4:cpu,cpuacct:/job\n", **files})
    assert len(available_cores(tmp_path)) == cores


def write(root: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)

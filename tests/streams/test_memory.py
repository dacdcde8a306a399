"""What memory is free, on machines that are made up of files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from llamalane.streams.memory import free_host_memory

AVAILABLE = "MemTotal:       16000000 kB\nMemFree:          100000 kB\nMemAvailable:   8000000 kB\n"
UNLIMITED_1 = "9223372036854771712"


def machine(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in {"proc/meminfo": AVAILABLE, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def group_1(folder: str, limit: int | str, usage: int, cached: int = 0) -> dict[str, str]:
    folder = f"sys/fs/cgroup/memory/{folder}"
    return {
        f"{folder}/memory.limit_in_bytes": f"{limit}\n",
        f"{folder}/memory.usage_in_bytes": f"{usage}\n",
        f"{folder}/memory.stat": f"cache {cached}\ntotal_inactive_file {cached}\ntotal_active_file 0\n",
    }


def group_2(folder: str, limit: int | str, usage: int, cached: int = 0) -> dict[str, str]:
    folder = f"sys/fs/cgroup/{folder}"
    return {
        f"{folder}/memory.max": f"{limit}\n",
        f"{folder}/memory.current": f"{usage}\n",
        f"{folder}/memory.stat": f"anon 5\ninactive_file {cached}\nactive_file {cached}\nslab 7\n",
    }


def test_without_groups_it_is_what_the_machine_has_available(tmp_path: Path) -> None:
    assert free_host_memory(machine(tmp_path, {})) == 8_000_000 * 1024


def test_a_groups_limit_bounds_it_and_cached_files_count_as_free(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/app\n", **group_2("app", 1000, 800, cached=100)}
    assert free_host_memory(machine(tmp_path, files)) == 1000 - 800 + 2 * 100


def test_the_tightest_of_the_groups_around_counts(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/slice/app\n",
        **group_2("slice/app", "max", 10),
        **group_2("slice", 500, 100),
    }
    assert free_host_memory(machine(tmp_path, files)) == 400


def test_groups_of_version_1_are_read_too(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "5:devices:/\n4:cpu,memory:/job\n0::/\n",
        **group_1("job", 900, 600, cached=50),
        **group_1("", UNLIMITED_1, 10_000),
    }
    assert free_host_memory(machine(tmp_path, files)) == 350


def test_a_path_that_leads_nowhere_falls_back_to_the_root_of_the_groups(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/docker/0123\n", **group_2("", 700, 300)}
    assert free_host_memory(machine(tmp_path, files)) == 400


def test_a_group_over_its_limit_leaves_nothing(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/app\n", **group_2("app", 100, 150)}
    assert free_host_memory(machine(tmp_path, files)) == 0


def test_a_system_that_does_not_tell_has_all_its_memory(tmp_path: Path) -> None:
    assert free_host_memory(tmp_path) == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="needs Linux")
def test_this_machine_has_some_but_not_more_than_it_has() -> None:
    assert 0 < free_host_memory() < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

"""How much of the host's memory this process can still have."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from llamalane.streams.control_groups import group_folders


@dataclass(frozen=True, slots=True)
class _Hierarchy:
    """Where control groups say how much memory they may use, use, and use for what can be dropped at once."""

    limit: str
    usage: str
    caches: tuple[str, str]


_VERSION_1 = _Hierarchy(
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    ("total_inactive_file", "total_active_file"),
)
_VERSION_2 = _Hierarchy("memory.max", "memory.current", ("inactive_file", "active_file"))


def free_host_memory(root: Path = Path("/")) -> int:
    """Return how many bytes this process can still take, without swapping.

    It is what the machine has available, and no more than what the process's control groups leave: files that are
    cached count as available, since they can be dropped. Where a system does not tell (macOS), it is all memory that
    the machine has. `root` is where /proc and /sys are.
    """
    return min([_available(root), *_left_by_groups(root)])


def _available(root: Path) -> int:
    try:
        text = (root / "proc/meminfo").read_text()
    except OSError:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return _number(text, r"MemAvailable:") * 1024


def _left_by_groups(root: Path) -> Iterator[int]:
    """Yield what each group leaves, the process's own and those around it."""
    for version, folder in group_folders(root, "memory", version_1="sys/fs/cgroup/memory"):
        left = _left(folder, _VERSION_1 if version == 1 else _VERSION_2)
        if left is not None:
            yield left


def _left(folder: Path, hierarchy: _Hierarchy) -> int | None:
    try:
        limit = (folder / hierarchy.limit).read_text().strip()
        usage = int((folder / hierarchy.usage).read_text())
        statistics = (folder / "memory.stat").read_text()
    except OSError:
        return None
    if limit == "max":
        return None
    caches = sum(_number(statistics, name) for name in hierarchy.caches)
    return max(int(limit) - usage + caches, 0)


def _number(text: str, name: str) -> int:
    match = re.search(rf"^{name} +(\d+)", text, re.MULTILINE)
    return int(match[1]) if match else 0

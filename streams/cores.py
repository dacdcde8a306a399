"""Which CPU cores this process may use, and how lanes share them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from llamalane.errors import ConfigError
from llamalane.streams.control_groups import group_folders

_TOPOLOGY = Path("/sys/devices/system/cpu")


def available_cores(root: Path = Path("/")) -> tuple[int, ...]:
    """Return the cores that this process may run on, one logical CPU for each physical core where that is known.

    A second hardware thread on a busy core slows llama.cpp's matrix products down rather than helping them. They are
    no more than the process's control groups grant it time for, as a container's limit does, rounded down to whole
    cores; at least one. `root` is where /proc and /sys are.
    """
    cores = _allowed_cores()
    granted = min(_quotas(root), default=float(len(cores)))
    return cores[: max(1, int(granted))]


def _allowed_cores() -> tuple[int, ...]:
    if not hasattr(os, "sched_getaffinity"):
        return tuple(range(os.cpu_count() or 1))
    allowed = sorted(os.sched_getaffinity(0))
    seen: set[str] = set()
    cores = []
    for cpu in allowed:
        siblings = _siblings(cpu)
        if siblings not in seen:
            seen.add(siblings)
            cores.append(cpu)
    return tuple(cores)


def share_cores(cores: Sequence[int], wanted: Sequence[int | None]) -> list[tuple[int, ...]]:
    """Divide `cores` into disjoint sets, one for each lane.

    `wanted` holds each lane's thread count; None takes an equal part of what the others leave, at least one. Raises
    `ConfigError` when the lanes want more threads than there are cores.
    """
    fixed = sum(count for count in wanted if count is not None)
    open_lanes = wanted.count(None)
    rest = len(cores) - fixed
    if rest < open_lanes:
        raise ConfigError(
            f"the lanes want {fixed + open_lanes} threads, but only {len(cores)} cores are available: "
            "give them fewer threads or make fewer lanes"
        )
    sets = []
    start = 0
    for count in wanted:
        if count is None:
            count = rest // open_lanes
            rest -= count
            open_lanes -= 1
        sets.append(tuple(cores[start : start + count]))
        start += count
    return sets


def _quotas(root: Path) -> Iterator[float]:
    """Yield of how many cores each group may take the time, of those that are limited."""
    for version, folder in group_folders(root, "cpu", version_1="sys/fs/cgroup/cpu"):
        files = ("cpu.max",) if version == 2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        try:
            quota, period = " ".join((folder / file).read_text() for file in files).split()
        except (OSError, ValueError):
            continue
        if quota not in ("max", "-1"):
            yield int(quota) / int(period)


def _siblings(cpu: int) -> str:
    try:
        return (_TOPOLOGY / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)

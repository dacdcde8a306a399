"""Where Linux's control groups tell what this process may use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

VERSION_2 = "sys/fs/cgroup"


def group_folders(root: Path, controller: str, version_1: str) -> Iterator[tuple[int, Path]]:
    """Yield the folders of the groups that limit this process, its own and those around it, and their version.

    `controller` is what limits, such as `memory`; `version_1` is where its groups are in version 1, below `root`,
    where /proc and /sys are. Not all of the folders need exist.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        version, top = (1, version_1) if controllers else (2, VERSION_2)
        # In a container the path may be the host's, which does not lead anywhere here; its roots do.
        group = PurePosixPath(path.lstrip("/"))
        for parent in (group, *group.parents):
            yield version, root / top / parent

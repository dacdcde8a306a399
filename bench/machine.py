"""What a report says of the machine and the versions, and who used the CPU while something was measured."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

_PACKAGES = (
    "llamalane",
    "llama-cpp-python",
    "xllamacpp",
    "fastapi",
    "starlette",
    "sse-starlette",
    "uvicorn",
    "uvloop",
    "anyio",
    "pydantic",
    "numpy",
)
_LOOK_SECONDS = 1.0

BUSY_CORES = 0.2
"""The most that other processes may use of the CPU, in cores, for numbers to be worth taking."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine and the versions of what is measured.

    Attributes:
        load_average: runnable processes over the last 1, 5 and 15 minutes; None where they are not counted.
        busy: CPU use by all processes, in cores, when the machine was described.
        settings: environment variables that change how OpenMP's threads wait.
    """

    system: str
    processor: str
    cores: int
    memory_gib: float
    python: str
    versions: dict[str, str]
    load_average: tuple[float, float, float] | None
    busy: float
    settings: dict[str, str] = field(default_factory=dict)


def describe_machine() -> Machine:
    """Look at the machine; takes a second, in which its CPU use is measured."""
    return Machine(
        system=platform.platform(),
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_gib=round(psutil.virtual_memory().total / 2**30, 1),
        python=f"{platform.python_implementation()} {platform.python_version()}",
        versions={name: version for name in _PACKAGES if (version := _version(name)) is not None},
        load_average=os.getloadavg() if hasattr(os, "getloadavg") else None,
        busy=psutil.cpu_percent(_LOOK_SECONDS) / 100 * (psutil.cpu_count() or 1),
        settings={name: value for name, value in os.environ.items() if name.startswith(("OMP_", "GOMP_"))},
    )


@dataclass(frozen=True, slots=True)
class CpuShares:
    """CPU use over a time, in cores.

    Attributes:
        server: by the measured server; None if that is none of this machine's processes that are known.
        others: by everything but the server and this process.
        stolen: given to other machines by the hypervisor, while this one had work.
    """

    server: float | None
    others: float
    stolen: float


class CpuMeter:
    """Measures who uses the CPU, from its creation on.

    `server` is the process id of the measured server; None stands for this process and those that it has started. A
    `remote` server's use is not known: if it runs on this machine, it counts among the others.
    """

    def __init__(self, server: int | None, *, remote: bool = False) -> None:
        self._server = None if remote else psutil.Process(server)
        self._is_own = server is None and not remote
        self._start = self._look()

    def read(self) -> CpuShares:
        """Return the CPU use since the meter was created."""
        seconds, system, stolen, server, own = (
            after - before for after, before in zip(self._look(), self._start, strict=True)
        )
        return CpuShares(
            server=None if self._server is None else server / seconds,
            others=max(0.0, system - server - own) / seconds,
            stolen=stolen / seconds,
        )

    def _look(self) -> tuple[float, float, float, float, float]:
        system = psutil.cpu_times()
        busy = sum(getattr(system, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq"))
        processes = [] if self._server is None else [self._server, *self._server.children(recursive=True)]
        server = sum(sum(process.cpu_times()[:2]) for process in processes)
        own = sum(psutil.Process().cpu_times()[:2])
        if self._is_own:  # then what it has used counts already, but not what processes have that have ended
            own = sum(psutil.Process().cpu_times()[2:4])
        return time.monotonic(), busy, getattr(system, "steal", 0.0), server, own


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.machine()

"""The processor, what llama.cpp uses of it, and how its threads wait for each other."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from llamalane.streams.llama.library import SPIN_COUNT

# Those that llama.cpp has code for.
_FEATURES = (
    "avx", "avx2", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_int8",
    "amx_bf16", "fma", "f16c", "bmi2", "asimd", "asimddp", "asimdhp", "fphp", "i8mm", "bf16", "sve", "sve2", "sme",
)  # fmt: skip
# What llama.cpp calls those that it is much slower without. AMX is left out: some compilers get it wrong.
_NAMES = {
    "avx2": "AVX2", "avx_vnni": "AVX_VNNI", "avx512f": "AVX512", "avx512_vnni": "AVX512_VNNI", "fma": "FMA",
    "avx512_bf16": "AVX512_BF16", "f16c": "F16C", "asimddp": "DOTPROD", "i8mm": "MATMUL_INT8", "sve": "SVE",
}  # fmt: skip
_SUFFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_SHORT = 100
"""With a smaller spin count threads sleep between the operations of a step even on a quiet machine."""


def processor_name() -> str:
    """Return what the processor is called."""
    return next(_cpu_lines("model name"), platform.processor() or platform.machine())


def cpu_features() -> tuple[str, ...]:
    """Return what the processor can do of what llama.cpp has code for, in Linux's words; nothing elsewhere."""
    flags = next(_cpu_lines("flags", "Features"), "").split()
    return tuple(name for name in _FEATURES if name in flags)


def build_warnings(features: tuple[str, ...], system_info: str) -> Iterator[str]:
    """Say what the processor has that llama.cpp was built without, as its system information tells."""
    unused = [_NAMES[name] for name in features if name in _NAMES and not _is_on(_NAMES[name], system_info)]
    if unused:
        yield f"llama.cpp was built without {', '.join(unused)}, which this processor has: compile it on this machine"


def spin_warnings(environment: Mapping[str, str], system_info: str) -> Iterator[str]:
    """Say what the environment makes of the time that OpenMP's threads spin while they wait, where it does harm."""
    if not _is_on("OPENMP", system_info):
        return
    count, policy = environment.get("GOMP_SPINCOUNT"), environment.get("OMP_WAIT_POLICY")
    spins = None if count is None else _spins(count)
    if spins is not None:
        cause, long, short = f"GOMP_SPINCOUNT={count}", spins > int(SPIN_COUNT), spins < _SHORT
    elif policy is not None:
        chosen = policy.strip().lower()
        cause, long, short = f"OMP_WAIT_POLICY={policy}", chosen != "passive", chosen == "passive"
    else:
        return
    if long:
        yield (
            f"{cause} lets llama.cpp's threads spin while they wait: beside another busy process a step takes several "
            f"times longer, and lanes do not notice; unset it, and llamalane takes {SPIN_COUNT}"
        )
    elif short:
        yield (
            f"{cause} lets llama.cpp's threads sleep after each operation: a step takes half as long again on a quiet "
            f"machine; unset it, and llamalane takes GOMP_SPINCOUNT={SPIN_COUNT}"
        )


def _spins(text: str) -> float | None:
    """Return the spin count that libgomp reads in `text`, None if it cannot."""
    if text.strip().lower() in ("infinite", "infinity"):
        return float("inf")
    number = re.fullmatch(r"\s*(\d+)\s*([kmgt]?)\s*", text.lower())
    return None if number is None else int(number[1]) * _SUFFIXES[number[2]]


def _is_on(name: str, system_info: str) -> bool:
    return re.search(rf"\b{name} = 1\b", system_info) is not None


def _cpu_lines(*keys: str) -> Iterator[str]:
    """Give the values that Linux tells under one of `keys`, for each core."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in keys:
            yield value.strip()

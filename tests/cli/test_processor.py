"""What `llamalane doctor` makes of the processor, of llama.cpp's build, and of OpenMP's settings."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from llamalane.cli.processor import build_warnings, spin_warnings
from llamalane.streams.llama.library import SPIN_COUNT
from tests.cli.process import run

OPENMP = "CPU : AVX2 = 1 | FMA = 1 | OPENMP = 1 | "


@pytest.mark.parametrize(
    "environment",
    [
        {"GOMP_SPINCOUNT": "300000"},
        {"GOMP_SPINCOUNT": "20k"},
        {"GOMP_SPINCOUNT": " Infinite "},
        {"OMP_WAIT_POLICY": "active"},
        {"OMP_WAIT_POLICY": "whatever"},
        {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "1M"},
    ],
)
def test_a_long_spin_is_warned_of(environment: Mapping[str, str]) -> None:
    (warning,) = spin_warnings(environment, OPENMP)
    assert "several times longer" in warning
    assert f"llamalane takes {SPIN_COUNT}" in warning


@pytest.mark.parametrize("environment", [{"GOMP_SPINCOUNT": "0"}, {"OMP_WAIT_POLICY": "PASSIVE"}])
def test_threads_that_sleep_at_once_are_warned_of(environment: Mapping[str, str]) -> None:
    (warning,) = spin_warnings(environment, OPENMP)
    assert "half as long again" in warning


@pytest.mark.parametrize(
    "environment", [{}, {"GOMP_SPINCOUNT": SPIN_COUNT}, {"GOMP_SPINCOUNT": "100"}, {"GOMP_SPINCOUNT": "much"}]
)
def test_what_does_no_harm_is_no_news(environment: Mapping[str, str]) -> None:
    assert list(spin_warnings(environment, OPENMP)) == []


def test_a_build_without_openmp_has_no_spin() -> None:
    assert list(spin_warnings({"OMP_WAIT_POLICY": "active"}, "CPU : AVX2 = 1 | OPENMP = 0 | ")) == []


def test_what_the_build_leaves_unused_is_told() -> None:
    (warning,) = build_warnings(("avx2", "avx512f", "fma", "avx512_vnni", "amx_tile"), OPENMP)
    assert warning.startswith("llama.cpp was built without AVX512, AVX512_VNNI, which")
    assert list(build_warnings(("avx", "avx2", "fma"), OPENMP)) == []


def test_the_doctor_warns_and_is_content_all_the_same() -> None:
    done = run("doctor", CUDA_VISIBLE_DEVICES="", GOMP_SPINCOUNT="infinite")
    assert done.returncode == 0, done.stderr
    if "OPENMP = 1" in done.stdout:
        assert "\nwarning     GOMP_SPINCOUNT=infinite lets" in done.stdout
    assert "processor   " in done.stdout
    assert "nothing is broken that is needed" in done.stdout

"""What a benchmark says that finds a package missing."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from llamalane.bench.options import PACKAGES, needed_packages
from llamalane.errors import LlamalaneError

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_it_names_all_that_the_group_for_benchmarks_has() -> None:
    groups = tomllib.loads(PROJECT.read_text())["dependency-groups"]
    assert [re.split(r"[>=\[]", requirement)[0] for requirement in groups["bench"]] == list(PACKAGES)


def test_a_missing_package_is_told_with_what_installs_it() -> None:
    with (
        pytest.raises(LlamalaneError, match=r"needs nothing_of_the_kind: pip install h11 .* xllamacpp"),
        needed_packages(),
    ):
        __import__("nothing_of_the_kind")

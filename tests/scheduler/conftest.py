"""Schedulers for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.scheduler.harness import Harness, Start


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts schedulers over scripted lanes; closes them after the test, and checks that nothing was lost."""
    harnesses: list[Harness] = []

    def begin(*args: object, **options: object) -> Harness:
        harness = Harness(*args, **options)  # type: ignore[arg-type]
        harnesses.append(harness)
        return harness

    yield begin
    for harness in harnesses:
        harness.close()

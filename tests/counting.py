"""Counts the Python functions that are called: unlike time, the number is the same on every machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Calls:
    """How many functions were called, on the thread that counts, while it counted."""

    def __init__(self) -> None:
        self.count = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count during the block."""
        self.start()
        try:
            yield
        finally:
            self.stop()
            self.count -= 2  # the end of this block and `stop` itself

    def start(self) -> None:
        """Begin to count."""
        sys.setprofile(self._note)

    def stop(self) -> None:
        """Count no more."""
        sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            self.count += 1

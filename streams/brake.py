"""Breaks off a lane's step from another thread."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Protocol


class Interruptible(Protocol):
    """What computes a step, and can be told to stop."""

    def interrupt(self, on: bool) -> None:
        """Let the step under way be abandoned, or no more."""


class Brake:
    """Stops a step from another thread: that step, and no other, since its number has to be right."""

    def __init__(self, *, works: bool) -> None:
        self._works = works
        self._lock = threading.Lock()
        self._step = 0
        self._context: Interruptible | None = None

    def pull(self, step: int) -> None:
        """Stop step `step` if it is under way."""
        with self._lock:
            if self._works and self._context is not None and self._step == step:
                self._context.interrupt(True)

    @contextlib.contextmanager
    def armed(self, step: int, context: Interruptible) -> Iterator[None]:
        """Let step `step` be stopped within the block."""
        with self._lock:
            self._step, self._context = step, context
        try:
            yield
        finally:
            with self._lock:
                self._context = None
                if self._works:
                    context.interrupt(False)

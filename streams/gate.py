"""A gate that many may pass together, or one alone."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class Gate:
    """Keeps uses of something apart from its making and freeing.

    Any number of threads may use it at once; whoever makes or frees it waits until they are done, and whoever comes
    later waits for that one. The lanes of a device share a gate, so that a context is made or freed only while they
    are all between steps.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._sharing = 0
        self._exclusive = 0

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Hold during a use."""
        with self._condition:
            self._condition.wait_for(lambda: not self._exclusive)
            self._sharing += 1
        try:
            yield
        finally:
            with self._condition:
                self._sharing -= 1
                self._condition.notify_all()

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold while something is made or freed."""
        with self._condition:
            self._exclusive += 1  # from here on no new use begins
            self._condition.wait_for(lambda: self._sharing == 0)
            try:
                yield
            finally:
                self._exclusive -= 1
                self._condition.notify_all()

"""How far a batch is, on a terminal."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from rich.console import Console

    from llamalane.api.batches.input import FinishedWork


class BatchProgress:
    """Counts finished tasks and shows them.

    The bar goes by bytes of the input, since counting its lines would mean reading it twice.
    """

    def __init__(self, console: Console, total_bytes: int, done: FinishedWork) -> None:
        self.finished = done.finished
        self.failed = done.failed
        self._earlier = done.finished
        self._tokens = 0
        self._started = time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._row = self._bar.add_task("starting", total=total_bytes)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """Show what is being done."""
        self._bar.update(self._row, description=text)

    def advance(self, position: int, *, failed: bool, usage: Mapping[str, Any] | None = None) -> None:
        """Count one more finished task; the input is read up to byte `position`."""
        self.finished += 1
        self.failed += failed
        if usage is not None:
            self._tokens += usage.get("completion_tokens", 0)
        self._bar.update(self._row, completed=position, description=self._counts())

    def _counts(self) -> str:
        return f"{self.finished} done, {self.failed} failed"

    def summary(self) -> str:
        """Return one line on the whole run."""
        seconds = time.monotonic() - self._started
        earlier = f", {self._earlier} of them before" if self._earlier else ""
        return f"{self._counts()}{earlier}; {self._tokens} tokens in {seconds:.1f} s"

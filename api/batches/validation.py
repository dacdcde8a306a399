"""Checks the input of a batch before any of it is run."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import anyio.from_thread

from llamalane.api.batches.input import BatchInput, BatchTask, FinishedWork, InvalidLine
from llamalane.api.batches.records import BatchError

MAX_ERRORS = 100
"""So many mistakes are told, and no more are looked for."""
_LOOK_UP = 256
"""After so many lines, whoever waits may have been cancelled."""


@dataclass(frozen=True, slots=True)
class InputRules:
    """What an input must keep to.

    Attributes:
        endpoint: the endpoint of the batch, and of each item.
        models: the names of the models that items may ask for.
        max_items: the most items.
        max_line: the longest line, in bytes.
    """

    endpoint: str
    models: Collection[str]
    max_items: int
    max_line: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """How many items an input has, or what is wrong with it."""

    total: int
    errors: tuple[BatchError, ...]


def check_input(source: Path, rules: InputRules) -> Verdict:
    """Read an input and check each line. Runs on a worker thread; ends early when whoever waits is cancelled."""
    total = 0
    errors: list[BatchError] = []
    with source.open("rb") as file:
        entries = BatchInput(file, FinishedWork(), max_line=rules.max_line)
        while len(errors) < MAX_ERRORS and (entry := entries.next()) is not None:
            if total % _LOOK_UP == 0:
                anyio.from_thread.check_cancelled()
            total += 1
            if total > rules.max_items:
                message = f"the file has more than {rules.max_items} items, which is the most that a batch may have"
                errors.append(BatchError("too_many_items", message, line=entry.line))
                break
            errors.extend(_errors_of(entry, rules))
    if not total:
        errors.append(BatchError("empty_file", "the file has no items"))
    return Verdict(total, tuple(errors))


def _errors_of(entry: BatchTask | InvalidLine, rules: InputRules) -> Iterator[BatchError]:
    if isinstance(entry, InvalidLine):
        yield BatchError(entry.code, entry.message, entry.param, entry.line)
        return
    if entry.method != "POST":
        message = f"line {entry.line}: method must be POST; got {entry.method!r:.100}"
        yield BatchError("invalid_method", message, "method", entry.line)
    if entry.url != rules.endpoint:
        message = f"line {entry.line}: url must be {rules.endpoint}, the endpoint of the batch; got {entry.url!r:.100}"
        yield BatchError("invalid_url", message, "url", entry.line)
    model = entry.body.get("model")
    if isinstance(model, str) and model not in rules.models:
        known = ", ".join(rules.models)
        message = f"line {entry.line}: no model is called {model!r:.100}; this server has {known}"
        yield BatchError("model_not_found", message, "body.model", entry.line)

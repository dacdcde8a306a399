"""Input files of batches."""

from __future__ import annotations

import io
import json
from typing import Any

from llamalane.api.batches.input import BatchInput, BatchTask, FinishedWork, InvalidLine


def record(custom_id: str, /, **changes: Any) -> dict[str, Any]:
    fields = {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}
    return {**fields, **changes}


def jsonl(*records: Any) -> bytes:
    return b"".join(json.dumps(entry).encode() + b"\n" for entry in records)


def read_all(text: bytes, done: FinishedWork | None = None, **options: Any) -> list[BatchTask | InvalidLine]:
    reader = BatchInput(io.BytesIO(text), done or FinishedWork(), **options)
    return list(iter(reader.next, None))

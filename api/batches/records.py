"""Files and batches as they are kept, and how the API shows them."""

from __future__ import annotations

import enum
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from llamalane.ids import Level


class Purpose(enum.StrEnum):
    """What a file is for."""

    BATCH = "batch"
    """The input of batches."""
    BATCH_OUTPUT = "batch_output"
    """What came of one."""


class BatchStatus(enum.StrEnum):
    """How far a batch is."""

    VALIDATING = "validating"
    """Its input is being checked, or will be."""
    FAILED = "failed"
    """Its input cannot be used; nothing of it was run."""
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    """All of it has been run, and its output is being written."""
    COMPLETED = "completed"
    EXPIRED = "expired"
    """Its completion window ended first."""
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """Whether nothing more happens to such a batch."""
        return self in _ENDED


_ENDED = frozenset({BatchStatus.FAILED, BatchStatus.COMPLETED, BatchStatus.EXPIRED, BatchStatus.CANCELLED})


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a tenant; times are in seconds since 1970, `expires_at` is None for one that is kept."""

    id: str
    tenant: str
    filename: str
    purpose: Purpose
    bytes: int
    created_at: int
    expires_at: int | None

    def describe(self) -> dict[str, Any]:
        """Return the file as OpenAI's API shows it."""
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.bytes,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            "filename": self.filename,
            "purpose": self.purpose.value,
            "status": "processed",
            "status_details": None,
        }


@dataclass(frozen=True, slots=True)
class BatchError:
    """Why an input cannot be used; `line` is counted from 1, None where it is about all of it."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None

    def describe(self) -> dict[str, Any]:
        """Return the error as OpenAI's API shows it."""
        return {"code": self.code, "message": self.message, "param": self.param, "line": self.line}


@dataclass(frozen=True, slots=True)
class BatchOrder:
    """What was asked for when a batch was created, and by whom.

    Attributes:
        key: the name of the API key, for logs.
        most_urgent: the most urgent level that items may ask for.
        separate_users: whether items of each `user` share cached prompts among themselves only.
        level: the level of items that name none.
        completion_window: as the client wrote it; `expires_at` is what follows from it.
        output_seconds: how long the output is kept, None for what the configuration says.
    """

    id: str
    tenant: str
    key: str
    most_urgent: Level
    separate_users: bool
    level: Level
    endpoint: str
    input_file_id: str
    completion_window: str
    metadata: Mapping[str, str] | None
    output_seconds: int | None
    created_at: int
    expires_at: int


@dataclass(frozen=True, slots=True)
class ItemUsage:
    """Tokens that items took."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    @classmethod
    def of_answer(cls, body: Mapping[str, Any]) -> ItemUsage:
        """Return what the body of an answer tells; nothing for one without usage."""
        usage = body.get("usage") or {}
        details = usage.get("prompt_tokens_details") or {}
        return cls(usage.get("prompt_tokens", 0), details.get("cached_tokens", 0), usage.get("completion_tokens", 0))

    def describe(self) -> dict[str, Any]:
        """Return the usage as OpenAI's API shows that of a batch."""
        return {
            "input_tokens": self.prompt_tokens,
            "input_tokens_details": {"cached_tokens": self.cached_tokens},
            "output_tokens": self.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }


NO_USAGE = ItemUsage()


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch: what was asked for, and what has come of it so far.

    Attributes:
        number: counts the batches of a folder in the order in which they were created.
        times: when it got which status, in seconds since 1970.
        total: how many items it has; 0 until its input was checked.
        completed, failed: how many of them were answered, and how many of those answers are errors.
    """

    number: int
    order: BatchOrder
    status: BatchStatus = BatchStatus.VALIDATING
    times: Mapping[str, int] = field(default_factory=dict)
    model: str | None = None
    total: int = 0
    completed: int = 0
    failed: int = 0
    usage: ItemUsage = NO_USAGE
    output_file_id: str | None = None
    error_file_id: str | None = None
    errors: tuple[BatchError, ...] = ()

    @property
    def id(self) -> str:
        """The batch's id."""
        return self.order.id

    def describe(self) -> dict[str, Any]:
        """Return the batch as OpenAI's API shows it, with the priority of its items beside it."""
        order = self.order
        stages = (status for status in BatchStatus if status is not BatchStatus.VALIDATING)
        return {
            "id": order.id,
            "object": "batch",
            "endpoint": order.endpoint,
            "model": self.model,
            "errors": {"object": "list", "data": [error.describe() for error in self.errors]} if self.errors else None,
            "input_file_id": order.input_file_id,
            "completion_window": order.completion_window,
            "status": self.status.value,
            "output_file_id": self.output_file_id,
            "error_file_id": self.error_file_id,
            "created_at": order.created_at,
            "expires_at": order.expires_at,
            **{f"{stage}_at": self.times.get(stage) for stage in stages},
            "request_counts": {"total": self.total, "completed": self.completed, "failed": self.failed},
            "usage": self.usage.describe(),
            "metadata": order.metadata,
            "priority": order.level,
        }


def new_file_id() -> str:
    """Return an id for a file."""
    return f"file-{secrets.token_hex(12)}"


def new_batch_id() -> str:
    """Return an id for a batch."""
    return f"batch_{secrets.token_hex(12)}"

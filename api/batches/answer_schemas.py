"""What answers about files and batches look like, for the description of the API."""

from __future__ import annotations

from pydantic import BaseModel, Field


class File(BaseModel):
    """A file; times are in seconds since 1970."""

    id: str
    object: str = "file"
    bytes: int
    created_at: int
    expires_at: int | None = Field(description="null for a file that is kept until it is deleted.")
    filename: str
    purpose: str = Field(description="batch, or batch_output.")
    status: str
    status_details: None = None


class FileDeleted(BaseModel):
    """That a file is deleted."""

    id: str
    object: str = "file"
    deleted: bool


class Listed(BaseModel):
    """A page of a list; `after=LAST_ID` asks for the next one."""

    object: str = "list"
    first_id: str | None
    last_id: str | None
    has_more: bool


class FileList(Listed):
    """Files."""

    data: list[File]


class InputError(BaseModel):
    """Why an input cannot be used."""

    code: str = Field(examples=["duplicate_custom_id"])
    message: str
    param: str | None
    line: int | None = Field(description="Counted from 1; null where it is about all of the input.")


class InputErrors(BaseModel):
    """The first mistakes of an input."""

    object: str = "list"
    data: list[InputError]


class ItemCounts(BaseModel):
    """How many items a batch has, how many were answered, and how many of the answers are errors."""

    total: int
    completed: int
    failed: int


class BatchInputTokens(BaseModel):
    """How many of the prompts' tokens need not be computed."""

    cached_tokens: int


class OutputTokens(BaseModel):
    """OpenAI's field; thinking is not counted by itself."""

    reasoning_tokens: int


class BatchUsage(BaseModel):
    """The tokens of all items that were answered."""

    input_tokens: int
    input_tokens_details: BatchInputTokens
    output_tokens: int
    output_tokens_details: OutputTokens
    total_tokens: int


class Batch(BaseModel):
    """A batch, and how far it is; times are in seconds since 1970."""

    id: str
    object: str = "batch"
    endpoint: str
    model: str | None = Field(description="null before the input was checked, and for vectors and scores.")
    errors: InputErrors | None
    input_file_id: str
    completion_window: str
    status: str = Field(
        description="validating, failed, in_progress, finalizing, completed, expired, cancelling or cancelled."
    )
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    expires_at: int
    in_progress_at: int | None
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: ItemCounts
    usage: BatchUsage
    metadata: dict[str, str] | None
    priority: int = Field(description="The level of items that name none: 1 (most urgent) to 5.")


class BatchList(Listed):
    """Batches."""

    data: list[Batch]

"""What clients send about files and batches."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema

from llamalane.api.batch import SERVERS
from llamalane.api.bodies import LARGE_BODY, explain
from llamalane.api.field_schemas import level_or_name
from llamalane.api.metadata import Metadata
from llamalane.errors import InvalidRequestError

MAX_WINDOW = 30 * 24 * 3600
"""The longest completion window, in seconds."""
MIN_EXPIRY = 3600
MAX_EXPIRY = 30 * 24 * 3600
"""How soon, and how late, a client may let a file expire, in seconds after its creation."""
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 24 * 3600}

BodyT = TypeVar("BodyT", bound=BaseModel)


class ExpiresAfter(BaseModel):
    """How long after its creation a file expires, in seconds: from an hour to 30 days."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=MIN_EXPIRY, le=MAX_EXPIRY)]


class UploadForm(BaseModel):
    """A file, and what it is for. Only a description: the form is read as it comes."""

    file: Annotated[bytes, WithJsonSchema({"type": "string", "format": "binary"})]
    purpose: Literal["batch"]
    anchor: Annotated[Literal["created_at"] | None, Field(alias="expires_after[anchor]")] = None
    seconds: Annotated[int | None, Field(alias="expires_after[seconds]", ge=MIN_EXPIRY, le=MAX_EXPIRY)] = None


class UploadFields(BaseModel):
    """The fields of a form beside the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    purpose: Literal["batch"]
    expires_after: ExpiresAfter | None = None

    @classmethod
    def of_form(cls, fields: Mapping[str, str]) -> UploadFields:
        """Read the fields of a form, in which `a[b]` is field b of a; raises `InvalidRequestError`."""
        plain: dict[str, Any] = {}
        nested: dict[str, dict[str, str]] = {}
        for name, value in fields.items():
            outer, bracket, inner = name.partition("[")
            if bracket:
                nested.setdefault(outer, {})[inner.removesuffix("]")] = value
            else:
                plain[name] = value
        try:
            return cls.model_validate(plain | nested)
        except ValidationError as error:
            raise explain(error) from None


class BatchBody(BaseModel):
    """The body of `POST /v1/batches`: OpenAI's fields, and the priority of items that name none.

    `completion_window` is a number and a unit (s, m, h, d), such as 24h.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    input_file_id: str
    endpoint: Annotated[str, WithJsonSchema({"enum": list(SERVERS)})]
    completion_window: Annotated[str, WithJsonSchema({"type": "string", "pattern": "^[1-9][0-9]{0,6}[smhd]$"})]
    metadata: Metadata | None = None
    output_expires_after: ExpiresAfter | None = None
    priority: Annotated[Any, level_or_name()] = None

    @property
    def window(self) -> int:
        """The completion window in seconds."""
        return parse_window(self.completion_window)

    @classmethod
    def parse(cls, data: bytes) -> BatchBody:
        """Read a body in JSON; raises `InvalidRequestError`."""
        if len(data) > LARGE_BODY:
            raise InvalidRequestError(f"the body is too large: a batch is described in {LARGE_BODY} bytes at most")
        try:
            body = cls.model_validate_json(data)
        except ValidationError as error:
            raise explain(error) from None
        if body.endpoint not in SERVERS:
            raise InvalidRequestError(
                f"endpoint must be one of {', '.join(SERVERS)}; got {body.endpoint[:100]!r}", param="endpoint"
            )
        parse_window(body.completion_window)
        return body


class ListQuery(BaseModel):
    """The parameters of a list of files."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    limit: Annotated[int, Field(ge=1, le=10_000)] = 10_000
    after: str | None = None
    order: Literal["asc", "desc"] = "desc"
    purpose: str | None = None


class BatchListQuery(BaseModel):
    """The parameters of a list of batches."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    limit: Annotated[int, Field(ge=1, le=100)] = 20
    after: str | None = None


def parse_query(kind: type[BodyT], parameters: Mapping[str, str]) -> BodyT:
    """Return what the parameters of a URL say; raises `InvalidRequestError`."""
    try:
        return kind.model_validate(dict(parameters))
    except ValidationError as error:
        raise explain(error) from None


def parse_window(text: str) -> int:
    """Return the seconds of a completion window; raises `InvalidRequestError` for what is none."""
    found = re.fullmatch("([1-9][0-9]{0,6})([smhd])", text)
    seconds = int(found[1]) * _SECONDS[found[2]] if found is not None else 0
    if not 0 < seconds <= MAX_WINDOW:
        raise InvalidRequestError(
            "completion_window must be a number and a unit (s, m, h or d), such as 24h, and at most 30d; "
            f"got {text[:100]!r}",
            param="completion_window",
        )
    return seconds

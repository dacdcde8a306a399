"""Receives a file that is sent as a form, and writes it to the disk as it comes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from pathlib import Path

import anyio.to_thread
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from llamalane.errors import BatchStoreError, FileTooLargeError, InvalidRequestError

FORM_OVERHEAD = 64 * 1024
"""So many bytes may a form have beside its file."""
MAX_PARTS = 16
MAX_FIELD_BYTES = 1024
MAX_FILENAME = 255
_FILE = "file"
_WRITE_BYTES = 1024 * 1024
"""So much is collected before it is written, on a worker thread."""


@dataclass(frozen=True, slots=True)
class Upload:
    """A form whose file has been written: the file's name and size, and the other fields."""

    filename: str
    bytes: int
    fields: Mapping[str, str]


async def receive_upload(body: AsyncGenerator[bytes, None], content_type: str, target: Path, max_bytes: int) -> Upload:
    """Append the file of a form to `target`, and return what else there is to know.

    Raises `InvalidRequestError` for what is no such form, and `FileTooLargeError` for a file of more than `max_bytes`,
    as soon as it is met, and `BatchStoreError` when it cannot be written.
    """
    form = _Form(_boundary_of(content_type), max_bytes)
    async with contextlib.aclosing(body):
        async for chunk in body:
            form.feed(chunk)
            if len(form.unwritten) >= _WRITE_BYTES:
                await anyio.to_thread.run_sync(_append, target, form.take())
    upload = form.finish()
    await anyio.to_thread.run_sync(_append, target, form.take())
    return upload


def _append(target: Path, data: bytes) -> None:
    try:
        with target.open("ab") as file:
            file.write(data)
    except OSError as error:
        raise BatchStoreError(f"the file cannot be stored: {error.strerror}") from error


def _boundary_of(content_type: str) -> bytes:
    kind, options = parse_options_header(content_type)
    if kind != b"multipart/form-data":
        raise InvalidRequestError("the body must be a form (multipart/form-data) with a file and its purpose")
    boundary = options.get(b"boundary")
    if not boundary:
        raise InvalidRequestError("the form's Content-Type has no boundary")
    return boundary


class _Form:
    """A form as it comes in: the file's bytes go through, the other fields are kept."""

    def __init__(self, boundary: bytes, max_bytes: int) -> None:
        self.unwritten = bytearray()
        self._max_bytes = max_bytes
        self._bytes = 0
        self._filename: str | None = None
        self._fields: dict[str, bytearray] = {}
        self._part: str | None = None
        self._parts = 0
        self._header_name = bytearray()
        self._header_value = bytearray()
        self._disposition: bytes | None = None
        self._ended = False
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._begin_part,
                    "on_header_field": self._add_header_name,
                    "on_header_value": self._add_header_value,
                    "on_header_end": self._end_header,
                    "on_headers_finished": self._end_headers,
                    "on_part_data": self._add_data,
                    "on_end": self._end,
                },
            )
        except FormParserError as error:
            raise _not_a_form(error) from error

    def feed(self, chunk: bytes) -> None:
        """Take in the next bytes of the form."""
        try:
            self._parser.write(chunk)
        except FormParserError as error:
            raise _not_a_form(error) from error

    def take(self) -> bytes:
        """Return the bytes of the file that have come since the last call."""
        data = bytes(self.unwritten)
        self.unwritten.clear()
        return data

    def finish(self) -> Upload:
        """Return what was received; raises `InvalidRequestError` if that is not all."""
        if not self._ended:
            raise InvalidRequestError("the form ends before its last boundary")
        if self._filename is None:
            raise InvalidRequestError("the form has no file", param=_FILE)
        fields = {name: value.decode("utf-8", "replace") for name, value in self._fields.items()}
        return Upload(self._filename, self._bytes, fields)

    def _begin_part(self) -> None:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise InvalidRequestError(f"the form has more than {MAX_PARTS} parts")
        self._disposition = None

    def _add_header_name(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]

    def _add_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _end_header(self) -> None:
        if self._header_name.lower() == b"content-disposition":
            self._disposition = bytes(self._header_value)
        self._header_name.clear()
        self._header_value.clear()

    def _end_headers(self) -> None:
        _, options = parse_options_header(self._disposition)
        name = options.get(b"name", b"").decode("utf-8", "replace")
        if not name:
            raise InvalidRequestError("a part of the form has no name")
        if name in self._fields or (name == _FILE and self._filename is not None):
            raise InvalidRequestError(f"the form has {name[:100]!r} twice", param=name[:100])
        self._part = name
        if name == _FILE:
            filename = options.get(b"filename", b"").decode("utf-8", "replace")
            self._filename = filename[:MAX_FILENAME] or "upload.jsonl"
        else:
            self._fields[name] = bytearray()

    def _add_data(self, data: bytes, start: int, end: int) -> None:
        assert self._part is not None
        if self._part == _FILE:
            self._bytes += end - start
            if self._bytes > self._max_bytes:
                raise FileTooLargeError(self._max_bytes)
            self.unwritten += data[start:end]
            return
        field = self._fields[self._part]
        if len(field) + end - start > MAX_FIELD_BYTES:
            name = self._part[:100]
            raise InvalidRequestError(f"{name} is longer than {MAX_FIELD_BYTES} bytes", param=name)
        field += data[start:end]

    def _end(self) -> None:
        self._ended = True


def _not_a_form(error: FormParserError) -> InvalidRequestError:
    return InvalidRequestError(f"the body is no valid form: {error}")

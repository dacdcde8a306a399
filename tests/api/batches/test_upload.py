"""Forms with a file, received in pieces of any size."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncGenerator, Iterable, Sequence
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamalane.api.batches.upload import MAX_FIELD_BYTES, MAX_PARTS, Upload, receive_upload
from llamalane.errors import BatchStoreError, FileTooLargeError, InvalidRequestError

pytestmark = pytest.mark.anyio

BOUNDARY = "a boundary"
FORM = f'multipart/form-data; boundary="{BOUNDARY}"'
FILE = 'name="file"; filename="tasks.jsonl"'


def form(*parts: tuple[str, bytes]) -> bytes:
    """A form of parts, each given by what its disposition says, and its content."""
    text = b""
    for disposition, content in parts:
        text += f"--{BOUNDARY}\r\nContent-Disposition: form-data; {disposition}\r\n\r\n".encode() + content + b"\r\n"
    return text + f"--{BOUNDARY}--\r\n".encode()


async def stream(pieces: Iterable[bytes]) -> AsyncGenerator[bytes, None]:
    for piece in pieces:
        yield piece


async def receive(target: Path, body: bytes, *, kind: str = FORM, most: int = 10_000, step: int = 7) -> Upload:
    pieces = [body[start : start + step] for start in range(0, len(body), step)]
    return await receive_upload(stream(pieces), kind, target, most)


async def test_the_file_and_the_fields_are_received(tmp_path: Path) -> None:
    target = tmp_path / "target"
    content = b'{"a": 1}\r\n\r\n--a bound\r\n\x00\xff'
    body = form(('name="purpose"', b"batch"), (FILE, content), ('name="expires_after[seconds]"', b"3600"))
    upload = await receive(target, body)
    assert upload == Upload("tasks.jsonl", len(content), {"purpose": "batch", "expires_after[seconds]": "3600"})
    assert target.read_bytes() == content


@given(content=st.binary(max_size=300), cuts=st.lists(st.integers(0, 600), max_size=8))
def test_it_does_not_matter_how_a_form_is_cut(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, cuts: Sequence[int]
) -> None:
    target = tmp_path_factory.mktemp("upload") / "target"
    body = form(('name="purpose"', b"batch"), (FILE, content))
    edges = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    pieces = [body[start:end] for start, end in itertools.pairwise(edges)]
    upload = anyio.run(receive_upload, stream(pieces), FORM, target, 300)
    assert (upload.bytes, target.read_bytes()) == (len(content), content)


@pytest.mark.parametrize(
    ("disposition", "filename"),
    [
        (FILE, "tasks.jsonl"),
        ('name="file"; filename="größe.jsonl"', "größe.jsonl"),
        ('name="file"; filename="../../etc/passwd"', "../../etc/passwd"),  # a name, and no path
        (f'name="file"; filename="{"n" * 1000}"', "n" * 255),
        ('name="file"', "upload.jsonl"),
        ("filename=x; name=file", "x"),
    ],
)
async def test_the_name_of_a_file_is_only_a_name(tmp_path: Path, disposition: str, filename: str) -> None:
    upload = await receive(tmp_path / "target", form((disposition, b"x")))
    assert upload.filename == filename
    assert os.listdir(tmp_path) == ["target"]


@pytest.mark.parametrize(
    ("kind", "body", "message"),
    [
        ("application/json", b"{}", "must be a form"),
        ("", b"", "must be a form"),
        ("multipart/form-data", form((FILE, b"x")), "no boundary"),
        (f"multipart/form-data; boundary={'b' * 300}", form((FILE, b"x")), "no valid form"),
        ("multipart/form-data; boundary=other", form((FILE, b"x")), "no valid form"),
        (FORM, b"hello", "no valid form"),
        (FORM, b"", "ends before its last boundary"),
        (FORM, form((FILE, b"x"))[:-6], "ends before its last boundary"),
        (FORM, form(('name="purpose"', b"batch")), "has no file"),
        (FORM, form((FILE, b"x"), (FILE, b"x")), "'file' twice"),
        (FORM, form(('name="purpose"', b"batch"), ('name="purpose"', b"batch")), "'purpose' twice"),
        (FORM, form(('filename="x"', b"x")), "has no name"),
        (FORM, form(('name="purpose"', b"b" * (MAX_FIELD_BYTES + 1))), "purpose is longer than 1024 bytes"),
        (FORM, form(*((f'name="n{number}"', b"") for number in range(MAX_PARTS + 1))), "more than 16 parts"),
        (FORM, form((f'name="{"n" * 5000}"', b"")), "no valid form"),
    ],
)
async def test_what_is_no_such_form_is_refused(tmp_path: Path, kind: str, body: bytes, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        await receive(tmp_path / "target", body, kind=kind)


@pytest.mark.parametrize("size", [100, 101])
async def test_a_file_may_have_so_many_bytes_and_no_more(tmp_path: Path, size: int) -> None:
    body = form((FILE, b"x" * size))
    if size <= 100:
        assert (await receive(tmp_path / "target", body, most=100)).bytes == size
        return
    with pytest.raises(FileTooLargeError, match="at most 100 bytes"):
        await receive(tmp_path / "target", body, most=100)


async def test_a_file_that_is_too_large_is_not_read_to_its_end(tmp_path: Path) -> None:
    async def endless() -> AsyncGenerator[bytes, None]:
        yield form((FILE, b"")).removesuffix(f"\r\n--{BOUNDARY}--\r\n".encode())
        while True:
            yield b"x" * 1000

    with pytest.raises(FileTooLargeError):
        await receive_upload(endless(), FORM, tmp_path / "target", 10_000)


async def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(BatchStoreError, match="No such file or directory"):
        await receive(tmp_path / "missing" / "target", form((FILE, b"x")))

"""The format of a file that holds one saved sequence.

::

    head      magic, version, digests of key and scope, number of tokens, size and CRC-32 of the payload
    tokens    four bytes each
    checksum  CRC-32 of head and tokens
    payload   the saved cells

All numbers are little-endian. The head and the tokens have a checksum of their own, so that they can be read without
the payload.
"""

from __future__ import annotations

import enum
import hashlib
import os
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from io import BufferedReader
from typing import BinaryIO

MAGIC = b"llamalan"
VERSION = 1
_HEAD = struct.Struct("<8sI32s32sQQI")
_CHECKSUM = struct.Struct("<I")
_TOKEN_BYTES = 4


class Unusable(enum.Enum):
    """Why a file cannot be used."""

    DAMAGED = "damaged"
    FOREIGN = "foreign"
    """Another version has written it, and may read it yet."""


@dataclass(frozen=True, slots=True)
class Head:
    """What stands before the payload: digests of the key and the scope, the tokens, and what the payload has to be."""

    key: bytes
    scope: bytes
    tokens: list[int]
    payload_bytes: int
    payload_checksum: int


def digest(text: str | bytes) -> bytes:
    """Return 32 bytes that stand for a text."""
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).digest()


def file_size(tokens: int, payload: int) -> int:
    """Return how many bytes a file with so many tokens and bytes of payload has."""
    return _HEAD.size + tokens * _TOKEN_BYTES + _CHECKSUM.size + payload


def pack_tokens(tokens: Sequence[int]) -> bytes:
    """Return tokens as they stand in a file."""
    return struct.pack(f"<{len(tokens)}i", *tokens)


def write_state(file: BinaryIO, key: bytes, scope: bytes, tokens: Sequence[int], payload: memoryview) -> None:
    """Write a whole file; `key` and `scope` are digests."""
    head = _HEAD.pack(MAGIC, VERSION, key, scope, len(tokens), payload.nbytes, zlib.crc32(payload))
    head += pack_tokens(tokens)
    file.write(head + _CHECKSUM.pack(zlib.crc32(head)))
    file.write(payload)


def read_head(file: BufferedReader) -> Head | Unusable:
    """Read all that stands before the payload."""
    fixed = file.read(_HEAD.size)
    if len(fixed) < _HEAD.size:
        return Unusable.DAMAGED
    magic, version, key, scope, count, payload_bytes, payload_checksum = _HEAD.unpack(fixed)
    if magic != MAGIC:
        return Unusable.DAMAGED
    if version != VERSION:
        return Unusable.FOREIGN
    # Nothing is read by a number that the file itself does not bear out.
    if os.fstat(file.fileno()).st_size != file_size(count, payload_bytes):
        return Unusable.DAMAGED
    packed = file.read(count * _TOKEN_BYTES)
    checksum = file.read(_CHECKSUM.size)
    if checksum != _CHECKSUM.pack(zlib.crc32(packed, zlib.crc32(fixed))):
        return Unusable.DAMAGED
    tokens = list(struct.unpack(f"<{count}i", packed))
    return Head(key, scope, tokens, payload_bytes, payload_checksum)


def read_payload(file: BufferedReader, head: Head) -> bytearray | Unusable:
    """Read what follows the head."""
    payload = bytearray(head.payload_bytes)
    intact = file.readinto(payload) == len(payload) and zlib.crc32(payload) == head.payload_checksum
    return payload if intact else Unusable.DAMAGED

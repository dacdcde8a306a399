"""The cells of single sequences as bytes: saved and put back whole, or in parts with steps in between.

llama.cpp copies a sequence in one go, and its lane computes nothing meanwhile. Where sequences share one cache, a spare
sequence can share a range of another one's cells, and then only these are copied. What was saved so is

::

    head      magic, number of parts, checksum of the sizes
    sizes     eight bytes each
    parts     what llama.cpp gave, and its checksum

All numbers are little-endian. What was saved whole is a single part without the rest. llama.cpp takes damaged positions
as they are, and cannot remove such cells again: hence the checksums.
"""

from __future__ import annotations

import contextlib
import ctypes
import struct
from collections.abc import Iterator, Sequence
from typing import Any

from llamalane.errors import ContextError
from llamalane.ids import SequenceId
from llamalane.streams.llama.checksum import checksum
from llamalane.streams.parts import Parts

PART_BYTES = 4 * 2**20
"""About so many bytes are copied at a time."""
MAGIC = b"llparts2"
_HEAD = struct.Struct("<8sII")
_SIZE = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<I")


class SequenceStates:
    """Copies the cells of a context's sequences out of it, and into it.

    `spare` is a sequence that holds nothing and can share cells with the others, None where there is none; llama.cpp
    saves none of a larger id so that it could be put back. With `in_parts`, about `part_bytes` are copied at a time.
    """

    def __init__(
        self,
        api: Any,
        context: Any,
        memory: Any,
        spare: SequenceId | None,
        *,
        in_parts: bool,
        part_bytes: int,
    ) -> None:
        self._api = api
        self._context = context
        self._memory = memory
        self._spare = spare
        self._in_parts = in_parts
        self._part_bytes = part_bytes

    def saving(self, sequence: SequenceId, length: int) -> Parts[bytearray]:
        """Copy a sequence of so many tokens out; its own cells must not change between the parts."""
        spare, whole = self._spare, self._whole_size(sequence)
        count = min(length, -(-whole // self._part_bytes))
        if spare is None or not self._in_parts or count < 2:
            data = bytearray(whole + _CHECKSUM.size)
            if spare is None or sequence < spare:
                self._copy_out(sequence, data, 0)
            else:
                with self._shared(sequence, spare, 0, -1):
                    self._copy_out(spare, data, 0)
            return data
        ends = [length * (part + 1) // count for part in range(count)]
        begin = _HEAD.size + count * _SIZE.size
        data = bytearray(begin + self._size_in_parts(sequence, length, whole, ends, spare))
        sizes: list[int] = []
        start, offset = 0, begin
        for end in ends:
            if start:
                yield
            with self._shared(sequence, spare, start, end):
                sizes.append(self._copy_out(spare, data, offset))
            start, offset = end, offset + sizes[-1]
        if offset != len(data):
            raise ContextError(f"sequence {sequence} was saved in {offset} bytes instead of {len(data)}")
        packed = b"".join(map(_SIZE.pack, sizes))
        data[:begin] = _HEAD.pack(MAGIC, count, checksum(packed)) + packed
        return data

    def restoring(self, sequence: SequenceId, data: bytearray) -> Parts[bool]:
        """Copy saved cells into an empty sequence; returns False when not all of them got there, but perhaps some."""
        sizes = _sizes_of(data)
        if sizes is None:
            return self._copy_in(sequence, data, 0, len(data))
        if self._spare is None:
            return False
        offset = len(data) - sum(sizes)
        for number, size in enumerate(sizes):
            if number:
                yield
            if not self._copy_in(self._spare, data, offset, size):
                self._drop(self._spare)
                return False
            self._api.llama_memory_seq_cp(self._memory, self._spare, sequence, 0, -1)
            self._drop(self._spare)
            offset += size
        return True

    def _whole_size(self, sequence: SequenceId) -> int:
        if self._spare is None or sequence < self._spare:
            return self._size(sequence)
        with self._shared(sequence, self._spare, 0, -1):
            return self._size(self._spare)

    def _size_in_parts(
        self, sequence: SequenceId, length: int, whole: int, ends: Sequence[int], spare: SequenceId
    ) -> int:
        """Return what the parts take in all: as much for each cell as the whole does, and a head for each of them."""
        with self._shared(sequence, spare, 0, ends[0]):
            first = self._size(spare)
        each = (whole - first) // (length - ends[0])
        return len(ends) * (first - each * ends[0] + _CHECKSUM.size) + each * length

    @contextlib.contextmanager
    def _shared(self, sequence: SequenceId, spare: SequenceId, start: int, end: int) -> Iterator[None]:
        """Let the spare sequence have a range of another one's cells."""
        self._api.llama_memory_seq_cp(self._memory, sequence, spare, start, end)
        try:
            yield
        finally:
            self._drop(spare)

    def _drop(self, sequence: SequenceId) -> None:
        self._api.llama_memory_seq_rm(self._memory, sequence, 0, -1)

    def _size(self, sequence: SequenceId) -> int:
        return int(self._api.llama_state_seq_get_size(self._context, sequence))

    def _copy_out(self, sequence: SequenceId, data: bytearray, offset: int) -> int:
        """Write a sequence's cells and their checksum to a place in `data`, and return how many bytes these are."""
        size = self._size(sequence)
        end = offset + size
        if end + _CHECKSUM.size > len(data):
            raise ContextError(f"sequence {sequence} takes {size} bytes, more than there is room for")
        written = int(self._api.llama_state_seq_get_data(self._context, _bytes_of(data, offset, size), size, sequence))
        if written != size:
            raise ContextError(f"llama.cpp saved {written} of {size} bytes of sequence {sequence}")
        _CHECKSUM.pack_into(data, end, checksum(memoryview(data)[offset:end]))
        return size + _CHECKSUM.size

    def _copy_in(self, sequence: SequenceId, data: bytearray, offset: int, size: int) -> bool:
        """Put what `_copy_out` wrote into a sequence; returns whether it holds that now, else perhaps a part of it."""
        size -= _CHECKSUM.size
        end = offset + size
        if size <= 0 or _CHECKSUM.unpack_from(data, end) != (checksum(memoryview(data)[offset:end]),):
            return False
        return bool(self._api.llama_state_seq_set_data(self._context, _bytes_of(data, offset, size), size, sequence))


def _sizes_of(data: bytearray) -> list[int] | None:
    """Return the sizes of the parts in which a sequence was saved, None when it was saved whole, or is damaged."""
    if len(data) < _HEAD.size:
        return None
    magic, count, expected = _HEAD.unpack_from(data)
    packed = bytes(data[_HEAD.size : _HEAD.size + count * _SIZE.size]) if magic == MAGIC else b""
    if not packed or len(packed) < count * _SIZE.size or checksum(packed) != expected:
        return None
    sizes = [size for (size,) in _SIZE.iter_unpack(packed)]
    return sizes if _HEAD.size + len(packed) + sum(sizes) == len(data) else None


def _bytes_of(data: bytearray, offset: int, size: int) -> Any:
    return (ctypes.c_uint8 * size).from_buffer(data, offset)

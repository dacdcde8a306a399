"""The quick checksum: it sees what changes, wherever that is."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamalane.streams.llama.checksum import checksum

SIZES = [0, 1, 7, 4095, 4096, 4097, 8192, 50_000]


@pytest.mark.parametrize("size", SIZES)
def test_the_same_bytes_have_the_same_checksum_wherever_they_lie(size: int) -> None:
    data = random.Random(size).randbytes(size)
    shifted = bytearray(b"...") + data
    assert checksum(data) == checksum(bytearray(data)) == checksum(memoryview(shifted)[3:])


@given(st.sampled_from(SIZES[1:]), st.randoms(use_true_random=False))
def test_a_changed_bit_is_seen(size: int, generator: random.Random) -> None:
    data = bytearray(generator.randbytes(size))
    before = checksum(data)
    data[generator.randrange(size)] ^= 1 << generator.randrange(8)
    assert checksum(data) != before


@pytest.mark.parametrize("seed", range(20))
def test_blocks_that_changed_places_are_seen(seed: int) -> None:
    data = random.Random(seed).randbytes(3 * 4096 + 11)
    first, second = data[:4096], data[4096:8192]
    assert checksum(second + first + data[8192:]) != checksum(data)


@pytest.mark.parametrize("size", SIZES)
def test_bytes_that_are_missing_or_too_many_are_seen(size: int) -> None:
    data = random.Random(size).randbytes(size)
    assert checksum(data + b"\0") != checksum(data)
    assert not size or checksum(data[:-1]) != checksum(data)

"""How many bytes a model's KV cells take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from llamalane.errors import ConfigError


class Block(NamedTuple):
    """The smallest piece that a type is stored in: how many numbers, in how many bytes."""

    numbers: int
    bytes: int


BLOCKS: Mapping[str, Block] = {
    "f32": Block(1, 4),
    "f16": Block(1, 2),
    "bf16": Block(1, 2),
    "q8_0": Block(32, 34),
    "q5_1": Block(32, 24),
    "q5_0": Block(32, 22),
    "q4_1": Block(32, 20),
    "q4_0": Block(32, 18),
}
"""The blocks of each cache type. A quantized block has its own scale, those that end in _1 an offset too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellShape:
    """What a model remembers, as numbers in its cells and bytes beside them.

    Attributes:
        keys: how many numbers the keys of one token are, all layers together; 0 for a model without attention.
        values: the same for its values.
        key_head: how many numbers belong to one head of a key.
        value_head: the same for a value.
        state: bytes that each sequence takes beside its cells, however long it is: a recurrent model's state.
    """

    keys: int
    values: int
    key_head: int
    value_head: int
    state: int = 0

    def bytes_per_cell(self, key_type: str, value_type: str) -> int:
        """Return how many bytes one cell takes, with keys and values stored as named in `BLOCKS`.

        Raises `ConfigError` when a type's blocks do not fit the model's heads.
        """
        return _stored("key", self.keys, self.key_head, key_type) + _stored(
            "value", self.values, self.value_head, value_type
        )


def _stored(what: str, numbers: int, head: int, kind: str) -> int:
    block = BLOCKS[kind]
    if numbers and (head % block.numbers or numbers % block.numbers):
        raise ConfigError(
            f"kv.{what}_type: {kind} is stored in blocks of {block.numbers} numbers, and a {what} of this model has "
            f"{head} in each head, which is no multiple of it; f32, f16 and bf16 always fit"
        )
    return numbers // block.numbers * block.bytes

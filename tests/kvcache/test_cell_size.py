from __future__ import annotations

import gguf
import pytest

from llamalane.errors import ConfigError
from llamalane.kvcache.cell_size import BLOCKS, CellShape

SHAPE = CellShape(keys=30 * 3 * 64, values=30 * 3 * 64, key_head=64, value_head=64)
"""30 layers of 3 heads."""


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_are_ggmls(name: str) -> None:
    numbers, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name.upper()]]
    assert (BLOCKS[name].numbers, BLOCKS[name].bytes) == (numbers, size)


def test_keys_and_values_are_counted_each_by_its_type() -> None:
    assert SHAPE.bytes_per_cell("f16", "f16") == 2 * 5760 * 2
    assert SHAPE.bytes_per_cell("f32", "f16") == 5760 * 4 + 5760 * 2
    assert SHAPE.bytes_per_cell("q8_0", "q4_0") == 180 * 34 + 180 * 18


def test_keys_and_values_may_differ_in_size() -> None:
    shape = CellShape(keys=576, values=512, key_head=192, value_head=128)
    assert shape.bytes_per_cell("q8_0", "bf16") == 18 * 34 + 1024


def test_a_model_without_attention_has_cells_of_nothing() -> None:
    assert CellShape(keys=0, values=0, key_head=0, value_head=0, state=99).bytes_per_cell("q8_0", "q4_0") == 0


@pytest.mark.parametrize("name", ["q8_0", "q5_1", "q5_0", "q4_1", "q4_0"])
def test_blocks_that_do_not_fit_a_head_are_refused_by_the_setting(name: str) -> None:
    narrow = CellShape(keys=64, values=128, key_head=16, value_head=80)
    with pytest.raises(ConfigError, match=rf"^kv\.key_type: {name} is stored in blocks of 32 .* has 16 in each head"):
        narrow.bytes_per_cell(name, "f16")
    with pytest.raises(ConfigError, match=rf"^kv\.value_type: {name} .* has 80 in each head.*f32, f16 and bf16"):
        narrow.bytes_per_cell("f16", name)

"""Writes GGUF models of real sizes with random weights: what they say is noise, but they take as long to compute."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

TRAIN_CONTEXT = 32_768
_VOCABULARY = 32_000
_BLOCK = 256
"""Weights in a block of Q4_K,"""
_BLOCK_BYTES = 144
"""and the bytes of such a block."""
_POOL = 1 << 24
"""So many random numbers are drawn; a tensor takes them from a place of its own on, again and again."""

Array = npt.NDArray[np.generic]


class WeightType(enum.StrEnum):
    """How the matrices are stored."""

    Q4_K = "q4_k"
    F16 = "f16"


@dataclass(frozen=True, slots=True)
class Shape:
    """A model of the Llama family."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    feed_forward: int

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Give every tensor's name and shape, rows first."""
        head = self.width // self.heads
        yield "token_embd.weight", (_VOCABULARY, self.width)
        for layer in range(self.layers):
            for name, shape in (
                ("attn_norm", (self.width,)),
                ("attn_q", (self.width, self.width)),
                ("attn_k", (self.kv_heads * head, self.width)),
                ("attn_v", (self.kv_heads * head, self.width)),
                ("attn_output", (self.width, self.width)),
                ("ffn_norm", (self.width,)),
                ("ffn_gate", (self.feed_forward, self.width)),
                ("ffn_up", (self.feed_forward, self.width)),
                ("ffn_down", (self.width, self.feed_forward)),
            ):
                yield f"blk.{layer}.{name}.weight", shape
        yield "output_norm.weight", (self.width,)
        yield "output.weight", (_VOCABULARY, self.width)


SHAPES: Mapping[str, Shape] = {
    "tiny": Shape(layers=2, width=256, heads=4, kv_heads=2, feed_forward=512),
    "1b": Shape(layers=22, width=2048, heads=32, kv_heads=4, feed_forward=5632),  # as TinyLlama 1.1B
    "7b": Shape(layers=32, width=4096, heads=32, kv_heads=8, feed_forward=14_336),  # as Mistral 7B
}
"""The sizes that can be written."""


def write_synthetic(path: Path, shape: Shape, kind: WeightType, *, seed: int = 0) -> None:
    """Write a model of `shape` to `path`, tensor by tensor; the same arguments give the same file."""
    unfinished = path.with_suffix(".part")
    writer = gguf.GGUFWriter(unfinished, "llama")
    _describe(writer, shape)
    tensors = list(shape.tensors())
    for name, dimensions in tensors:
        if len(dimensions) == 1:
            writer.add_tensor_info(name, dimensions, np.dtype(np.float32), 4 * dimensions[0])
        elif kind is WeightType.F16:
            writer.add_tensor_info(name, dimensions, np.dtype(np.float16), 2 * dimensions[0] * dimensions[1])
        else:
            stored = (dimensions[0], dimensions[1] // _BLOCK * _BLOCK_BYTES)
            raw = gguf.GGMLQuantizationType.Q4_K
            writer.add_tensor_info(name, stored, np.dtype(np.uint8), stored[0] * stored[1], raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    weights = _Weights(np.random.default_rng(seed))
    for _, dimensions in tensors:
        writer.write_tensor_data(weights.of(dimensions, kind))
    writer.close()
    unfinished.rename(path)


class _Weights:
    """Random weights with a mean of 0, whose products keep their size from layer to layer."""

    def __init__(self, random: np.random.Generator) -> None:
        self._random = random
        self._normal = random.standard_normal(_POOL, np.float32)
        self._bytes = random.integers(0, 256, _POOL, np.uint8)

    def of(self, dimensions: tuple[int, ...], kind: WeightType) -> Array:
        if len(dimensions) == 1:
            return np.ones(dimensions, np.float32)
        rows, columns = dimensions
        deviation = columns**-0.5
        if kind is WeightType.F16:
            pool = (self._normal * np.float32(deviation)).astype(np.float16)
            return self._repeated(pool, rows * columns).reshape(dimensions)
        blocks = np.empty((rows * columns // _BLOCK, _BLOCK_BYTES), np.uint8)
        blocks[:, :16] = _block_head(deviation)
        blocks[:, 16:] = self._repeated(self._bytes, blocks.shape[0] * (_BLOCK_BYTES - 16)).reshape(len(blocks), -1)
        return blocks.reshape(rows, -1)

    def _repeated(self, pool: Array, count: int) -> Array:
        return np.resize(np.roll(pool, int(self._random.integers(len(pool)))), count)


def _block_head(deviation: float) -> npt.NDArray[np.uint8]:
    """Return the first 16 bytes of a block of Q4_K: its two factors, and the 6-bit scales and offsets of 8 parts.

    A weight is factor · scale · q − other · offset, with q from 0 to 15; here scale and offset are 32 everywhere.
    """
    factor = deviation / (32 * np.sqrt((16**2 - 1) / 12))
    factors = np.array([factor, 7.5 * factor], np.float16).view(np.uint8)
    scales = np.array([32 | 2 << 6] * 8 + [0] * 4, np.uint8)
    return np.concatenate([factors, scales])


def _describe(writer: gguf.GGUFWriter, shape: Shape) -> None:
    writer.add_context_length(TRAIN_CONTEXT)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_rope_dimension_count(shape.width // shape.heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(_VOCABULARY)
    special = [("<unk>", gguf.TokenType.UNKNOWN), ("<s>", gguf.TokenType.CONTROL), ("</s>", gguf.TokenType.CONTROL)]
    single = [(f"<0x{byte:02X}>", gguf.TokenType.BYTE) for byte in range(256)]
    words = [(f"\u2581w{number}", gguf.TokenType.NORMAL) for number in range(_VOCABULARY - len(special) - len(single))]
    names, kinds = zip(*special, *single, *words, strict=True)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(names)
    writer.add_token_scores([0.0] * len(names))
    writer.add_token_types(kinds)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(True)

"""Writes tiny GGUF models with random weights that turn texts into vectors, or score pairs of texts.

The encoder is a BERT: attention looks both ways, there is no KV cache, and its positions are learned, so that no text
may be longer than what it was trained for. Its vocabulary has one token for each lower-case letter, digit and sign.
"""

from __future__ import annotations

import re
import string
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

TRAIN_CONTEXT = 96
"""How many tokens the encoder was trained for."""
WIDTH = 48
"""How many numbers its vectors have."""
UNKNOWN, CLS, SEP, MASK = 100, 101, 102, 103
"""As BERT has them."""
LETTERS = string.ascii_lowercase + string.digits + ".,!?"

_HEADS, _LAYERS, _FEED_FORWARD = 4, 2, 96
_CONTROL = ("[PAD]", *(f"[unused{number}]" for number in range(1, UNKNOWN)), "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# A word's first letter carries a mark; the letters after it do not.
_TOKENS = (*_CONTROL, *(f"\u2581{letter}" for letter in LETTERS), *LETTERS)


def write_encoder(
    path: Path,
    pooling: gguf.PoolingType | None = gguf.PoolingType.CLS,
    *,
    head: bool = False,
    labels: int = 1,
    rerank_template: str | None = None,
) -> None:
    """Write an encoder to `path`; with `head`, one that gives `labels` scores when its pooling is rank."""
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_context_length(TRAIN_CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(_LAYERS)
    writer.add_head_count(_HEADS)
    writer.add_feed_forward_length(_FEED_FORWARD)
    writer.add_layer_norm_eps(1e-12)
    writer.add_causal_attention(False)
    if pooling is not None:
        writer.add_pooling_type(pooling)
    if head and labels > 1:
        writer.add_classifier_output_labels([f"label-{number}" for number in range(labels)])
    if rerank_template is not None:
        writer.add_chat_template([{"name": "rerank", "template": rerank_template}])
    _add_vocabulary(writer)
    random = np.random.default_rng(7)
    for name, shape in _shapes(head, labels).items():
        writer.add_tensor(name, _weights(name, shape, random))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tokens_of(text: str) -> list[int]:
    """The tokens of a text for the encoder: those of its words, between a CLS and a SEP."""
    return [CLS, *letters_of(text), SEP]


def letters_of(text: str) -> list[int]:
    """The tokens of a text without those around it."""
    start = len(_CONTROL)
    words = re.findall("[a-z0-9]+|[.,!?]", text)  # each sign is a word
    first = [start + LETTERS.index(word[0]) for word in words]
    rest = [[start + len(LETTERS) + LETTERS.index(letter) for letter in word[1:]] for word in words]
    return [token for head, tail in zip(first, rest, strict=True) for token in (head, *tail)]


def _add_vocabulary(writer: gguf.GGUFWriter) -> None:
    kinds = [gguf.TokenType.CONTROL] * len(_CONTROL) + [gguf.TokenType.NORMAL] * (len(_TOKENS) - len(_CONTROL))
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(_TOKENS)
    writer.add_token_types(kinds)
    writer.add_token_type_count(2)


def _shapes(head: bool, labels: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (len(_TOKENS), WIDTH),
        "token_types.weight": (2, WIDTH),
        "position_embd.weight": (TRAIN_CONTEXT, WIDTH),
        "token_embd_norm.weight": (WIDTH,),
        "token_embd_norm.bias": (WIDTH,),
    }
    for layer in range(_LAYERS):
        block = {f"attn_{part}": (WIDTH, WIDTH) for part in ("q", "k", "v", "output")}
        block |= {"ffn_up": (_FEED_FORWARD, WIDTH), "ffn_down": (WIDTH, _FEED_FORWARD)}
        for name, shape in block.items():
            shapes[f"blk.{layer}.{name}.weight"] = shape
            shapes[f"blk.{layer}.{name}.bias"] = shape[:1]
        for name in ("attn_output_norm", "layer_output_norm"):
            shapes[f"blk.{layer}.{name}.weight"] = shapes[f"blk.{layer}.{name}.bias"] = (WIDTH,)
    if head:
        shapes |= {"cls.weight": (WIDTH, WIDTH), "cls.bias": (WIDTH,)}
        shapes |= {"cls.output.weight": (labels, WIDTH), "cls.output.bias": (labels,)}
    return shapes


def _weights(name: str, shape: tuple[int, ...], random: np.random.Generator) -> npt.NDArray[np.float32]:
    if name.endswith("bias"):
        values = random.normal(0, 0.1, shape)
    elif len(shape) == 1:
        values = np.ones(shape)
    elif name.startswith(("token_", "position_")):
        values = random.normal(0, 1.0, shape)
    else:
        values = random.normal(0, shape[-1] ** -0.5, shape)
    return np.ascontiguousarray(values, dtype=np.float32)

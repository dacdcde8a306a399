"""Writes tiny GGUF models with random weights, small enough to be made anew for each test run.

Four kinds stand for the four ways in which a model remembers: plain attention, attention with a sliding
window, a recurrent state, and a mixture. Their output is noise, but the same noise for the same seed. The
vocabulary is the 256 bytes: every text is a prompt, its tokens can be counted by hand, and the output is
often broken UTF-8.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

TRAIN_CONTEXT = 8192
"""How many tokens the models claim to have been trained on."""
WINDOW = 32
"""How many tokens back the sliding layers see."""
BOS, EOS = 1, 2

CHAT_TEMPLATE = """\
{{- bos_token -}}
{%- for message in messages -%}
{%- if message['role'] not in ['system', 'user', 'assistant'] -%}
{{- raise_exception('no such role: ' ~ message['role']) -}}
{%- endif -%}
[{{ message['role'] }}]{{ message['content'] }}{{ eos_token }}
{%- endfor -%}
{%- if add_generation_prompt -%}
[assistant]
{%- endif -%}"""
"""Writes the BOS token itself, as many templates do, and refuses roles that it does not know."""

_WIDTH = 64
_HEADS, _KV_HEADS = 4, 2
_HEAD_WIDTH = _WIDTH // _HEADS
_FEED_FORWARD = 128
_CONVOLUTION, _STATE, _INNER, _RANK = 4, 16, 2 * _WIDTH, 4

_TOKENS: Sequence[tuple[str, gguf.TokenType]] = (
    ("<unk>", gguf.TokenType.UNKNOWN),
    ("<s>", gguf.TokenType.CONTROL),
    ("</s>", gguf.TokenType.CONTROL),
    *((f"<0x{byte:02X}>", gguf.TokenType.BYTE) for byte in range(256)),
    # SentencePiece writes a space as this character, and only a normal token is turned back into one.
    ("\u2581", gguf.TokenType.NORMAL),
)

Shapes = Mapping[str, tuple[int, ...]]
"""The tensors of one layer; shapes are numpy's, rows first, which GGUF lists reversed."""

_NORM: Shapes = {"attn_norm.weight": (_WIDTH,)}
_ATTENTION: Shapes = {
    "attn_q.weight": (_HEADS * _HEAD_WIDTH, _WIDTH),
    "attn_k.weight": (_KV_HEADS * _HEAD_WIDTH, _WIDTH),
    "attn_v.weight": (_KV_HEADS * _HEAD_WIDTH, _WIDTH),
    "attn_output.weight": (_WIDTH, _HEADS * _HEAD_WIDTH),
}
_FEED_FORWARD_SHAPES: Shapes = {
    "ffn_norm.weight": (_WIDTH,),
    "ffn_gate.weight": (_FEED_FORWARD, _WIDTH),
    "ffn_up.weight": (_FEED_FORWARD, _WIDTH),
    "ffn_down.weight": (_WIDTH, _FEED_FORWARD),
}
_STATE_SPACE: Shapes = {
    "ssm_in.weight": (2 * _INNER, _WIDTH),
    "ssm_conv1d.weight": (_INNER, _CONVOLUTION),
    "ssm_conv1d.bias": (_INNER,),
    "ssm_x.weight": (_RANK + 2 * _STATE, _INNER),
    "ssm_dt.weight": (_INNER, _RANK),
    "ssm_dt.bias": (_INNER,),
    "ssm_a": (_INNER, _STATE),
    "ssm_d": (_INNER,),
    "ssm_out.weight": (_WIDTH, _INNER),
}
_DENSE: Shapes = {**_NORM, **_ATTENTION, **_FEED_FORWARD_SHAPES}
_SLIDING: Shapes = {
    **_DENSE,
    "attn_q_norm.weight": (_HEAD_WIDTH,),
    "attn_k_norm.weight": (_HEAD_WIDTH,),
    "post_attention_norm.weight": (_WIDTH,),
    "post_ffw_norm.weight": (_WIDTH,),
}
_RECURRENT: Shapes = {**_NORM, **_STATE_SPACE}
_HYBRID: Shapes = {
    **_RECURRENT,
    **_FEED_FORWARD_SHAPES,
    "ssm_dt_norm.weight": (_RANK,),
    "ssm_b_norm.weight": (_STATE,),
    "ssm_c_norm.weight": (_STATE,),
}


class Kind(enum.StrEnum):
    """How a model remembers what it has read."""

    DENSE = "dense"
    SLIDING = "sliding"
    RECURRENT = "recurrent"
    HYBRID = "hybrid"


@dataclass(frozen=True, slots=True)
class _Design:
    """An architecture of llama.cpp, its layers, and the metadata that only it has."""

    architecture: str
    layers: Sequence[Shapes]
    describe: Sequence[Callable[[gguf.GGUFWriter], None]]


def _describe_attention(writer: gguf.GGUFWriter) -> None:
    writer.add_head_count(_HEADS)
    writer.add_feed_forward_length(_FEED_FORWARD)


def _describe_rotation(writer: gguf.GGUFWriter) -> None:
    writer.add_rope_dimension_count(_HEAD_WIDTH)


def _describe_window(writer: gguf.GGUFWriter) -> None:
    writer.add_sliding_window(WINDOW)
    writer.add_key_length(_HEAD_WIDTH)
    writer.add_value_length(_HEAD_WIDTH)


def _describe_state(writer: gguf.GGUFWriter) -> None:
    writer.add_ssm_conv_kernel(_CONVOLUTION)
    writer.add_ssm_inner_size(_INNER)
    writer.add_ssm_state_size(_STATE)
    writer.add_ssm_time_step_rank(_RANK)


def _describe_no_attention(writer: gguf.GGUFWriter) -> None:
    writer.add_head_count(0)
    writer.add_feed_forward_length(0)


_DESIGNS: Mapping[Kind, _Design] = {
    Kind.DENSE: _Design("llama", [_DENSE] * 2, [_describe_attention, _describe_rotation]),
    # Every sixth layer of this architecture sees everything.
    Kind.SLIDING: _Design("gemma3", [_SLIDING] * 6, [_describe_attention, _describe_rotation, _describe_window]),
    Kind.RECURRENT: _Design("mamba", [_RECURRENT] * 2, [_describe_no_attention, _describe_state]),
    Kind.HYBRID: _Design("jamba", [_HYBRID, _DENSE], [_describe_attention, _describe_state]),
}


def write_model(
    path: Path,
    kind: Kind,
    *,
    seed: int = 0,
    chat_template: str | Sequence[Mapping[str, str]] | None = None,
    marks: Sequence[str] = (),
) -> None:
    """Write a model of `kind` to `path`; the same arguments give the same file.

    Several chat templates have each a `name`, one of which is `default`, and a `template`. `marks` are further control
    tokens, such as those around calls of tools.
    """
    design = _DESIGNS[kind]
    tokens = [*_TOKENS, *((mark, gguf.TokenType.CONTROL) for mark in marks)]
    writer = gguf.GGUFWriter(path, design.architecture)
    _describe(writer, design, len(tokens))
    _add_vocabulary(writer, tokens)
    if chat_template is not None:
        writer.add_chat_template(chat_template)
    random = np.random.default_rng(seed)
    for name, shape in _tensors(design, len(tokens)).items():
        writer.add_tensor(name, _weights(name, shape, random))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _describe(writer: gguf.GGUFWriter, design: _Design, vocabulary_size: int) -> None:
    writer.add_context_length(TRAIN_CONTEXT)
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(len(design.layers))
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(vocabulary_size)
    writer.add_head_count_kv([_KV_HEADS if "attn_q.weight" in layer else 0 for layer in design.layers])
    for describe in design.describe:
        describe(writer)


def _add_vocabulary(writer: gguf.GGUFWriter, tokens: Sequence[tuple[str, gguf.TokenType]]) -> None:
    names, kinds = zip(*tokens, strict=True)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(names)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types(kinds)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(False)


def _tensors(design: _Design, vocabulary_size: int) -> Shapes:
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (vocabulary_size, _WIDTH),
        "output_norm.weight": (_WIDTH,),
        "output.weight": (vocabulary_size, _WIDTH),
    }
    for index, layer in enumerate(design.layers):
        shapes.update({f"blk.{index}.{name}": shape for name, shape in layer.items()})
    return shapes


def _weights(name: str, shape: tuple[int, ...], random: np.random.Generator) -> npt.NDArray[np.float32]:
    if name.endswith("ssm_a"):  # a state decays at a different speed in each of its parts
        values = -np.broadcast_to(np.arange(1.0, shape[1] + 1), shape)
    elif name.endswith("bias"):
        values = np.zeros(shape)
    elif len(shape) == 1:
        values = np.ones(shape)
    else:
        values = random.normal(0, shape[-1] ** -0.5, shape)
    return np.ascontiguousarray(values, dtype=np.float32)

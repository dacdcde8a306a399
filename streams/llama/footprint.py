"""How much memory a model's contexts take, learned from llama.cpp without loading the weights.

Which of a model's layers keep keys and values, and how large they are, follows from its architecture by rules that
only llama.cpp knows. So it is asked: on a model without weights it creates a context without memory, and its log
tells what that would have taken. The log rounds to 0.01 MiB. So many cells are asked for that what one of them holds
can be told exactly all the same.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llamalane.errors import ContextError
from llamalane.streams.llama.context import CACHE_TYPES, FLASH_ATTENTION, ContextOptions
from llamalane.streams.llama.library import library
from llamalane.streams.llama.model import Model

MEBIBYTE = 1 << 20
ROUNDING = MEBIBYTE // 100
"""In what steps llama.cpp's log tells sizes."""

MOST_MEASURED_STATES = 256 * MEBIBYTE
"""A recurrent model's states are real even without weights; no more bytes of them than that are made."""

_CELLS = 65_536
_F16_BYTES = 2
_SEQUENCES = 256
_KV_CACHE = re.compile(r"llama_kv_cache: size = .*, K \(\w+\): +([\d.]+) MiB, V \(\w+\): +([\d.]+) MiB")
_STATES = re.compile(r"llama_memory_recurrent: size = +([\d.]+) MiB")
_BUFFER = re.compile(r": +(\S+) +(?:compute|output) buffer size = +([\d.]+) MiB")
_HOST = re.compile(r"CPU|.*_Host$")


@dataclass(frozen=True, slots=True)
class CellNumbers:
    """What a model keeps: numbers in the keys and in the values of a token, and bytes for each sequence."""

    keys: int
    values: int
    state: int


@dataclass(frozen=True, slots=True)
class Footprint:
    """What one context takes, in bytes, told in steps of `ROUNDING`.

    Attributes:
        cells: the KV cells.
        states: what a recurrent model keeps for its sequences.
        host: what computing takes of the host's memory.
        device: what computing takes of GPUs' memory.
    """

    cells: int
    states: int
    host: int
    device: int


def measure_cells(model: Model) -> CellNumbers:
    """Return what a model keeps for each token and each sequence; `model` is one without weights."""
    small = ContextOptions(cells=_CELLS, sequences=1, max_step_tokens=1, micro_batch=1, threads=1)
    lines = _create(model, small)
    keys, values = (sum(sizes) for sizes in _sizes(lines, _KV_CACHE))
    state = sum(_sizes(lines, _STATES)[0])
    if not model.can_roll_back and state * _SEQUENCES <= MOST_MEASURED_STATES:
        many = ContextOptions(cells=256, sequences=_SEQUENCES, max_step_tokens=_SEQUENCES, micro_batch=1, threads=1)
        state = sum(_sizes(_create(model, many), _STATES)[0]) / _SEQUENCES
    return CellNumbers(round(keys / _CELLS / _F16_BYTES), round(values / _CELLS / _F16_BYTES), round(state))


def measure_context(model: Model, options: ContextOptions) -> Footprint:
    """Return what a context of `options` would take; `model` is one without weights.

    The states of a recurrent model are really made, for the moment. Raises `ContextError` with llama.cpp's words when
    there can be no such context.
    """
    lines = _create(model, options)
    host = device = 0.0
    for match in _matches(lines, _BUFFER):
        size = float(match[2]) * MEBIBYTE
        if _HOST.match(match[1]):
            host += size
        else:
            device += size
    cells = sum(map(sum, _sizes(lines, _KV_CACHE)))
    return Footprint(round(cells), round(sum(_sizes(lines, _STATES)[0])), round(host), round(device))


def _create(model: Model, options: ContextOptions) -> list[str]:
    """Create a context and free it; returns what llama.cpp said."""
    lib = library()
    with lib.collect_details() as lines:
        pointer = lib.api.llama_init_from_model(model.pointer, _parameters(lib.api, options))
        if pointer:
            lib.api.llama_free(pointer)
    if not pointer:
        reasons = [line.strip() for line in lines if "llama_init_from_model: " in line]
        raise ContextError("llama.cpp could not create a context: " + ("; ".join(reasons) or "it gave no reason"))
    return lines


def _parameters(api: Any, options: ContextOptions) -> Any:
    """Return what of a context's parameters its memory depends on."""
    params = api.llama_context_default_params()
    params.n_ctx = options.cells
    params.n_batch = options.max_step_tokens
    params.n_ubatch = min(options.micro_batch, options.max_step_tokens)
    params.n_seq_max = options.sequences
    params.n_outputs_max = max(options.sequences, options.output_rows)
    params.n_threads = params.n_threads_batch = options.threads
    params.type_k = CACHE_TYPES[options.key_type]
    params.type_v = CACHE_TYPES[options.value_type]
    params.flash_attn_type = FLASH_ATTENTION[options.flash_attention]
    params.kv_unified = not options.partitioned
    params.swa_full = True
    return params


def _matches(lines: Sequence[str], pattern: re.Pattern[str]) -> list[re.Match[str]]:
    return [match for line in lines if (match := pattern.search(line))]


def _sizes(lines: Sequence[str], pattern: re.Pattern[str]) -> list[list[float]]:
    """Return the sizes that each group of `pattern` matches, in bytes."""
    found = _matches(lines, pattern)
    return [[float(match[group]) * MEBIBYTE for match in found] for group in range(1, pattern.groups + 1)]

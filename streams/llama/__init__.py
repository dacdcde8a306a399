"""llama.cpp, through the low-level API of llama-cpp-python; nothing outside this folder knows it.

Names are loaded when they are first used: what they need, numpy above all, is for an engine that runs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from llamalane.streams.llama.library import library  # now: its module, which has the same name, would take its place

if TYPE_CHECKING:
    from llamalane.streams.llama.abilities import Abilities
    from llamalane.streams.llama.batch import Batch
    from llamalane.streams.llama.candidates import Candidates
    from llamalane.streams.llama.chat import ChatTemplate
    from llamalane.streams.llama.chat_abilities import TemplateAbilities
    from llamalane.streams.llama.context import CACHE_TYPES, FLASH_ATTENTION, Context, ContextOptions
    from llamalane.streams.llama.detokenizer import Detokenizer
    from llamalane.streams.llama.grammar import CompiledGrammar, Follower, Following, Grammars
    from llamalane.streams.llama.model import Model, ModelOptions
    from llamalane.streams.llama.sampler import Sampler, uniform
    from llamalane.streams.llama.template_variables import TEMPLATE_VARIABLES
    from llamalane.streams.llama.vocabulary import Vocabulary, encode

_HOMES = {
    "CACHE_TYPES": "context",
    "FLASH_ATTENTION": "context",
    "Abilities": "abilities",
    "Batch": "batch",
    "Candidates": "candidates",
    "ChatTemplate": "chat",
    "CompiledGrammar": "grammar",
    "Context": "context",
    "ContextOptions": "context",
    "Detokenizer": "detokenizer",
    "Follower": "grammar",
    "Following": "grammar",
    "Grammars": "grammar",
    "Model": "model",
    "ModelOptions": "model",
    "Sampler": "sampler",
    "TEMPLATE_VARIABLES": "template_variables",
    "TemplateAbilities": "chat_abilities",
    "Vocabulary": "vocabulary",
    "encode": "vocabulary",
    "uniform": "sampler",
}

__all__ = [
    "CACHE_TYPES",
    "FLASH_ATTENTION",
    "TEMPLATE_VARIABLES",
    "Abilities",
    "Batch",
    "Candidates",
    "ChatTemplate",
    "CompiledGrammar",
    "Context",
    "ContextOptions",
    "Detokenizer",
    "Follower",
    "Following",
    "Grammars",
    "Model",
    "ModelOptions",
    "Sampler",
    "TemplateAbilities",
    "Vocabulary",
    "encode",
    "library",
    "uniform",
]


if not TYPE_CHECKING:  # a type checker knows all names, and shall complain of others

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value  # the next use finds it without asking
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})

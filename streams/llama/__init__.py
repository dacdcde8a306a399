"""llama.cpp, through the low-level API of llama-cpp-python; nothing outside this folder knows it."""

from llamalane.streams.llama.abilities import Abilities
from llamalane.streams.llama.batch import Batch
from llamalane.streams.llama.candidates import Candidates
from llamalane.streams.llama.chat import ChatTemplate
from llamalane.streams.llama.context import CACHE_TYPES, FLASH_ATTENTION, Context, ContextOptions
from llamalane.streams.llama.detokenizer import Detokenizer
from llamalane.streams.llama.grammar import CompiledGrammar, Follower, Following, Grammars
from llamalane.streams.llama.library import library
from llamalane.streams.llama.model import Model, ModelOptions
from llamalane.streams.llama.sampler import Sampler, uniform
from llamalane.streams.llama.vocabulary import Vocabulary

__all__ = [
    "CACHE_TYPES",
    "FLASH_ATTENTION",
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
    "Vocabulary",
    "library",
    "uniform",
]

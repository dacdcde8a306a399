"""llama.cpp, through the low-level API of llama-cpp-python; nothing outside this folder knows it."""

from llamalane.streams.llama.abilities import Abilities
from llamalane.streams.llama.batch import Batch
from llamalane.streams.llama.chat import ChatTemplate
from llamalane.streams.llama.context import CACHE_TYPES, FLASH_ATTENTION, Context, ContextOptions
from llamalane.streams.llama.detokenizer import Detokenizer
from llamalane.streams.llama.embedding_context import EmbeddingContext, EmbeddingOptions, Vector
from llamalane.streams.llama.grammar import CompiledGrammar, Follower, Following, Grammars
from llamalane.streams.llama.library import library
from llamalane.streams.llama.model import Model, ModelOptions
from llamalane.streams.llama.pooling import Pooling
from llamalane.streams.llama.sampler import Candidates, Sampler, cumulative_distribution, uniform
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
    "EmbeddingContext",
    "EmbeddingOptions",
    "Follower",
    "Following",
    "Grammars",
    "Model",
    "ModelOptions",
    "Pooling",
    "Sampler",
    "Vector",
    "Vocabulary",
    "cumulative_distribution",
    "library",
    "uniform",
]

"""The sections for what computes: the model, its lanes, and their KV cache."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from llamalane.scheduler.config_fields import Integer, NotABool, Section, refuse, repeated
from llamalane.scheduler.config_file import Location
from llamalane.streams import DeviceChoice

CacheType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"]
"""What a KV cell holds; those that begin with q are quantized."""
FlashAttention = Literal["auto", "on", "off"]


class ModelConfig(Section):
    """A model to serve."""

    path: Path = Field(examples=["model.gguf"])
    """The GGUF file; of a split model, the first part. In a YAML file, a relative path starts at the folder of
    that file."""
    name: str | None = Field(default=None, min_length=1)
    """What requests call the model; null takes the file's name without its ending."""
    aliases: list[str] = Field(default=[])
    """Further names for the same model."""
    gpu_layers: Integer = Field(default=-1, ge=-1, le=100_000)
    """How many layers go to the GPU, -1 for all. Without a GPU it has no effect."""
    mmap: bool = Field(default=True)
    """Map the file into memory instead of reading it."""

    @property
    def names(self) -> tuple[str, ...]:
        """The model's name, then its aliases."""
        return (self.name or self.path.stem, *self.aliases)

    @field_validator("path")
    @classmethod
    def _expand_home(cls, path: Path) -> Path:
        try:
            return path.expanduser()
        except RuntimeError as error:
            raise ValueError("no home folder is known for ~") from error

    @model_validator(mode="after")
    def _check(self) -> Self:
        refuse([(("aliases",), f"{name!r} names the model twice") for name in repeated(self.names)])
        return self


class LaneConfig(Section):
    """A lane: one stream, with its share of the KV memory and its own llama.cpp context."""

    name: str = Field(default="main", min_length=1)
    """The lane's name in statistics and logs; no other lane has it."""
    places: Integer = Field(default=8, ge=1, le=256)
    """How many sequences run on the lane at once."""
    threads: Annotated[int, Field(ge=1, le=1024), NotABool] | None = Field(default=None)
    """How many CPU threads compute; null takes an equal part of the cores that other lanes leave."""


class StreamsConfig(Section):
    """What computes."""

    device: DeviceChoice = Field(default=DeviceChoice.AUTO)
    """auto takes a GPU if llama.cpp can use one; cuda is an error where there is none; cpu leaves it alone."""
    lanes: list[LaneConfig] = Field(default=[LaneConfig()], min_length=1)
    """A lane batches all its sequences, so one is fastest; more of them keep kinds of work apart."""
    max_step_tokens: Integer = Field(default=512, ge=1, le=65_536)
    """The most tokens that a lane computes in one step; at least its places."""
    micro_batch: Integer = Field(default=512, ge=1, le=65_536)
    """The most tokens that llama.cpp computes in one pass."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        problems: list[tuple[Location, str]] = []
        for name in repeated([lane.name for lane in self.lanes]):
            problems.append((("lanes",), f"{name!r} names several lanes"))
        largest = max(self.lanes, key=lambda lane: lane.places)
        if largest.places > self.max_step_tokens:
            message = f"must be at least {largest.places}, the places of lane {largest.name!r}"
            problems.append((("max_step_tokens",), message))
        refuse(problems)
        return self


class KVConfig(Section):
    """The KV cache: one cell holds the keys and values of one token."""

    budget: Annotated[int, Field(ge=256, le=2_000_000_000), NotABool] | None = Field(default=None)
    """How many tokens fit, for all lanes together; null takes 2048 for each place."""
    key_type: CacheType = Field(default="f16")
    """How keys are stored; the q types take less memory."""
    value_type: CacheType = Field(default="f16")
    """How values are stored; the q types take less memory and need flash attention."""
    layout: Literal["auto", "paged", "partitioned"] = Field(default="auto")
    """How sequences share a lane's cells. paged: each takes what it needs, so that a long one can stand beside many
    short ones. partitioned: each has an equal part, and attention passes over its own cells only, which is faster on
    CPUs. auto is partitioned on a CPU if each part has 512 cells at least, else paged."""
    spare_sequences: Annotated[int, Field(ge=0, le=255), NotABool] | None = Field(default=None)
    """How many sequences of a lane can hold cells beyond those that run: paused ones, and finished ones for requests
    that continue them. null takes as many as places when paged, where they cost nothing, and none when partitioned,
    where each costs a part."""
    swap: Integer = Field(default=1 << 30, ge=0)
    """How many bytes of host memory may hold the cells of parked requests."""
    flash_attention: FlashAttention = Field(default="auto")
    """Whether attention is computed block by block, without ever holding all its scores. On a CPU, `off` is faster
    for long contexts, and lets outputs depend more on what else runs; a quantized value_type needs it."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.value_type.startswith("q") and self.flash_attention == "off":
            message = f"{self.value_type} is quantized and needs flash_attention, which is off"
            refuse([(("value_type",), message)])
        return self

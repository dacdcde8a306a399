"""The engine's configuration: what can be set, in which unit and range, and what it is by default."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from llamalane.errors import ConfigError
from llamalane.ids import LEAST_URGENT, MOST_URGENT
from llamalane.kvcache import divide
from llamalane.scheduler.config_file import Location, read_document
from llamalane.scheduler.config_sources import EnvironmentSource, load_settings
from llamalane.streams import DeviceChoice

CacheType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"]
"""What a KV cell holds; those that begin with q are quantized."""
FlashAttention = Literal["auto", "on", "off"]


def _not_a_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("must be a number, not true or false")
    return value


def _level_name(name: str) -> str:
    if not re.fullmatch("[a-z][a-z0-9_-]*", name):
        raise ValueError(f"{name!r} cannot name a level: a lower-case letter, then letters, digits, - and _ can")
    return name


NotABool = BeforeValidator(_not_a_bool)
Integer = Annotated[int, NotABool]
Number = Annotated[float, Field(allow_inf_nan=False), NotABool]
LevelName = Annotated[str, AfterValidator(_level_name)]
LevelNumber = Annotated[int, Field(ge=MOST_URGENT, le=LEAST_URGENT), NotABool]


class Section(BaseModel):
    """A part of the configuration. Unknown keys are errors; what was read does not change."""

    # Errors do not show the input: part of it may be a secret.
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, use_attribute_docstrings=True)


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
        _refuse([(("aliases",), f"{name!r} names the model twice") for name in _repeated(self.names)])
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
        for name in _repeated([lane.name for lane in self.lanes]):
            problems.append((("lanes",), f"{name!r} names several lanes"))
        largest = max(self.lanes, key=lambda lane: lane.places)
        if largest.places > self.max_step_tokens:
            message = f"must be at least {largest.places}, the places of lane {largest.name!r}"
            problems.append((("max_step_tokens",), message))
        _refuse(problems)
        return self


class KVConfig(Section):
    """The KV cache: one cell holds the keys and values of one token."""

    budget: Annotated[int, Field(ge=256, le=2_000_000_000), NotABool] | None = Field(default=None)
    """How many tokens fit, for all lanes together; null takes 2048 for each place."""
    key_type: CacheType = Field(default="f16")
    """How keys are stored; the q types take less memory."""
    value_type: CacheType = Field(default="f16")
    """How values are stored; the q types take less memory and need flash attention."""
    flash_attention: FlashAttention = Field(default="auto")
    """Whether attention is computed block by block, without ever holding all its scores. On a CPU, `off` is faster
    for long contexts, and lets outputs depend more on what else runs; a quantized value_type needs it."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.value_type.startswith("q") and self.flash_attention == "off":
            message = f"{self.value_type} is quantized and needs flash_attention, which is off"
            _refuse([(("value_type",), message)])
        return self


class QueueConfig(Section):
    """Bounds of the waiting queue; a request beyond them is refused at once."""

    max_requests: Integer = Field(default=1000, ge=1)
    """The most requests that wait."""
    max_tokens: Integer = Field(default=1_000_000, ge=1)
    """The most prompt tokens that wait, all requests together."""


class SchedulerConfig(Section):
    """Who is served next."""

    levels: dict[LevelName, LevelNumber] = Field(
        default={"interactive": 1, "agent": 2, "normal": 3, "background": 4, "batch": 5}, min_length=1
    )
    """Names for the priority levels: 1 is the most urgent, 5 the least."""
    default_level: str = Field(default="normal")
    """The name of the level of a request that names none."""
    ceiling: LevelNumber = Field(default=3)
    """The level that waiting lifts a request to at most; better levels do not age."""
    aging_interval: Number = Field(default=30.0, gt=0)
    """How many seconds of waiting make a request more urgent by one level."""
    guaranteed_share: Integer = Field(default=10, ge=0)
    """One in so many admissions goes to the request that has waited longest; 0 turns that off."""
    reserve: dict[str, Annotated[int, Field(ge=0), NotABool]] = Field(default={})
    """How many places are kept free for a level and better ones, such as {interactive: 1}. At least one place
    stays open to every level."""
    queue: QueueConfig = Field(default_factory=QueueConfig)
    """How much may wait; a request beyond it is refused at once."""
    target_itl: Number = Field(default=0.15, gt=0)
    """How many seconds there should be at most between two tokens of a sequence. Prompts are computed in pieces
    that fit into it."""
    drain_timeout: Number = Field(default=30.0, ge=0)
    """How many seconds the running requests have for finishing when the engine closes."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        named: list[tuple[Location, str]] = [(("default_level",), self.default_level)]
        named += [(("reserve", name), name) for name in self.reserve]
        levels = ", ".join(self.levels)
        _refuse(
            [
                (location, f"{name!r} is none of the levels, which are {levels}")
                for location, name in named
                if name not in self.levels
            ]
        )
        return self


class EngineConfig(BaseSettings):
    """All that an engine needs to know.

    Values given in code go before environment variables (`LLAMALANE_SCHEDULER__CEILING=2`; a list or a mapping as
    JSON), these before the defaults. A value that cannot be used is pydantic's `ValidationError`.
    """

    model_config = SettingsConfigDict(
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
        env_prefix="LLAMALANE_",
        env_nested_delimiter="__",
    )

    foreign_keys: ClassVar[frozenset[str]] = frozenset({"api"})
    """Top-level keys of a file that are not for the engine; it does not look at them."""

    models: list[ModelConfig] = Field(examples=[[{"path": "model.gguf"}]])
    """The model to serve. There can be only one for now."""
    streams: StreamsConfig = Field(default_factory=StreamsConfig)
    """What computes."""
    kv: KVConfig = Field(default_factory=KVConfig)
    """The KV cache: one cell holds the keys and values of one token."""
    scheduler: SchedulerConfig = Field(default_factory=SchedulerConfig)
    """Who is served next."""

    @classmethod
    def for_model(cls, path: str | os.PathLike[str], *, places: int = 8) -> Self:
        """Return the configuration of one lane with `places` for the model at `path`, all else as it is by default."""
        streams = StreamsConfig(lanes=[LaneConfig(places=places)])
        return cls(models=[ModelConfig(path=Path(path))], streams=streams)

    @classmethod
    def from_yaml(cls, path: str | os.PathLike[str], overrides: Mapping[str, Any] | None = None) -> Self:
        """Read the configuration from a YAML file.

        `overrides`, nested as in the file, go before environment variables, these before the file. In the file, a
        model's relative path starts at the file's folder. Raises one `ConfigError` that tells all that is wrong, each
        with its line.
        """
        document = read_document(path, skip=cls.foreign_keys)
        _resolve_model_paths(document.values, Path(path).absolute().parent)
        return load_settings(cls, document, overrides or {}, foreign=cls.foreign_keys)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Name where values come from, strongest first."""
        return init_settings, EnvironmentSource(settings_cls)

    @field_validator("models")
    @classmethod
    def _check_models(cls, models: list[ModelConfig]) -> list[ModelConfig]:
        if not models:
            raise ValueError("name a model")
        if len(models) > 1:
            names = ", ".join(model.names[0] for model in models)
            raise ValueError(f"more than one model is not supported yet: {names}")
        return models

    @model_validator(mode="after")
    def _check(self) -> Self:
        places = [lane.places for lane in self.streams.lanes]
        problems: list[tuple[Location, str]] = []
        reserved = sum(self.scheduler.reserve.values())
        if reserved >= sum(places):
            message = f"{reserved} of {sum(places)} places are reserved; one must stay open to every level"
            problems.append((("scheduler", "reserve"), message))
        if self.kv.budget is not None:
            try:
                divide(self.kv.budget, places, train_context=0)
            except ConfigError as error:
                problems.append((("kv", "budget"), str(error)))
        _refuse(problems)
        return self


def _refuse(problems: Sequence[tuple[Location, str]]) -> None:
    """Raise a `ValidationError` with all `problems`, if there are any."""
    if problems:
        details = [
            InitErrorDetails(
                type=PydanticCustomError("unusable", "{message}", {"message": message}),
                loc=location,
                input=None,
            )
            for location, message in problems
        ]
        raise ValidationError.from_exception_data("configuration", details)


def _repeated(names: Sequence[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


def _resolve_model_paths(values: Mapping[str, Any], folder: Path) -> None:
    models = values.get("models")
    for model in models if isinstance(models, list) else ():
        if isinstance(model, dict) and isinstance(model.get("path"), str):
            path = model["path"]
            model["path"] = path if path.startswith("~") else str(folder / path)

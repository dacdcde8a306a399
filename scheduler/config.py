"""The engine's configuration: what can be set, in which unit and range, and what it is by default."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from llamalane.errors import ConfigError
from llamalane.kvcache import Layout, divide
from llamalane.scheduler.config_fields import Integer, Number, Section, refuse, repeated
from llamalane.scheduler.config_file import Location, read_document
from llamalane.scheduler.config_lanes import lane_problems, model_of
from llamalane.scheduler.config_machine import (
    CacheType,
    FlashAttention,
    KVConfig,
    LaneConfig,
    LookupConfig,
    ModelConfig,
    StreamsConfig,
)
from llamalane.scheduler.config_scheduler import QueueConfig, SchedulerConfig, TenantConfig
from llamalane.scheduler.config_sources import EnvironmentSource, load_settings

__all__ = [
    "CacheType",
    "EngineConfig",
    "FlashAttention",
    "Integer",
    "KVConfig",
    "LaneConfig",
    "LookupConfig",
    "ModelConfig",
    "Number",
    "QueueConfig",
    "SchedulerConfig",
    "Section",
    "StreamsConfig",
    "TenantConfig",
]


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
    """The models to serve: one that generates, and any number that embed or rerank."""
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
        cls.resolve_paths(document.values, Path(path).absolute().parent)
        return load_settings(cls, document, overrides or {}, foreign=cls.foreign_keys)

    @classmethod
    def resolve_paths(cls, values: Mapping[str, Any], folder: Path) -> None:
        """Let the relative paths among a file's `values` start at its folder."""
        models = values.get("models")
        for model in models if isinstance(models, list) else ():
            if isinstance(model, dict) and isinstance(model.get("path"), str):
                path = model["path"]
                model["path"] = path if path.startswith("~") else str(folder / path)

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
        generating = [model.names[0] for model in models if not model.embeds]
        if len(generating) > 1:
            raise ValueError(f"more than one model that generates is not supported yet: {', '.join(generating)}")
        for name in repeated([name for model in models for name in model.names]):
            raise ValueError(f"{name!r} names several models")
        return models

    @property
    def generating_model(self) -> ModelConfig | None:
        """The model that generates text, if there is one."""
        return next((model for model in self.models if not model.embeds), None)

    @property
    def embedding_models(self) -> list[ModelConfig]:
        """The models that embed or rerank."""
        return [model for model in self.models if model.embeds]

    def model_of(self, lane: LaneConfig) -> ModelConfig:
        """Return the model that a lane computes."""
        model = model_of(lane, self.models)
        assert model is not None, "that was checked"
        return model

    def lanes_of(self, model: ModelConfig | None) -> list[LaneConfig]:
        """Return the lanes that compute a model; none for no model."""
        return [lane for lane in self.streams.lanes if self.model_of(lane) is model]

    def for_generation(self) -> Self:
        """Return what of the configuration is about the model that generates, and its lanes."""
        model = self.generating_model
        lanes = self.lanes_of(model)
        models = [] if model is None else [model]
        return self.model_copy(update={"models": models, "streams": self.streams.model_copy(update={"lanes": lanes})})

    @model_validator(mode="after")
    def _check(self) -> Self:
        refuse(lane_problems(self.models, self.streams.lanes))
        problems: list[tuple[Location, str]] = []
        lanes = self.lanes_of(self.generating_model)
        places = [lane.places for lane in lanes]
        reserved = sum(self.scheduler.reserve.values())
        if reserved and reserved >= sum(places):
            message = f"{reserved} of {sum(places)} places are reserved; one must stay open to every level"
            problems.append((("scheduler", "reserve"), message))
        if self.scheduler.park == "swap" and self.kv.swap == 0:
            problems.append((("scheduler", "park"), "swap needs host memory, and kv.swap is 0"))
        known = ", ".join(self.scheduler.levels)
        for name in self.streams.lookup.levels or ():
            if name not in self.scheduler.levels:
                message = f"{name!r} is none of the levels, which are {known}"
                problems.append((("streams", "lookup", "levels"), message))
        if isinstance(self.kv.budget, int) and lanes:
            try:
                layout = Layout.PAGED if self.kv.layout == "auto" else Layout(self.kv.layout)
                weights = [lane.weight for lane in lanes]
                divide(self.kv.budget, places, 0, layout=layout, spare=self.kv.spare_sequences, weights=weights)
            except ConfigError as error:
                problems.append((("kv", "budget"), str(error)))
        refuse(problems)
        return self

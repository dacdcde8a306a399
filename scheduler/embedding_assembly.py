"""Builds the lanes of the models that embed or rerank, and plans what they take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from llamalane.kvcache import BareRegion
from llamalane.scheduler.config import EngineConfig, ModelConfig
from llamalane.scheduler.embedding_plan import EmbeddingPlan, plan_embedding
from llamalane.scheduler.homes import Home, lanes_by_gpu, model_options
from llamalane.scheduler.memory_needs import DevicePlan, MemoryPlan
from llamalane.scheduler.memory_plan import part_on_device
from llamalane.streams import Device, Stream
from llamalane.streams.embedding_lane import EmbeddingLane, EmbeddingStepContext
from llamalane.streams.llama import EmbeddingOptions, Model, ModelOptions

OpenEmbeddingContext = Callable[[Model, EmbeddingOptions], EmbeddingStepContext]


@dataclass(frozen=True, slots=True)
class Embedder:
    """A loaded model that embeds or reranks.

    Attributes:
        names: its name, then its aliases.
        places: how many texts can be on its lanes at once, all of them together.
    """

    names: tuple[str, ...]
    plan: EmbeddingPlan
    model: Model
    places: int

    @property
    def name(self) -> str:
        """Its name."""
        return self.names[0]


def plan_embedding_models(
    config: EngineConfig, device: Device, gpus: Mapping[str, int | None], open_model: Callable[[ModelOptions], Model]
) -> tuple[EmbeddingPlan, ...]:
    """Plan every model that embeds or reranks; `open_model` opens one without its weights.

    Raises what `plan_embedding` raises.
    """
    generating = config.generating_model
    loaded: set[ModelOptions] = set()
    if generating is not None:
        loaded.update(
            model_options(generating, device, gpu, weights=False)
            for gpu in lanes_by_gpu(gpus, config.lanes_of(generating))
        )
    return tuple(_plan(config, entry, device, gpus, open_model, loaded) for entry in config.embedding_models)


def _plan(
    config: EngineConfig,
    entry: ModelConfig,
    device: Device,
    gpus: Mapping[str, int | None],
    open_model: Callable[[ModelOptions], Model],
    loaded: set[ModelOptions],
) -> EmbeddingPlan:
    lanes = config.lanes_of(entry)
    copies = {gpu: model_options(entry, device, gpu, weights=False) for gpu in lanes_by_gpu(gpus, lanes)}
    models = {gpu: open_model(options) for gpu, options in copies.items()}
    weights = {gpu: models[gpu].bytes for gpu, options in copies.items() if options not in loaded}
    loaded.update(copies.values())
    model = next(iter(models.values()))
    return plan_embedding(
        entry,
        model,
        [(lane, gpus[lane.name]) for lane in lanes],
        config.streams,
        weights=weights,
        offloaded=part_on_device(entry, model, device),
        flash_attention=config.kv.flash_attention,
        on_host=device is Device.CPU,
    )


def add_embedding(
    memory: MemoryPlan | None, device: Device, plans: tuple[EmbeddingPlan, ...], spare: Mapping[int | None, DevicePlan]
) -> MemoryPlan:
    """Return a plan with the models that embed beside the one that generates, if there is one.

    `spare` are the devices on which no lane generates, with what is taken there.
    """
    if memory is None:
        devices = tuple(spare.values())
        return MemoryPlan(device=device, devices=devices, lanes=(), cell=0, state=0, swap=0, embedding=plans)
    return replace(memory, devices=(*memory.devices, *spare.values()), embedding=plans)


def embedders_of(config: EngineConfig, plans: tuple[EmbeddingPlan, ...], homes: Mapping[str, Home]) -> list[Embedder]:
    """Return the models that embed or rerank, which are loaded by now."""
    return [
        Embedder(entry.names, plan, homes[plan.lanes[0].name].model, sum(lane.places for lane in plan.lanes))
        for entry, plan in zip(config.embedding_models, plans, strict=True)
    ]


def open_embedding_lane(
    stream: Stream, home: Home, plan: EmbeddingPlan, open_context: OpenEmbeddingContext, *, flash_attention: str
) -> tuple[EmbeddingLane, BareRegion]:
    """Open a lane that embeds, with its region."""
    own = stream.options
    options = plan.options(own.places, threads=own.threads, flash_attention=flash_attention)

    def open_on_stream() -> EmbeddingStepContext:
        with stream.lend():
            return open_context(home.model, options)

    lane = EmbeddingLane(
        stream,
        open_on_stream,
        max_step_tokens=plan.step_tokens,
        gate=home.gate,
        can_abandon=own.device is Device.CPU,
    )
    return lane, BareRegion(own.places, plan.limit)

"""Plans how the models that embed or rerank are computed, and what memory that takes, before weights are loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from llamalane.errors import ConfigError
from llamalane.scheduler.config_machine import LaneConfig, ModelConfig, StreamsConfig
from llamalane.streams.llama import EmbeddingOptions, Model, Pooling
from llamalane.streams.llama.footprint import Footprint, measure_embedding_context


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingLanePlan:
    """What one lane takes, in bytes.

    Attributes:
        gpu: the GPU that it computes on; None where none is named.
        cells: the KV cells in which a causal model computes a step; they hold nothing between steps.
        computing: what its steps work in, on the device.
        host_computing: the same of the host's memory.
    """

    name: str
    gpu: int | None
    places: int
    cells: int
    computing: int
    host_computing: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingPlan:
    """How one model embeds or scores texts, and what that takes.

    Attributes:
        name: the model's name.
        file: the name of its file.
        task: `embed` or `rerank`.
        limit: the most tokens of one text.
        train_context: what the model was trained for.
        step_tokens: the most tokens of one step.
        width: how many numbers a vector has, or how many scores there are.
        weights: what its weights take on each GPU, under None where none is named; nothing where they are there for
            another model of the same file.
        offloaded: which part of the weights is on the device.
    """

    name: str
    file: str
    task: str
    pooling: Pooling
    limit: int
    train_context: int
    step_tokens: int
    width: int
    weights: Mapping[int | None, int]
    offloaded: float
    lanes: tuple[EmbeddingLanePlan, ...]

    def taken(self, gpu: int | None) -> int:
        """Return what it takes on a device, in bytes."""
        there = [lane for lane in self.lanes if lane.gpu == gpu]
        return round(self.weights.get(gpu, 0) * self.offloaded) + sum(lane.cells + lane.computing for lane in there)

    def options(self, places: int, *, threads: int, flash_attention: str) -> EmbeddingOptions:
        """Return how the context of a lane is created."""
        return EmbeddingOptions(
            sequences=places,
            step_tokens=self.step_tokens,
            limit=self.limit,
            threads=threads,
            pooling=self.pooling,
            flash_attention=flash_attention,
        )


def plan_embedding(
    entry: ModelConfig,
    model: Model,
    lanes: Sequence[tuple[LaneConfig, int | None]],
    streams: StreamsConfig,
    *,
    weights: Mapping[int | None, int],
    offloaded: float,
    flash_attention: str,
    on_host: bool,
) -> EmbeddingPlan:
    """Plan the lanes of a model, each given with its GPU; `model` is without weights, and `on_host` if no GPU computes.

    Raises `ConfigError` where the settings do not suit the model, and `ModelLoadError` for one that gives no vectors.
    """
    pooling = _pooling_of(entry, model)
    model.check_embeds(pooling)
    limit = _limit_of(entry, model, streams)
    step_tokens = max(streams.micro_batch, limit, *(lane.places for lane, _ in lanes))
    plan = EmbeddingPlan(
        name=entry.names[0],
        file=entry.path.name,
        task=entry.task,
        pooling=pooling,
        limit=limit,
        train_context=model.train_context,
        step_tokens=step_tokens,
        width=model.scores if pooling is Pooling.RANK else model.width,
        weights=weights,
        offloaded=offloaded,
        lanes=(),
    )

    def lane_plan(lane: LaneConfig, gpu: int | None) -> EmbeddingLanePlan:
        options = plan.options(lane.places, threads=1, flash_attention=flash_attention)
        return _lane_plan(lane, gpu, measure_embedding_context(model, options), on_host=on_host)

    return replace(plan, lanes=tuple(lane_plan(lane, gpu) for lane, gpu in lanes))


def _lane_plan(lane: LaneConfig, gpu: int | None, footprint: Footprint, *, on_host: bool) -> EmbeddingLanePlan:
    return EmbeddingLanePlan(
        name=lane.name,
        gpu=gpu,
        places=lane.places,
        cells=footprint.cells + footprint.states,
        computing=footprint.device + (footprint.host if on_host else 0),
        host_computing=0 if on_host else footprint.host,
    )


def _pooling_of(entry: ModelConfig, model: Model) -> Pooling:
    if entry.task == "rerank":
        return Pooling.RANK
    pooling = Pooling(entry.pooling) if entry.pooling is not None else model.pooling
    if pooling is None:
        raise ConfigError(
            f"the file of model {entry.names[0]!r} does not say what stands for a text: set the model's pooling to "
            "mean, cls or last, as it was trained for"
        )
    if pooling is Pooling.RANK:
        raise ConfigError(
            f"the model {entry.names[0]!r} scores texts and gives no vectors: set its task to rerank, or name a pooling"
        )
    return pooling


def _limit_of(entry: ModelConfig, model: Model, streams: StreamsConfig) -> int:
    most = model.train_context
    wanted = entry.max_input
    if wanted is None:
        return min(streams.micro_batch, most) if most else streams.micro_batch
    if most and wanted > most:
        raise ConfigError(
            f"the model {entry.names[0]!r} was trained for {most} tokens at most, and its max_input is {wanted}"
        )
    return wanted

"""Builds what the configuration describes: the model, the lanes, and the pool of their streams."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llamalane.kvcache import Layout, Region, divide
from llamalane.scheduler.config import EngineConfig, KVConfig, ModelConfig, StreamsConfig
from llamalane.streams import Device, LaneBackend, Stream, StreamOptions, StreamPool, choose_device
from llamalane.streams.cores import available_cores, share_cores
from llamalane.streams.cuda import probe
from llamalane.streams.gate import Gate
from llamalane.streams.lane import Lane, StepContext
from llamalane.streams.llama import Context, ContextOptions, Model, ModelOptions, library

DEFAULT_CELLS_PER_PLACE = 2048
"""KV cells for each place when the configuration names no budget."""

SMALLEST_PART = 512
"""Fewer cells than that for each sequence are shared rather than divided, unless the configuration says otherwise."""

OpenContext = Callable[[Model, ContextOptions], StepContext]


@dataclass(frozen=True, slots=True)
class Machinery:
    """The loaded model and the pool of lanes that run it. Close the pool first."""

    model: Model
    pool: StreamPool

    def close(self) -> None:
        """End the lanes and free the model. Blocks until the steps under way are done."""
        self.pool.close()
        self.model.close()


def assemble(config: EngineConfig, open_context: OpenContext = Context) -> Machinery:
    """Load the model and open every lane, or undo what was done and raise. Blocks for as long as loading takes.

    `open_context` makes the lanes' contexts.
    """
    device = choose_device(config.streams.device, offload=library().supports_gpu_offload, probe=probe())
    model = Model(_model_options(config.models[0], device))
    try:
        # Read now, in the thread that loads, what the event loop would else read at the first request.
        _ = model.vocabulary.pieces, model.vocabulary.longest_piece
        return Machinery(model, _open_pool(config, model, device, open_context))
    except BaseException:
        model.close()
        raise


def choose_layout(wanted: str, device: Device, part: int) -> Layout:
    """Return the layout that the configuration wants, where an equal part of a region has `part` cells.

    On a CPU attention takes time for every cell that it passes over, its own or not, so sequences are kept apart.
    """
    if wanted != "auto":
        return Layout(wanted)
    return Layout.PARTITIONED if device is Device.CPU and part >= SMALLEST_PART else Layout.PAGED


def _model_options(config: ModelConfig, device: Device) -> ModelOptions:
    layers = config.gpu_layers if device is Device.GPU else 0
    return ModelOptions(path=config.path, gpu_layers=layers, mmap=config.mmap)


def _stream_options(config: StreamsConfig, device: Device) -> list[StreamOptions]:
    core_sets = share_cores(available_cores(), [lane.threads for lane in config.lanes])
    alone = len(config.lanes) == 1
    return [
        StreamOptions(
            name=lane.name,
            device=device,
            places=lane.places,
            cores=() if alone and lane.threads is None else cores,
            threads=len(cores),
        )
        for lane, cores in zip(config.lanes, core_sets, strict=True)
    ]


def _context_options(config: StreamsConfig, kv: KVConfig, region: Region, stream: StreamOptions) -> ContextOptions:
    return ContextOptions(
        cells=region.plan.cells,
        sequences=region.plan.sequences,
        partitioned=region.plan.layout is Layout.PARTITIONED,
        max_step_tokens=max(config.max_step_tokens, region.plan.sequences),
        micro_batch=config.micro_batch,
        threads=stream.threads,
        key_type=kv.key_type,
        value_type=kv.value_type,
        flash_attention=kv.flash_attention,
    )


def _open_pool(config: EngineConfig, model: Model, device: Device, open_context: OpenContext) -> StreamPool:
    options = _stream_options(config.streams, device)
    places = [entry.places for entry in options]
    budget = config.kv.budget or DEFAULT_CELLS_PER_PLACE * sum(places)
    layout = choose_layout(config.kv.layout, device, budget // (sum(places) + (config.kv.spare_sequences or 0)))
    plans = divide(budget, places, model.train_context, layout=layout, spare=config.kv.spare_sequences)
    plan_of = dict(zip([entry.name for entry in options], plans, strict=True))
    gate = Gate()

    def open_lane(stream: Stream) -> tuple[LaneBackend, Region]:
        region = Region(plan_of[stream.options.name], can_roll_back=model.can_roll_back)
        context_options = _context_options(config.streams, config.kv, region, stream.options)
        lane = Lane(
            stream,
            model.vocabulary,
            lambda: open_context(model, context_options),
            max_step_tokens=config.streams.max_step_tokens,
            limit=region.limit,
            gate=gate,
            by_sequence=context_options.partitioned,
            can_abandon=device is Device.CPU and model.can_roll_back,
        )
        return lane, region

    return StreamPool(options, open_lane)

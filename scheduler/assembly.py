"""Builds what the configuration describes: the model, the lanes, and the pool of their streams."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from llamalane.errors import ConfigError
from llamalane.ids import MAX_SEQUENCES
from llamalane.kvcache import DiskStore, Layout
from llamalane.kvcache.budget import RegionPlan
from llamalane.scheduler.config import EngineConfig, KVConfig, StreamsConfig
from llamalane.scheduler.config_roles import CANNOT_HAND_OVER, check_memory, exchangeable, hands_over, paged
from llamalane.scheduler.embedding_assembly import (
    Embedder,
    OpenEmbeddingContext,
    add_embedding,
    embedders_of,
    plan_embedding_models,
)
from llamalane.scheduler.homes import Home, gpus_of, lanes_by_gpu, load_homes, model_options
from llamalane.scheduler.lane_opener import LaneOpener, OpenContext, context_options
from llamalane.scheduler.memory_needs import DevicePlan, MemoryPlan
from llamalane.scheduler.memory_plan import Site, plan_memory
from llamalane.streams import ContextShift, Device, StreamOptions, StreamPool, choose_device
from llamalane.streams.cores import available_cores, share_cores
from llamalane.streams.cuda import CudaProbe, CudaStreamPool, StreamClass, free_memory, load_shim, probe
from llamalane.streams.llama import Context, ContextOptions, EmbeddingContext, Model, ModelOptions, library
from llamalane.streams.llama.fingerprint import fingerprint
from llamalane.streams.memory import free_host_memory
from llamalane.streams.pool import OpenLane

__all__ = ["CANNOT_SHIFT", "Machinery", "OpenContext", "OpenEmbeddingContext", "assemble", "plan"]

logger = logging.getLogger(__name__)

CANNOT_SHIFT = (
    "kv.context_shift is on, and this model cannot drop the middle of a sequence: a recurrent or hybrid model cannot, "
    "nor can one whose tokens have positions in more than one dimension; one with plain or sliding-window attention can"
)

CANNOT_DRAFT = (
    "streams.lookup.draft_tokens is {draft_tokens}, and this model cannot drop the end of a sequence, as a draft asks "
    "for that turns out wrong: a recurrent or hybrid model cannot; set it to 0"
)


@dataclass(frozen=True, slots=True)
class Machinery:
    """The loaded models, the pool of lanes that run them, and the CUDA streams that it lends them, if there are any."""

    models: tuple[Model, ...]
    """Each model that is loaded, the one that generates first: a copy for each GPU that its lanes name, or one."""
    pool: StreamPool
    cuda: CudaStreamPool | None = None
    shift: ContextShift | None = None
    """How requests go on whose sequences are full."""
    can_swap: bool = True
    """Whether sequences can be saved and put back."""
    disk: DiskStore | None = None
    """Files of saved cells that outlive the engine."""
    embedders: Sequence[Embedder] = ()
    """The models that embed or rerank."""

    @property
    def model(self) -> Model:
        """The first copy of the model that generates, for all that copies have in common; else of another model."""
        return self.models[0]

    def close(self) -> None:
        """End the lanes and free the models. Blocks until the steps under way are done; may be repeated."""
        self.pool.close()
        for model in self.models:
            model.close()


class _LentPool(StreamPool):
    """A pool whose lanes are lent CUDA streams, which it destroys after it has closed the lanes."""

    def __init__(self, options: Sequence[StreamOptions], open_lane: OpenLane, cuda: CudaStreamPool) -> None:
        self._cuda = cuda
        super().__init__(options, open_lane)

    def close(self) -> None:
        """Close every lane, then destroy the streams. Blocks until the lanes' threads have ended; may be repeated."""
        super().close()
        self._cuda.close()


def assemble(
    config: EngineConfig,
    open_context: OpenContext | None = None,
    open_embedding_context: OpenEmbeddingContext | None = None,
) -> Machinery:
    """Load the models and open every lane, or undo what was done and raise. Blocks for as long as loading takes.

    `open_context` makes the contexts of lanes that generate, in place of `Context`, and `open_embedding_context` those
    of others, in place of `EmbeddingContext`.
    """
    found = probe()  # before llama.cpp is loaded: its calls have to find the shim
    device = choose_device(config.streams.device, offload=library().supports_gpu_offload, probe=found)
    memory = _plan(config, device, found)
    memory.log()
    generation = config.for_generation()
    with contextlib.ExitStack() as undo:
        cuda = _open_cuda(config.streams, device, found)
        if cuda is not None:
            undo.callback(cuda.close)
        homes = load_homes(config, device, gpus_of(config.streams, device), undo)
        first = [homes[lane.name].model for lane in generation.streams.lanes]
        models = tuple(dict.fromkeys([*first, *(home.model for home in homes.values())]))
        for model in models:
            # Read now, in the thread that loads, what the event loop would else read at the first request.
            _ = model.vocabulary.pieces, model.vocabulary.longest_piece
        if first:
            first[0].grammars.prepare()
        disk = _open_disk(generation)
        options = _stream_options(config, device, cuda, homes)
        shift = _shift(config.kv, models[0], memory.regions)
        opener = LaneOpener(
            config, homes, memory, open_context or Context, open_embedding_context or EmbeddingContext, shift
        )
        pool = StreamPool(options, opener) if cuda is None else _LentPool(options, opener, cuda)
        undo.callback(pool.close)
        lanes = opener.lanes
        if shift is not None and not all(lane.abilities.shift for lane in lanes):
            raise ConfigError(CANNOT_SHIFT)
        drafts = config.streams.lookup.draft_tokens
        if drafts and not all(lane.abilities.roll_back for lane in lanes):
            raise ConfigError(CANNOT_DRAFT.format(draft_tokens=drafts))
        if hands_over(generation) and not all(lane.abilities.swap for lane in lanes):
            raise ConfigError(CANNOT_HAND_OVER)
        undo.pop_all()
        return Machinery(
            models=models,
            pool=pool,
            cuda=cuda,
            shift=shift,
            can_swap=all(lane.abilities.swap for lane in lanes),
            disk=disk,
            embedders=embedders_of(config, memory.embedding, homes),
        )


def plan(config: EngineConfig) -> MemoryPlan:
    """Return what memory the configuration takes, without loading the weights.

    Raises `ConfigError`, `ContextError` or `ModelLoadError` when it cannot be used whatever memory there is.
    """
    found = probe()
    device = choose_device(config.streams.device, offload=library().supports_gpu_offload, probe=found)
    return _plan(config, device, found)


def _plan(config: EngineConfig, device: Device, found: CudaProbe) -> MemoryPlan:
    generation = config.for_generation()
    check_memory(generation)
    gpus = gpus_of(config.streams, device)
    free = {gpu: _free_memory(device, gpu, found) for gpu in dict.fromkeys(gpus.values())}  # before models are there
    with contextlib.ExitStack() as models:

        def open_model(options: ModelOptions) -> Model:
            return models.enter_context(Model(options))

        embedding = plan_embedding_models(config, device, gpus, open_model)
        sites = []
        spare: dict[int | None, DevicePlan] = {}
        here = lanes_by_gpu(gpus, generation.streams.lanes)
        for gpu, names in lanes_by_gpu(gpus, config.streams.lanes).items():
            name = device.value.upper() if gpu is None else f"GPU {gpu}"
            taken = sum(plan.taken(gpu) for plan in embedding)
            if gpu in here:
                model = open_model(model_options(generation.models[0], device, gpu, weights=False))
                sites.append(Site(name=name, lanes=here[gpu], model=model, free=free[gpu], taken=taken))
            else:
                spare[gpu] = DevicePlan(
                    name=name, lanes=names, weights=0, kv=0, offloaded=1, computing=0, free=free[gpu], embedding=taken
                )
        memory = _plan_generation(generation, device, sites) if sites else None
        return add_embedding(memory, device, embedding, spare)


def _plan_generation(config: EngineConfig, device: Device, sites: Sequence[Site]) -> MemoryPlan:
    """Plan the lanes that generate, on `sites`."""

    def options_of(region: RegionPlan) -> ContextOptions:
        return context_options(config.streams, config.kv, region, threads=1)

    for site in sites:
        site.model.check_generates()
    memory = plan_memory(config, device, sites, options_of)
    if hands_over(config) and not exchangeable(memory.regions):
        memory = plan_memory(paged(config, memory.regions), device, sites, options_of)
    regions = _with_keepers(memory.regions, sites[0].model, config)
    lanes = [replace(lane, region=region) for lane, region in zip(memory.lanes, regions, strict=True)]
    return replace(memory, lanes=tuple(lanes))


def _with_keepers(regions: Sequence[RegionPlan], model: Model, config: EngineConfig) -> list[RegionPlan]:
    """Let further sequences keep cells where sequences may share them.

    With a sliding window they may not: cells that have left it are used again, whoever else counts on them. And when
    the cells of a sequence are shifted, they have to be its own. Of lanes that hand requests over to each other all
    have such sequences or none: only so can they put back what another one has saved.
    """
    if model.recurrent or model.hybrid or model.sliding_window or config.kv.context_shift:
        return list(regions)
    kept = [_with_keepers_of_its_own(region) for region in regions]
    return list(regions) if hands_over(config) and any(not region.keepers for region in kept) else kept


def _with_keepers_of_its_own(region: RegionPlan) -> RegionPlan:
    """Give a region as many sequences for keeping as llama.cpp has ids left, at least one if need be of those to spare.

    None where the places leave no id for it: the context needs one more for itself.
    """
    sequences = min(region.sequences, MAX_SEQUENCES - 2)
    if region.layout is Layout.PARTITIONED or region.places > sequences:
        return region
    return replace(region, sequences=sequences, keepers=MAX_SEQUENCES - 1 - sequences)


def _open_disk(config: EngineConfig) -> DiskStore | None:
    """Open the directory of saved cells; those of another model, llama.cpp or kind of cell are not used."""
    kv = config.kv
    if kv.disk is None or not config.models:
        return None
    model = fingerprint(config.models[0].path)
    key = f"{library().version} {model} {kv.key_type} {kv.value_type} {kv.flash_attention}"
    return DiskStore(kv.disk, key, kv.disk_bytes)


def _free_memory(device: Device, gpu: int | None, found: CudaProbe) -> int | None:
    """Return what a GPU has free, or all together if none is named; None where nobody tells."""
    if device is Device.CPU:
        return free_host_memory()
    if not found.usable:
        return None
    return sum(map(free_memory, range(found.devices) if gpu is None else [gpu]))


def _open_cuda(config: StreamsConfig, device: Device, found: CudaProbe) -> CudaStreamPool | None:
    """Create a CUDA stream for each lane; None where there is no GPU, or llama.cpp's own streams have to do."""
    if device is not Device.GPU:
        return None
    if not found.lends:
        wishes = any(lane.priority or lane.multiprocessors for lane in config.lanes)
        level = logging.WARNING if wishes else logging.INFO
        logger.log(level, "lanes compute on llama.cpp's own streams, without priorities: %s", found.reason)
        return None
    classes = [
        StreamClass(
            name=lane.name,
            device=lane.device or 0,
            priority=lane.priority,
            multiprocessors=lane.multiprocessors,
        )
        for lane in config.lanes
    ]
    return CudaStreamPool(classes, load_shim())


def _stream_options(
    config: EngineConfig, device: Device, cuda: CudaStreamPool | None, homes: Mapping[str, Home]
) -> list[StreamOptions]:
    lanes = config.streams.lanes
    core_sets = share_cores(available_cores(), [lane.threads for lane in lanes])
    alone = len(lanes) == 1  # then the system may move it out of other processes' way
    return [
        StreamOptions(
            name=lane.name,
            device=device,
            places=lane.places,
            cores=() if alone else cores,
            threads=len(cores),
            adaptive=config.streams.adaptive_threads,
            cuda=None if cuda is None else cuda.acquire(lane.name),
            gpu=homes[lane.name].model.gpu,
            speed=lane.speed,
            model=config.model_of(lane).names[0] if config.model_of(lane).embeds else "",
        )
        for lane, cores in zip(lanes, core_sets, strict=True)
    ]


def _shift(kv: KVConfig, model: Model, regions: Sequence[RegionPlan]) -> ContextShift | None:
    if not kv.context_shift or not regions:
        return None
    return ContextShift(min(region.limit for region in regions), kv.context_keep + model.vocabulary.adds_bos)

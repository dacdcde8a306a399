"""Builds what the configuration describes: the model, the lanes, and the pool of their streams."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from llamalane.errors import ConfigError
from llamalane.ids import MAX_SEQUENCES
from llamalane.kvcache import DiskStore, Layout, Region, SharedRegion
from llamalane.kvcache.budget import RegionPlan
from llamalane.scheduler.config import EngineConfig, KVConfig, ModelConfig, StreamsConfig
from llamalane.scheduler.config_roles import CANNOT_HAND_OVER, check_memory, exchangeable, hands_over, paged
from llamalane.scheduler.memory_needs import MemoryPlan
from llamalane.scheduler.memory_plan import Site, plan_memory
from llamalane.streams import (
    ContextShift,
    Device,
    KVRegion,
    LaneBackend,
    Stream,
    StreamOptions,
    StreamPool,
    choose_device,
)
from llamalane.streams.cores import available_cores, share_cores
from llamalane.streams.cuda import CudaProbe, CudaStreamPool, StreamClass, free_memory, load_shim, probe
from llamalane.streams.gate import Gate
from llamalane.streams.lane import Lane, StepContext
from llamalane.streams.llama import Context, ContextOptions, Model, ModelOptions, library
from llamalane.streams.llama.fingerprint import fingerprint
from llamalane.streams.memory import free_host_memory
from llamalane.streams.pool import OpenLane

logger = logging.getLogger(__name__)

CANNOT_SHIFT = (
    "kv.context_shift is on, and this model cannot drop the middle of a sequence: a recurrent or hybrid model cannot, "
    "nor can one whose tokens have positions in more than one dimension; one with plain or sliding-window attention can"
)

OpenContext = Callable[[Model, ContextOptions], StepContext]


@dataclass(frozen=True, slots=True)
class Machinery:
    """The loaded model, the pool of lanes that run it, and the CUDA streams that it lends them, if there are any."""

    models: tuple[Model, ...]
    """The model: a copy for each GPU that lanes name, or the only one."""
    pool: StreamPool
    cuda: CudaStreamPool | None = None
    shift: ContextShift | None = None
    """How requests go on whose sequences are full."""
    can_swap: bool = True
    """Whether sequences can be saved and put back."""
    disk: DiskStore | None = None
    """Files of saved cells that outlive the engine."""

    @property
    def model(self) -> Model:
        """The first copy, for all that copies have in common."""
        return self.models[0]

    def close(self) -> None:
        """End the lanes and free the model. Blocks until the steps under way are done; may be repeated."""
        self.pool.close()
        for model in self.models:
            model.close()


@dataclass(frozen=True, slots=True)
class _Home:
    """What the lanes of one device share: the model there, and the gate at which their contexts come and go."""

    model: Model
    gate: Gate


class _LentPool(StreamPool):
    """A pool whose lanes are lent CUDA streams, which it destroys after it has closed the lanes."""

    def __init__(self, options: Sequence[StreamOptions], open_lane: OpenLane, cuda: CudaStreamPool) -> None:
        self._cuda = cuda
        super().__init__(options, open_lane)

    def close(self) -> None:
        """Close every lane, then destroy the streams. Blocks until the lanes' threads have ended; may be repeated."""
        super().close()
        self._cuda.close()


def assemble(config: EngineConfig, open_context: OpenContext | None = None) -> Machinery:
    """Load the model and open every lane, or undo what was done and raise. Blocks for as long as loading takes.

    `open_context` makes the lanes' contexts, in place of `Context`.
    """
    found = probe()  # before llama.cpp is loaded: its calls have to find the shim
    device = choose_device(config.streams.device, offload=library().supports_gpu_offload, probe=found)
    memory = _plan(config, device, found)
    memory.log()
    with contextlib.ExitStack() as undo:
        cuda = _open_cuda(config.streams, device, found)
        if cuda is not None:
            undo.callback(cuda.close)
        homes: dict[str, _Home] = {}
        for gpu, names in _lanes_by_gpu(config.streams, device).items():
            home = _Home(Model(_model_options(config.models[0], device, gpu)), Gate())
            undo.callback(home.model.close)
            homes.update(dict.fromkeys(names, home))
        models = tuple(dict.fromkeys(home.model for home in homes.values()))
        model = models[0]
        # Read now, in the thread that loads, what the event loop would else read at the first request.
        _ = model.vocabulary.pieces, model.vocabulary.longest_piece
        model.grammars.prepare()
        disk = _open_disk(config)
        options = _stream_options(config.streams, device, cuda, homes)
        shift = _shift(config.kv, model, memory.regions)
        pool, lanes = _open_pool(config, options, cuda, homes, memory.regions, open_context or Context, shift)
        undo.callback(pool.close)
        if shift is not None and not all(lane.abilities.shift for lane in lanes):
            raise ConfigError(CANNOT_SHIFT)
        if hands_over(config) and not all(lane.abilities.swap for lane in lanes):
            raise ConfigError(CANNOT_HAND_OVER)
        undo.pop_all()
        return Machinery(models, pool, cuda, shift, all(lane.abilities.swap for lane in lanes), disk)


def plan(config: EngineConfig) -> MemoryPlan:
    """Return what memory the configuration takes, without loading the weights.

    Raises `ConfigError`, `ContextError` or `ModelLoadError` when it cannot be used whatever memory there is.
    """
    found = probe()
    device = choose_device(config.streams.device, offload=library().supports_gpu_offload, probe=found)
    return _plan(config, device, found)


def _plan(config: EngineConfig, device: Device, found: CudaProbe) -> MemoryPlan:
    check_memory(config)

    def options_of(region: RegionPlan) -> ContextOptions:
        return _context_options(config.streams, config.kv, region, threads=1)

    with contextlib.ExitStack() as models:
        sites = []
        for gpu, names in _lanes_by_gpu(config.streams, device).items():
            free = _free_memory(device, gpu, found)  # before the model makes anything there
            model = models.enter_context(Model(_model_options(config.models[0], device, gpu, weights=False)))
            name = device.value.upper() if gpu is None else f"GPU {gpu}"
            sites.append(Site(name=name, lanes=names, model=model, free=free))
        memory = plan_memory(config, device, sites, options_of)
        if hands_over(config) and not exchangeable(memory.regions):
            memory = plan_memory(paged(config, memory.regions), device, sites, options_of)
        lanes = [replace(lane, region=_with_keepers(lane.region, sites[0].model, config.kv)) for lane in memory.lanes]
        return replace(memory, lanes=tuple(lanes))


def _lanes_by_gpu(config: StreamsConfig, device: Device) -> dict[int | None, tuple[str, ...]]:
    """Return the names of the lanes on each GPU; under None, of all lanes where none names a GPU, or there is none."""
    gpus = config.gpus if device is Device.GPU else [None] * len(config.lanes)
    return {
        gpu: tuple(lane.name for lane, own in zip(config.lanes, gpus, strict=True) if own == gpu)
        for gpu in dict.fromkeys(gpus)
    }


def _with_keepers(region: RegionPlan, model: Model, kv: KVConfig) -> RegionPlan:
    """Let further sequences keep cells where sequences may share them.

    With a sliding window they may not: cells that have left it are used again, whoever else counts on them. And when
    the cells of a sequence are shifted, they have to be its own.
    """
    shares = not (model.recurrent or model.hybrid or model.sliding_window or kv.context_shift)
    if region.layout is Layout.PARTITIONED or not shares:
        return region
    return replace(region, keepers=max(0, MAX_SEQUENCES - 1 - region.sequences))


def _open_disk(config: EngineConfig) -> DiskStore | None:
    """Open the directory of saved cells; those of another model, llama.cpp or kind of cell are not used."""
    kv = config.kv
    if kv.disk is None:
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


def _model_options(config: ModelConfig, device: Device, gpu: int | None, *, weights: bool = True) -> ModelOptions:
    layers = config.gpu_layers if device is Device.GPU else 0
    return ModelOptions(path=config.path, gpu_layers=layers, mmap=config.mmap, weights=weights, device=gpu)


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
    config: StreamsConfig, device: Device, cuda: CudaStreamPool | None, homes: Mapping[str, _Home]
) -> list[StreamOptions]:
    core_sets = share_cores(available_cores(), [lane.threads for lane in config.lanes])
    alone = len(config.lanes) == 1
    return [
        StreamOptions(
            name=lane.name,
            device=device,
            places=lane.places,
            cores=() if alone and lane.threads is None else cores,
            threads=len(cores),
            cuda=None if cuda is None else cuda.acquire(lane.name),
            gpu=homes[lane.name].model.gpu,
            speed=lane.speed,
        )
        for lane, cores in zip(config.lanes, core_sets, strict=True)
    ]


def _context_options(config: StreamsConfig, kv: KVConfig, region: RegionPlan, threads: int) -> ContextOptions:
    sequences = region.sequences + (region.keepers > 0)
    return ContextOptions(
        cells=region.cells,
        sequences=region.sequences,
        keepers=region.keepers,
        partitioned=region.layout is Layout.PARTITIONED,
        max_step_tokens=max(config.max_step_tokens, sequences),
        micro_batch=config.micro_batch,
        output_rows=config.output_rows,
        threads=threads,
        key_type=kv.key_type,
        value_type=kv.value_type,
        flash_attention=kv.flash_attention,
    )


def _open_pool(
    config: EngineConfig,
    options: Sequence[StreamOptions],
    cuda: CudaStreamPool | None,
    homes: Mapping[str, _Home],
    regions: Sequence[RegionPlan],
    open_context: OpenContext,
    shift: ContextShift | None,
) -> tuple[StreamPool, list[Lane]]:
    plan_of = dict(zip([entry.name for entry in options], regions, strict=True))
    lanes: list[Lane] = []

    def open_lane(stream: Stream) -> tuple[LaneBackend, KVRegion]:
        region_plan, home = plan_of[stream.options.name], homes[stream.options.name]
        context_options = _context_options(config.streams, config.kv, region_plan, stream.options.threads)

        def open_on_stream() -> StepContext:
            with stream.lend():
                return open_context(home.model, context_options)

        lane = Lane(
            stream,
            home.model.vocabulary,
            open_on_stream,
            max_step_tokens=config.streams.max_step_tokens,
            limit=region_plan.limit,
            gate=home.gate,
            by_sequence=context_options.partitioned,
            can_abandon=stream.options.device is Device.CPU,
            shift=shift,
            output_rows=context_options.outputs,
        )
        lanes.append(lane)
        if region_plan.keepers and lane.abilities.share:
            return lane, SharedRegion(region_plan, most_kept=int(config.kv.cached_share * region_plan.cells))
        region = Region(region_plan, can_roll_back=lane.abilities.roll_back)
        if not lane.abilities.copy or shift is not None:  # the cells of a full sequence change under whoever copies
            region.least_copy = region.limit + 1
        return lane, region

    pool = StreamPool(options, open_lane) if cuda is None else _LentPool(options, open_lane, cuda)
    return pool, lanes


def _shift(kv: KVConfig, model: Model, regions: Sequence[RegionPlan]) -> ContextShift | None:
    if not kv.context_shift:
        return None
    return ContextShift(min(region.limit for region in regions), kv.context_keep + model.vocabulary.adds_bos)

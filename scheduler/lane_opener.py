"""Opens the lanes, each with its region."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from llamalane.ids import Level
from llamalane.kvcache import Layout, Region, SharedRegion
from llamalane.kvcache.budget import RegionPlan
from llamalane.scheduler.config import EngineConfig, KVConfig, StreamsConfig
from llamalane.scheduler.embedding_assembly import OpenEmbeddingContext, open_embedding_lane
from llamalane.scheduler.homes import Home
from llamalane.scheduler.memory_needs import MemoryPlan
from llamalane.streams import ContextShift, Device, KVRegion, LaneBackend, Stream
from llamalane.streams.drafts import DraftOptions
from llamalane.streams.lane import Lane, StepContext
from llamalane.streams.llama import ContextOptions, Model

OpenContext = Callable[[Model, ContextOptions], StepContext]


class LaneOpener:
    """Opens the lane that runs on a stream, with its region. `lanes` are those that generate."""

    def __init__(
        self,
        config: EngineConfig,
        homes: Mapping[str, Home],
        memory: MemoryPlan,
        open_context: OpenContext,
        open_embedding_context: OpenEmbeddingContext,
        shift: ContextShift | None,
    ) -> None:
        self.lanes: list[Lane] = []
        self._config = config
        self._homes = homes
        self._regions = {lane.name: lane.region for lane in memory.lanes}
        self._embedding = {plan.name: plan for plan in memory.embedding}
        self._open_context = open_context
        self._open_embedding_context = open_embedding_context
        self._shift = shift

    def __call__(self, stream: Stream) -> tuple[LaneBackend, KVRegion]:
        """Open the lane on `stream`; raises what keeps it from opening."""
        home = self._homes[stream.options.name]
        if not stream.options.model:
            return self._open(stream, home)
        plan, flash = self._embedding[stream.options.model], self._config.kv.flash_attention
        return open_embedding_lane(stream, home, plan, self._open_embedding_context, flash_attention=flash)

    def _open(self, stream: Stream, home: Home) -> tuple[LaneBackend, KVRegion]:
        kv, plan = self._config.kv, self._regions[stream.options.name]
        options = context_options(self._config.streams, kv, plan, stream.options.threads)

        def open_on_stream() -> StepContext:
            with stream.lend():
                return self._open_context(home.model, options)

        lane = Lane(
            stream,
            home.model.vocabulary,
            open_on_stream,
            max_step_tokens=self._config.streams.max_step_tokens,
            limit=plan.limit,
            gate=home.gate,
            by_sequence=options.partitioned,
            can_abandon=stream.options.device is Device.CPU,
            shift=self._shift,
            output_rows=options.outputs,
            drafting=draft_options(self._config),
        )
        self.lanes.append(lane)
        if plan.keepers and lane.abilities.share:
            return lane, SharedRegion(plan, most_kept=int(kv.cached_share * plan.cells))
        region = Region(plan, can_roll_back=lane.abilities.roll_back, compact=kv.swap > 0)
        if not lane.abilities.copy or self._shift is not None:  # the cells of a full sequence change under copiers
            region.least_copy = region.limit + 1
        return lane, region


def context_options(config: StreamsConfig, kv: KVConfig, region: RegionPlan, threads: int) -> ContextOptions:
    """Return how the context of a lane that generates is created."""
    sequences = region.sequences + (region.keepers > 0)
    return ContextOptions(
        cells=region.cells,
        sequences=region.sequences,
        keepers=region.keepers,
        partitioned=region.layout is Layout.PARTITIONED,
        max_step_tokens=max(config.max_step_tokens, sequences),
        micro_batch=config.micro_batch,
        output_rows=max(config.output_rows, config.lookup.logit_rows(region.places)),
        threads=threads,
        key_type=kv.key_type,
        value_type=kv.value_type,
        flash_attention=kv.flash_attention,
    )


def draft_options(config: EngineConfig) -> DraftOptions | None:
    """Return how lanes that generate draft, None if they do not."""
    lookup, levels = config.streams.lookup, config.scheduler.levels
    if not lookup.draft_tokens:
        return None
    may = None if lookup.levels is None else frozenset(Level(levels[name]) for name in lookup.levels)
    return DraftOptions(lookup.draft_tokens, lookup.most_rows, may)

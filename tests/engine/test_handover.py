"""Prompts computed on one lane of real contexts, and their outputs on another."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llamalane.clock import MonotonicClock
from llamalane.errors import ConfigError, DeadlineExceededError, DecodeError, RequestCancelledError
from llamalane.kvcache import Layout
from llamalane.scheduler import (
    EngineConfig,
    EngineState,
    EventKind,
    KVConfig,
    LaneConfig,
    RequestHandle,
    RequestState,
    SamplingParameters,
    StreamsConfig,
    assembly,
)
from llamalane.scheduler.assembly import OpenContext
from llamalane.streams.cores import available_cores
from llamalane.streams.lane import StepContext
from llamalane.streams.llama import Abilities, Context, ContextOptions, Model
from tests.engine.running import (
    EXACT,
    PART,
    Follower,
    Gate,
    InterceptedContext,
    WatchedEngine,
    config_for,
    greedy,
    intercepted,
    seeded,
    tokens_of,
)
from tests.engine.teacher_forced import Judge, Solo, Written
from tests.engine.test_same_output import AT_MOST_TOLERATED, PROMPTS
from tests.models.tiny_gguf import Kind

pytestmark = pytest.mark.anyio

COUNT, TOKENS = 10, 24
PREFILL, DECODE = "prompts", "outputs"
APART = EXACT.model_copy(update={"layout": "partitioned"})

MakeDivided = Callable[..., WatchedEngine]
"""Makes engines of two lanes; takes a model's path, the lanes' places, and what `divided` takes."""


def divided(model: Path, places: tuple[int, int] = (2, 4), kv: KVConfig = EXACT, **scheduler: Any) -> EngineConfig:
    """A lane for prompts and one for outputs, with as many KV cells; every prompt that is not short is handed over."""
    settings = {"handover": "always", **scheduler}
    config = config_for(model, places=max(places), lanes=2, kv=kv, **settings)
    prompts = LaneConfig(name=PREFILL, places=places[0], threads=1, kv_weight=1, role="prefill")
    outputs = LaneConfig(name=DECODE, places=places[1], threads=1, kv_weight=1, role="decode")
    return config.model_copy(update={"streams": StreamsConfig(lanes=[prompts, outputs])})


@pytest.fixture(autouse=True)
def _a_core_for_each_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = available_cores()
    monkeypatch.setattr(assembly, "available_cores", lambda: (cores * 2)[: max(2, len(cores))])


@pytest.fixture
def make_divided(tiny_model: Path, engines: list[WatchedEngine]) -> MakeDivided:
    def make(
        model: Path = tiny_model,
        *,
        observer: Follower | None = None,
        open_context: OpenContext = Context,
        **options: Any,
    ) -> WatchedEngine:
        config = divided(model, **options)
        engine = WatchedEngine(config, clock=MonotonicClock(), observer=observer, open_context=open_context)
        engines.append(engine)
        return engine

    return make


def prompts() -> list[list[int]]:
    """Different ones, long enough to be handed over."""
    return [tokens_of(f"{number} {PROMPTS[number % len(PROMPTS)]}".ljust(80)) for number in range(COUNT)]


def samplings(kind: str) -> list[SamplingParameters]:
    if kind == "greedy":
        return [greedy(TOKENS) for _ in range(COUNT)]
    penalties = {"repeat_penalty": 1.3, "frequency_penalty": 0.2, "presence_penalty": 0.1}
    return [seeded(seed, TOKENS, **penalties) for seed in range(COUNT)]


async def ask_all(engine: WatchedEngine, kind: str) -> list[Written]:
    """Submit all prompts at once, and return what was written."""
    handles = [
        engine.submit_tokens_nowait(prompt, sampling=sampling)
        for prompt, sampling in zip(prompts(), samplings(kind), strict=True)
    ]
    results = [await handle for handle in handles]
    assert {result.timings.lane for result in results} == {DECODE}
    assert sum(result.timings.parks for result in results) == 0
    return [Written(tuple(prompt), result.tokens) for prompt, result in zip(prompts(), results, strict=True)]


def check(model: Path, kind: str, texts: list[Written]) -> None:
    with Solo(model) as solo:
        judge = Judge(solo, samplings(kind)[0])
        seeds = [sampling.seed or 0 for sampling in samplings(kind)]
        verdict = judge.judge(texts, seeds, judge.tolerance(texts[:8]))
    assert verdict.wrong == []
    assert verdict.tokens == COUNT * TOKENS
    assert verdict.tolerated <= AT_MOST_TOLERATED * verdict.tokens


@pytest.mark.parametrize("places", [(2, 4), (3, 3)])
@pytest.mark.parametrize("kind", ["greedy", "seeded"])
async def test_outputs_are_right_that_go_on_on_another_lane(
    make_divided: MakeDivided, tiny_model: Path, kind: str, places: tuple[int, int]
) -> None:
    kv = APART if places[0] == places[1] else EXACT
    async with make_divided(places=places, kv=kv) as engine:
        texts = await ask_all(engine, kind)
        statistics = engine.stats()
        layouts = {lane.region.partitioned for lane in engine.pool.lanes}
    assert layouts == {kv is APART}
    assert statistics.counters.handovers == COUNT
    assert not statistics.counters.parks
    assert all(lane.reserved_cells == lane.running == 0 for lane in statistics.lanes)
    check(tiny_model, kind, texts)


@pytest.mark.parametrize("kind", list(Kind))
async def test_every_kind_of_model_is_handed_over(
    make_divided: MakeDivided, tiny_models: Mapping[Kind, Path], kind: Kind
) -> None:
    async with make_divided(tiny_models[kind], handover="never") as engine:
        usual = [(await engine.generate(prompt, sampling=greedy(16))).tokens for prompt in prompts()]
        assert engine.stats().counters.handovers == 0
    async with make_divided(tiny_models[kind]) as engine:
        handles = [await engine.submit(prompt, sampling=greedy(16)) for prompt in prompts()]
        moved = [(await handle).tokens for handle in handles]
        assert engine.stats().counters.handovers == COUNT
    assert moved == usual


def failing_on(lane: str, step: int) -> OpenContext:
    """Open contexts of which that step of a lane fails, counted over all its contexts from 1."""
    steps = 0

    def before_step() -> None:
        nonlocal steps
        if threading.current_thread().name == f"llamalane-{lane}":
            steps += 1
            if steps == step:
                raise DecodeError(-3)

    return intercepted(before_step)


@pytest.mark.parametrize("lane", [PREFILL, DECODE])
@pytest.mark.parametrize("step", [1, 3, 6])
async def test_a_lane_that_fails_changes_no_output(
    make_divided: MakeDivided, tiny_model: Path, lane: str, step: int
) -> None:
    follower = Follower()
    async with make_divided(observer=follower, open_context=failing_on(lane, step)) as engine:
        handles = [
            engine.submit_tokens_nowait(prompt, sampling=sampling)
            for prompt, sampling in zip(prompts(), samplings("seeded"), strict=True)
        ]
        results = [await handle for handle in handles]
        await follower.wait_for(EventKind.LANE_READY)
    texts = [Written(tuple(prompt), result.tokens) for prompt, result in zip(prompts(), results, strict=True)]
    assert follower.count(EventKind.LANE_FAILED) == 1
    assert sum(result.timings.restarts for result in results) > 0
    check(tiny_model, "seeded", texts)


class Held:
    """Lanes that wait before each step until they are let go on, each by a gate of its own."""

    def __init__(self) -> None:
        self.gates = {PREFILL: Gate(), DECODE: Gate()}

    def pass_through(self) -> None:
        self.gates[threading.current_thread().name.removeprefix("llamalane-")].pass_through()

    def open(self) -> None:
        for gate in self.gates.values():
            gate.open()


async def at_stage(stage: str, engine: WatchedEngine, held: Held, follower: Follower, **options: Any) -> RequestHandle:
    """Bring a request to a stage of its handover, with the only place for outputs taken, and return it."""
    first = engine.submit_tokens_nowait(tokens_of("short"), sampling=greedy(100))
    await follower.wait_for(EventKind.ADMITTED, first.id)
    handle = engine.submit_tokens_nowait(prompts()[0], sampling=greedy(40), **options)
    await follower.wait_for(EventKind.ADMITTED, handle.id)
    if stage == "its prompt is computed":
        return handle
    held.gates[PREFILL].let(2)
    await follower.wait_for(EventKind.STEP, times=2)
    assert len(handle._request.generated) == 1
    if stage == "its cells are to be saved":
        return handle
    held.gates[PREFILL].open()
    await follower.wait_for(EventKind.HANDED_OVER, handle.id)
    if stage == "it waits":
        return handle
    first.cancel()
    held.gates[DECODE].open()
    await follower.wait_for(EventKind.ADMITTED, handle.id, times=2)
    return handle


STAGES = ["its prompt is computed", "its cells are to be saved", "it waits", "it goes on"]


@pytest.mark.parametrize("stage", STAGES)
async def test_it_can_be_cancelled_at_every_stage(make_divided: MakeDivided, stage: str) -> None:
    held, follower = Held(), Follower()
    async with make_divided(places=(1, 1), observer=follower, open_context=intercepted(held.pass_through)) as engine:
        try:
            handle = await at_stage(stage, engine, held, follower)
            handle.cancel()
        finally:
            held.open()
        with pytest.raises(RequestCancelledError):
            await handle
        await engine.drain()


async def test_a_deadline_passes_while_it_waits(make_divided: MakeDivided) -> None:
    held, follower = Held(), Follower()
    async with make_divided(places=(1, 1), observer=follower, open_context=intercepted(held.pass_through)) as engine:
        try:
            handle = await at_stage("it waits", engine, held, follower, deadline=2.0)
            assert handle.state is RequestState.WAITING
            with pytest.raises(DeadlineExceededError):
                await handle
            assert engine.scheduler.rules.costs.store.reserved_bytes == 0
        finally:
            held.open()


async def test_sequences_that_are_shifted_can_be_handed_over(make_divided: MakeDivided) -> None:
    kv = APART.model_copy(update={"context_shift": True})
    prompt = prompts()[0] * 4
    async with make_divided(places=(1, 1), kv=kv) as engine:
        result = await engine.generate(prompt[: PART - 4], sampling=greedy(PART))
        full = await engine.generate(prompt[: PART - 1], sampling=greedy(20), tenant="another")
        statistics = engine.stats()
    assert len(result.tokens) == PART
    assert result.timings.lane == DECODE
    assert (len(full.tokens), full.timings.lane) == (20, DECODE)
    assert statistics.counters.handovers == 1, "the lane that computes the prompt has to shift it at once"


# What is refused


class NoSwapContext(InterceptedContext):
    """A context of a model whose sequences cannot be put back."""

    def probe(self) -> Abilities:
        return replace(super().probe(), swap=False)


def without_swap(model: Model, options: ContextOptions) -> StepContext:
    return NoSwapContext(Context(model, options), lambda: None)


async def test_a_model_that_cannot_be_saved_is_refused(make_divided: MakeDivided) -> None:
    engine = make_divided(open_context=without_swap)
    with pytest.raises(ConfigError, match="sequences of this model cannot be saved on one lane"):
        await engine.__aenter__()
    assert engine.state is EngineState.CLOSED
    async with make_divided(open_context=without_swap, handover="never") as usual:
        assert len((await usual.generate(prompts()[0], sampling=greedy(4))).tokens) == 4


@pytest.mark.parametrize(
    ("kv", "told"),
    [
        (APART, "kv.layout is partitioned, and the lanes have 2 and 4 sequences: .* as many places, or .* to paged"),
        (EXACT.model_copy(update={"swap": 0}), "kv.swap is 0, and prompts are handed over .* through host memory"),
    ],
    ids=["layout", "memory"],
)
async def test_lanes_that_cannot_exchange_sequences_are_refused(tiny_model: Path, kv: KVConfig, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        assembly.plan(divided(tiny_model, kv=kv))
    assembly.plan(divided(tiny_model, kv=kv, handover="never"))


@pytest.mark.parametrize(("places", "layout"), [((2, 4), Layout.PAGED), ((3, 3), Layout.PARTITIONED)])
async def test_lanes_are_paged_where_they_could_not_exchange_sequences(
    tiny_model: Path, places: tuple[int, int], layout: Layout
) -> None:
    config = divided(tiny_model, places, kv=EXACT.model_copy(update={"layout": "auto"}))
    config = config.model_copy(update={"kv": config.kv.model_copy(update={"budget": 16 * 1024})})
    assert {region.layout for region in assembly.plan(config).regions} == {layout}


@pytest.mark.parametrize("places", [(2, 128), (2, 256)])
async def test_cells_are_put_back_on_lanes_of_very_many_places(
    make_divided: MakeDivided, places: tuple[int, int]
) -> None:
    """Such a lane has few ids left, or none, for sequences beyond those that run."""
    async with make_divided(places=places) as engine:
        await ask_all(engine, "greedy")
        counters = engine.stats().counters
    assert counters.handovers == COUNT
    assert counters.parked_bytes_in == counters.parked_bytes_out > 0

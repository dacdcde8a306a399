"""What is kept of prompts changes no output: on its lane, in host memory and back, beside requests that give way."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from llamalane.kvcache import Layout
from llamalane.scheduler import EventKind, KVConfig, RequestHandle
from llamalane.scheduler.parking import ParkingCosts
from tests.engine.conftest import MakeEngine
from tests.engine.running import EXACT, Follower, Gate, WatchedEngine, greedy, intercepted, tokens_of
from tests.engine.teacher_forced import Judge, Solo, Written

pytestmark = pytest.mark.anyio

DOCUMENT = "The llama is a domesticated South American camelid. " * 4
PLACES = 2
TOKENS = 16
SAMPLING = greedy(TOKENS)
AT_MOST_TOLERATED = 0.01


@pytest.fixture(autouse=True)
def saving_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether saving beats computing is measured, and no measurement is to decide what a test sees."""
    monkeypatch.setattr(ParkingCosts, "swap_seconds", lambda costs, cells: 0.0)


def kv_for(layout: Layout, spare: int = 0) -> KVConfig:
    return EXACT.model_copy(update={"layout": layout.value, "spare_sequences": spare})


async def written(handle: RequestHandle) -> Written:
    return Written(tuple(handle._request.tokens), (await handle).tokens)


async def ask(engine: WatchedEngine, prompt: str | Sequence[int], tenant: str = "") -> tuple[Written, int]:
    """Ask alone; returns what was written, and how many tokens of the prompt were not computed."""
    handle = await engine.submit(prompt, sampling=SAMPLING, tenant=tenant)
    return await written(handle), (await handle).usage.cached_tokens


async def give_the_places_to_others(engine: WatchedEngine) -> list[Written]:
    """Let others take so many cells that nothing of what was kept can stay, and be gone in their turn."""
    return [(await ask(engine, f"{number} other. " * 20, f"other-{number}"))[0] for number in range(3 * PLACES)]


def check(model: Path, texts: list[Written]) -> None:
    """Check every token of at least 8 texts."""
    with Solo(model) as solo:
        judge = Judge(solo, SAMPLING)
        verdict = judge.judge(texts, [0] * len(texts), judge.tolerance(texts[:8]))
    assert verdict.wrong == []
    assert verdict.tokens == TOKENS * len(texts)
    assert verdict.tolerated <= AT_MOST_TOLERATED * verdict.tokens


@pytest.mark.parametrize("layout", Layout)
async def test_outputs_with_hits_pass_the_check(make_engine: MakeEngine, tiny_model: Path, layout: Layout) -> None:
    async with make_engine(places=4, part=512, kv=kv_for(layout)) as engine:
        handles = [await engine.submit(DOCUMENT + f"Question {one}?", sampling=SAMPLING) for one in range(10)]
        texts = [await written(handle) for handle in handles]
        cached = [(await handle).usage.cached_tokens for handle in handles]
    assert sum(count >= len(DOCUMENT) for count in cached) == 9
    check(tiny_model, texts)


@pytest.mark.parametrize("layout", Layout)
async def test_the_next_turn_is_served_from_host_memory(
    make_engine: MakeEngine, tiny_model: Path, layout: Layout
) -> None:
    async with make_engine(places=PLACES, part=512, kv=kv_for(layout)) as engine:
        first, cached = await ask(engine, DOCUMENT)
        assert cached == 0
        others = await give_the_places_to_others(engine)
        assert engine.stats().restored_tokens == 0
        second, cached = await ask(engine, [*first.prompt, *first.output, *tokens_of(" And then?")[1:]])
        held = len(first.prompt) + TOKENS - 1
        assert cached == held
        assert held - 4 <= engine.stats().restored_tokens <= held, "a few tokens at its beginning may be there"
        assert engine.stats().counters.cached_tokens >= held
    check(tiny_model, [first, *others, second])


@pytest.mark.parametrize("layout", Layout)
async def test_a_prefix_of_what_is_in_host_memory_is_put_back(
    make_engine: MakeEngine, tiny_model: Path, layout: Layout
) -> None:
    """The saved sequence goes on otherwise, so that its end is dropped."""
    async with make_engine(places=PLACES, part=512, kv=kv_for(layout)) as engine:
        first, _ = await ask(engine, DOCUMENT + "What does it eat?")
        others = await give_the_places_to_others(engine)
        second, cached = await ask(engine, DOCUMENT + "Where does it live?")
        assert len(DOCUMENT) <= cached < len(first.prompt)
        assert engine.stats().restored_tokens > len(DOCUMENT) // 2
    check(tiny_model, [first, *others, second])


@pytest.mark.parametrize("layout", Layout)
async def test_several_that_want_the_same_put_it_back_once(
    make_engine: MakeEngine, tiny_model: Path, layout: Layout
) -> None:
    async with make_engine(places=PLACES, part=512, kv=kv_for(layout)) as engine:
        first, _ = await ask(engine, DOCUMENT + "What does it eat?")
        others = await give_the_places_to_others(engine)
        handles = [await engine.submit(DOCUMENT + f"Question {one}?", sampling=SAMPLING) for one in range(PLACES)]
        texts = [await written(handle) for handle in handles]
        assert min([(await handle).usage.cached_tokens for handle in handles]) >= len(DOCUMENT)
        assert engine.stats().restored_tokens < 1.5 * len(DOCUMENT)
    check(tiny_model, [first, *others, *texts])


@pytest.mark.parametrize("layout", Layout)
async def test_damaged_cells_are_computed_again(make_engine: MakeEngine, tiny_model: Path, layout: Layout) -> None:
    """Nobody else is harmed: who runs beside it, and who wants the same, gets the right output."""
    async with make_engine(places=PLACES, part=512, kv=kv_for(layout)) as engine:
        first, _ = await ask(engine, DOCUMENT)
        others = await give_the_places_to_others(engine)
        damage_all_that_is_stored(engine)
        neighbour = await engine.submit("Somebody else's prompt", sampling=SAMPLING, tenant="neighbour")
        second = await engine.submit(DOCUMENT + "And then?", sampling=SAMPLING)
        texts = [await written(neighbour), await written(second)]
        assert (await second).usage.cached_tokens < len(DOCUMENT) // 4
        third, cached = await ask(engine, DOCUMENT + "And then?")
        assert cached == len(third.prompt) - 1, "what was computed instead is kept as ever"
        assert engine.stats().counters.failed == engine.stats().lanes[0].failures == 0
    check(tiny_model, [first, *others, *texts, third])


def damage_all_that_is_stored(engine: WatchedEngine) -> None:
    """Turn one bit of everything that is kept in host memory."""
    entries = engine.scheduler.rules.costs.store._entries
    assert entries
    for entry in entries.values():
        assert isinstance(entry.data, bytearray)
        entry.data[len(entry.data) // 2] ^= 1


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("park", ["pause", "swap", "recompute"])
async def test_who_shares_a_prefix_can_give_way(
    make_engine: MakeEngine, tiny_model: Path, park: str, layout: Layout
) -> None:
    """The requests that give way share their beginning with others, that go on meanwhile."""
    places = 8
    gate, follower = Gate(), Follower()
    async with make_engine(
        places=places,
        part=512,
        park=park,
        kv=kv_for(layout, spare=places),
        observer=follower,
        open_context=intercepted(gate.pass_through),
    ) as engine:
        with gate:
            batch = [
                await engine.submit(DOCUMENT + f"Question {one}?", sampling=SAMPLING, priority="batch")
                for one in range(places)
            ]
            for steps in (4, 9):  # the second time after some of them have been parked and have gone on
                gate.let(steps)
                await follower.wait_for(EventKind.STEP, times=steps)
                for number in range(2):
                    urgent = await engine.submit(
                        "urgent", sampling=greedy(3), priority="interactive", tenant=f"{steps} {number}"
                    )
                    await follower.wait_for(EventKind.ADMITTED, urgent.id)
        texts = [await written(handle) for handle in batch]
        cached = [(await handle).usage.cached_tokens for handle in batch]
        parks = engine.stats().counters.parks
        assert parks.keys() == {park}
        assert parks[park] >= 2
    assert sum(count >= len(DOCUMENT) for count in cached) >= places - 3
    check(tiny_model, texts)


async def test_a_conversation_goes_on_beside_others_with_what_it_kept_elsewhere(
    make_engine: MakeEngine, tiny_model: Path
) -> None:
    """Where each sequence has its part of the cells, its own are copied to a place next to one that runs."""
    kv = kv_for(Layout.PARTITIONED)
    async with make_engine(places=4, part=512, kv=kv) as engine:
        handles = [await engine.submit(f"{number} conversation. " * 8, sampling=SAMPLING) for number in range(4)]
        texts = [await written(handle) for handle in handles]
        other = await engine.submit("somebody else", sampling=greedy(200))
        await anext(aiter(other))
        assert other._request.lease is not None
        beside = other._request.lease.sequence
        turns = []
        for text in texts:
            turn = await engine.submit([*text.prompt, *text.output, *tokens_of(" And?")[1:]], sampling=SAMPLING)
            await anext(aiter(turn))
            assert turn._request.lease is not None
            assert abs(turn._request.lease.sequence - beside) == 1
            turns.append(await written(turn))
            assert (await turn).usage.cached_tokens >= len(text.prompt), "computed for another, or kept: never anew"
        other.cancel()
    check(tiny_model, [*texts, *turns])

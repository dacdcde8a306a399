"""The KV cells are enough for a part of what requests come to hold together, and all get to their ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from llamalane.scheduler import EventKind, RequestHandle
from llamalane.scheduler.growth import ENOUGH
from llamalane.scheduler.request import BLOCK
from tests.engine.conftest import MakeEngine
from tests.engine.running import Follower, Gate, WatchedEngine, greedy, intercepted, tokens_of
from tests.engine.teacher_forced import Judge, Solo, Written
from tests.engine.test_same_output import AT_MOST_TOLERATED, PROMPTS

pytestmark = pytest.mark.anyio

PLACES = 8
EACH = 128
"""Tokens that every request has in the end."""
CELLS = 6 * EACH
PROMPT = 42
SAMPLING = greedy(EACH - PROMPT)
SHORT = greedy(2)
EARLY = 4
"""So many steps after the start, before cells run out, an urgent request comes."""


@pytest.fixture(scope="module")
def judge(tiny_model: Path) -> Iterator[Judge]:
    """Knows what an undisturbed context writes; remembers it from test to test."""
    with Solo(tiny_model) as solo:
        yield Judge(solo, SAMPLING)


def prompts(count: int) -> list[list[int]]:
    """Different ones, `PROMPT` tokens each."""
    texts = [f"{number:02} {PROMPTS[number % len(PROMPTS)]}" for number in range(count)]
    return [tokens_of(text.ljust(PROMPT - 1)) for text in texts]


async def teach_short_outputs(engine: WatchedEngine) -> None:
    """Let the engine expect that outputs at the level of the batch are short, so that it admits as many as it can."""
    for number in range(ENOUGH):
        await engine.generate([5 + number], sampling=SHORT, priority="batch")


async def written(handle: RequestHandle) -> Written:
    return Written(tuple(handle._request.tokens), (await handle).tokens)


@pytest.mark.parametrize("park", ["pause", "swap", "recompute", "auto"])
@pytest.mark.parametrize("times", [2, 4])
async def test_all_requests_get_to_their_ends_with_cells_for_a_part_of_them(
    make_engine: MakeEngine, judge: Judge, times: int, park: str
) -> None:
    """They come to hold twice, or four times, as many tokens together as there are cells."""
    count = times * CELLS // EACH
    assert PLACES * (PROMPT + BLOCK) <= CELLS < PLACES * EACH, "so many may start, and outgrow the cells"
    gates, follower = [Gate(), Gate()], Follower()
    async with make_engine(
        places=PLACES,
        part=CELLS // PLACES,
        park=park,
        observer=follower,
        open_context=intercepted(lambda: gates[0].pass_through()),
    ) as engine:
        gates[0].open()
        await teach_short_outputs(engine)
        del gates[0]
        taught = follower.count(EventKind.STEP)
        with gates[0]:
            batch = [
                engine.submit_tokens_nowait(tokens, sampling=SAMPLING, priority="batch", tenant=str(number))
                for number, tokens in enumerate(prompts(count))
            ]
            gates[0].let(EARLY)
            await follower.wait_for(EventKind.STEP, times=taught + EARLY)
            urgent = await engine.submit("urgent", sampling=SHORT, priority="interactive")
            await follower.wait_for(EventKind.ADMITTED, urgent.id)
        texts = [await written(handle) for handle in batch]
        assert len((await urgent).tokens) == SHORT.max_tokens
        counters = engine.stats().counters
    assert counters.finished == ENOUGH + count + 1
    assert counters.failed == counters.cancelled == 0
    # For the urgent request, cells can stay; where they run out, they cannot.
    for_place, for_cells = counters.parks["pause"], counters.parks["swap"] + counters.parks["recompute"]
    match park:
        case "swap" | "recompute":
            assert counters.parks.keys() == {park}
            assert counters.parks[park] > 1
        case _:
            assert for_place == 1
            assert for_cells >= 1
    check(judge, texts)


def check(judge: Judge, texts: list[Written]) -> None:
    """Check every token."""
    verdict = judge.judge(texts, [0] * len(texts), judge.tolerance(texts[:8]))
    assert verdict.wrong == []
    assert verdict.tokens == sum(len(text.output) for text in texts)
    assert verdict.tolerated <= AT_MOST_TOLERATED * verdict.tokens

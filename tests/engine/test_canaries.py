"""Tenants with secrets in their prompts, on an engine that shares, parks, stows and restores all the time.

The tiny model's output is noise and repeats no secret. But each output has to be what its own prompt gives, so that
cells of somebody else's would show: every token is checked against an undisturbed context.
"""

from __future__ import annotations

import itertools
import math
import random
import string
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from llamalane.kvcache import Layout, common_prefix
from llamalane.scheduler import EventKind, KVConfig, RequestHandle, Result
from llamalane.scheduler.parking import ParkingCosts
from llamalane.scheduler.stowage import LEAST_TOKENS
from tests.engine.conftest import MakeEngine
from tests.engine.running import EXACT, Follower, WatchedEngine, greedy
from tests.engine.teacher_forced import Judge, Solo, Written

pytestmark = pytest.mark.anyio

TENANTS = [f"tenant-{number}" for number in range(8)]
SYSTEM = "Keep what you are told to yourself, and answer in one short sentence. "
"""All prompts begin with it."""
QUESTIONS = ["Who are you?", "What is my secret?", "Where does the llama live, and what does it eat there?"]
REQUESTS = 500
WAVE = 20
PLACES = 4
TOKENS = 8
CANCELLED = 0.1
PUBLIC = 0.3
"""So many prompts have no secret in them: all tenants send the same."""
AT_MOST_TOLERATED = 0.01
SPARE = 1
"""Only one more than run can be paused; the others have to give up their cells."""
PARTS = {Layout.PAGED: 192, Layout.PARTITIONED: 320}
"""KV cells for each place: paged, too few for what runs and is kept; partitioned, 256 for each sequence."""


@pytest.fixture(autouse=True)
def costs_that_change_their_mind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let saving cost nothing at two questions, and more than anything at the third: every way of parking is gone."""
    answers = itertools.cycle([0.0, 0.0, math.inf])
    monkeypatch.setattr(ParkingCosts, "swap_seconds", lambda costs, cells: next(answers))


@dataclass
class Tenants:
    """What each of them has asked and got so far."""

    draw: random.Random
    secrets: dict[str, str] = field(init=False)
    asked: dict[str, list[RequestHandle]] = field(init=False)
    written: list[Written] = field(default_factory=list)
    hits: int = 0

    def __post_init__(self) -> None:
        self.secrets = {tenant: "".join(self.draw.choices(string.ascii_letters, k=24)) for tenant in TENANTS}
        self.asked = {tenant: [] for tenant in TENANTS}

    async def ask(self, engine: WatchedEngine, count: int, levels: Sequence[int]) -> list[RequestHandle]:
        """Let some of them ask, most with their secret in the prompt."""
        handles = []
        for _ in range(count):
            tenant, level = self.draw.choice(TENANTS), self.draw.choice(levels)
            secret = "" if self.draw.random() < PUBLIC else f"My secret is {self.secrets[tenant]}. "
            prompt = SYSTEM + secret + self.draw.choice(QUESTIONS) * self.draw.randint(1, 2)
            handle = await engine.submit(prompt, sampling=greedy(TOKENS), tenant=tenant, priority=level)
            self.asked[tenant].append(handle)
            handles.append(handle)
        return handles

    async def take(self, handles: Sequence[RequestHandle]) -> None:
        """Wait for the ends of requests."""
        outcomes = [(handle, await handle._request.delivery.wait_closed()) for handle in handles]
        for handle, outcome in outcomes:
            if isinstance(outcome, Result):
                self._check_hit(handle, outcome)
                self.written.append(Written(tuple(handle._request.tokens), outcome.tokens))

    def _check_hit(self, handle: RequestHandle, result: Result) -> None:
        """Check that a request was spared no more than its tenant has in common with itself."""
        request = handle._request
        own = [other._request.history for other in self.asked[request.tenant] if other is not handle]
        most = max((common_prefix(request.tokens, tokens) for tokens in own), default=0)
        assert result.usage.cached_tokens <= most
        self.hits += result.usage.cached_tokens > 0


@pytest.mark.parametrize("layout", Layout)
async def test_nothing_of_one_tenant_shows_in_the_output_of_another(
    make_engine: MakeEngine, tiny_model: Path, layout: Layout
) -> None:
    draw = random.Random(8)
    tenants, follower = Tenants(draw), Follower()
    async with make_engine(places=PLACES, part=PARTS[layout], kv=kv_for(layout), observer=follower) as engine:
        for _ in range(REQUESTS // WAVE):
            started = follower.count(EventKind.STARTED)
            handles = await tenants.ask(engine, WAVE - PLACES, levels=[3, 4, 5])
            await follower.wait_for(EventKind.STARTED, times=started + PLACES)
            handles += await tenants.ask(engine, PLACES, levels=[1, 2])
            for handle in draw.sample(handles, int(CANCELLED * WAVE)):
                handle.cancel()
            await tenants.take(handles)
        statistics = engine.stats()
        store = engine.scheduler.rules.costs.store.statistics()
    counters = statistics.counters
    assert counters.failed == statistics.lanes[0].failures == 0
    assert counters.finished + counters.cancelled == REQUESTS
    assert {"pause", "swap", "recompute"} <= counters.parks.keys()
    assert min(counters.cancelled, tenants.hits, statistics.restored_tokens // LEAST_TOKENS, store.entries) > 10
    check(tiny_model, tenants.written)


@pytest.mark.parametrize("layout", Layout)
async def test_what_other_tenants_have_sent_is_computed_again(make_engine: MakeEngine, layout: Layout) -> None:
    """Whether it is still on the lane, in host memory, or both."""
    prompt = SYSTEM + QUESTIONS[-1]
    async with make_engine(places=PLACES, part=PARTS[layout], kv=kv_for(layout)) as engine:
        for tenant in TENANTS:
            first = await engine.generate(prompt, sampling=greedy(TOKENS), tenant=tenant)
            assert first.usage.cached_tokens == 0, f"{tenant} got what another tenant sent"
            again = await engine.generate(prompt, sampling=greedy(TOKENS), tenant=tenant)
            assert again.usage.cached_tokens > len(SYSTEM)
        assert len(engine.scheduler.rules.costs.store) > 0
        assert engine.stats().counters.cached_tokens == len(TENANTS) * len(prompt)


def kv_for(layout: Layout) -> KVConfig:
    return EXACT.model_copy(update={"layout": layout.value, "spare_sequences": SPARE})


def check(model: Path, texts: list[Written]) -> None:
    with Solo(model) as solo:
        judge = Judge(solo, greedy(TOKENS))
        verdict = judge.judge(texts, [0] * len(texts), judge.tolerance(texts[:8]))
    assert verdict.wrong == []
    assert verdict.tokens == TOKENS * len(texts)
    assert verdict.tolerated <= AT_MOST_TOLERATED * verdict.tokens

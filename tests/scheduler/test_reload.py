"""What changes while a scheduler runs, and what has to wait for a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llamalane.errors import ConfigError, InvalidRequestError, QueueFullError, TenantLimitError
from llamalane.scheduler import Changes, EngineConfig, LaneConfig, ModelConfig, SchedulerConfig, StreamsConfig
from llamalane.scheduler.fairness import Fairness, Weights
from llamalane.scheduler.limits import TenantLimit, TenantLimits
from llamalane.scheduler.priority import LEVELS
from llamalane.scheduler.reload import engine_changes, merge
from tests.scheduler.harness import Start


def config(model: str = "m.gguf", places: int = 8, **scheduler: Any) -> EngineConfig:
    return EngineConfig(
        models=[ModelConfig(path=Path(model))],
        streams=StreamsConfig(lanes=[LaneConfig(places=places)]),
        scheduler=SchedulerConfig(**scheduler),
    )


def test_nothing_differs_between_equal_configurations() -> None:
    assert engine_changes(config(), config()) == Changes()


def test_what_differs_is_told_by_name_and_by_what_it_takes() -> None:
    new = config(
        "other.gguf",
        places=4,
        target_itl=0.1,
        ceiling=2,
        tenants={"a": {"weight": 2}},
        queue={"max_requests": 5, "overflow": "shed"},
        other_tenants={"concurrent": 1},
    )
    changes = engine_changes(config(), new)
    assert set(changes.applied) == {
        "scheduler.target_itl",
        "scheduler.tenants",
        "scheduler.queue.max_requests",
        "scheduler.queue.overflow",
        "scheduler.other_tenants.concurrent",
    }
    assert set(changes.restart) == {"models", "streams.lanes", "scheduler.ceiling"}


def test_merging_takes_over_what_can_be_and_nothing_else() -> None:
    old = SchedulerConfig()
    merged = merge(old, SchedulerConfig(target_itl=0.1, ceiling=1, level_targets={"batch": 2.0}))
    assert merged == old.model_copy(update={"target_itl": 0.1, "level_targets": {"batch": 2.0}})


def test_what_does_not_go_with_the_settings_that_stay_is_refused() -> None:
    new = SchedulerConfig(levels={"only": 3}, default_level="only", queue={"reserve": {"only": 1}})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^scheduler\.queue\.reserve\.only: 'only' is none of the levels.*restart"):
        merge(SchedulerConfig(), new)


def test_queue_bounds_hold_for_who_comes_next_and_nobody_is_turned_out(start: Start) -> None:
    harness = start([1])
    waiting = [harness.submit(3, max_tokens=2) for _ in range(4)]
    harness.tick()
    harness.scheduler.reload(SchedulerConfig(queue={"max_requests": 2}))  # type: ignore[arg-type]
    with pytest.raises(QueueFullError) as caught:
        harness.submit(3)
    assert caught.value.limit == 2
    harness.scheduler.reload(SchedulerConfig(queue={"max_requests": 20}))  # type: ignore[arg-type]
    waiting.append(harness.submit(3, max_tokens=2))
    harness.finish()
    assert harness.scheduler.counters.finished == len(waiting)


def test_targets_hold_from_the_next_plan_on(start: Start) -> None:
    def prefill_tokens(harness: Any) -> int:
        harness.submit(3, prompt="p" * 40, max_tokens=1)
        harness.tick()
        assert harness.lane.plan is not None
        tokens: int = harness.lane.plan.prefill_tokens
        harness.step(8)
        return tokens

    harness = start([2], limit=512, target_itl=0.03)
    harness.submit(3, max_tokens=100)
    harness.tick()
    harness.step(20)  # it learns how quick the lane is
    before = prefill_tokens(harness)
    harness.scheduler.reload(SchedulerConfig(target_itl=0.3))
    assert prefill_tokens(harness) > 2 * before
    harness.scheduler.reload(SchedulerConfig(target_itl=0.3, level_targets={"normal": 0.03}))
    assert prefill_tokens(harness) < 2 * before
    harness.finish()


def test_tenant_limits_hold_for_who_comes_next(start: Start) -> None:
    harness = start([4])
    harness.submit(3, tenant="a")
    harness.scheduler.reload(SchedulerConfig(tenants={"a": {"concurrent": 1}}))  # type: ignore[dict-item]
    with pytest.raises(TenantLimitError):
        harness.submit(3, tenant="a")
    harness.submit(3, tenant="b")
    harness.scheduler.reload(SchedulerConfig())
    harness.submit(3, tenant="a")
    harness.finish()


def test_what_was_used_of_a_minutes_tokens_stays_used() -> None:
    limits = TenantLimits({"a": TenantLimit(tokens_per_minute=600)})
    limits.enter_nowait("a", 300, now=0.0)
    limits.set_limits({"a": TenantLimit(tokens_per_minute=1200)}, TenantLimit(), now=0.0)
    with pytest.raises(TenantLimitError) as caught:
        limits.enter_nowait("a", 1000, now=0.0)
    assert caught.value.retry_after == pytest.approx(100 * 60 / 1200, abs=0.01)
    limits.enter_nowait("a", 900, now=0.0)
    limits.set_limits({"a": TenantLimit(tokens_per_minute=60)}, TenantLimit(), now=0.0)
    with pytest.raises(InvalidRequestError):
        limits.enter_nowait("a", 61, now=0.0)


def test_a_permit_from_before_a_limit_is_not_refunded_what_it_was_not_charged() -> None:
    limits = TenantLimits({})
    early = limits.enter_nowait("a", 500, now=0.0)
    limits.set_limits({"a": TenantLimit(tokens_per_minute=600)}, TenantLimit(), now=1.0)
    limits.enter_nowait("a", 600, now=1.0)
    early.release(early.tokens, now=1.0)
    with pytest.raises(TenantLimitError):
        limits.enter_nowait("a", 300, now=1.0)


def test_tenants_are_forgotten_by_the_new_limits() -> None:
    limits = TenantLimits({"a": TenantLimit(tokens_per_minute=60), "b": TenantLimit(tokens_per_minute=60)})
    for tenant in "ab":
        limits.enter_nowait(tenant, 60, now=0.0).release(0, now=0.0)
    assert len(limits) == 2
    limits.set_limits({"a": TenantLimit(tokens_per_minute=600)}, TenantLimit(), now=0.0)
    assert len(limits) == 1
    limits.enter_nowait("c", 1, now=7.0).release(0, now=7.0)
    assert len(limits) == 0


def test_weights_divide_what_is_served_from_now_on() -> None:
    fairness = Fairness(Weights({"a": 2.0}))
    level = LEVELS[2]
    fairness.charge(level, "a", prompt_tokens=100)
    fairness.weights.become(Weights({"a": 4.0, "b": 0.5}))
    fairness.charge(level, "a", prompt_tokens=100)
    fairness.charge(level, "b", prompt_tokens=100)
    assert fairness.at(level).counter("a") == 50 + 25
    assert fairness.at(level).counter("b") == 200
    fairness.weights.become(Weights({"a": 4.0}, default=2.0))
    fairness.charge(level, "b", prompt_tokens=100)
    assert fairness.at(level).counter("b") == 250

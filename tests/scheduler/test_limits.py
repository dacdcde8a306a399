"""What a tenant may have under way."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamalane.errors import InvalidRequestError, TenantLimitError
from llamalane.scheduler.limits import TenantLimit, TenantLimits, TenantPermit

PER_MINUTE = 60 * 4
"""Four tokens a second, so that all moments of the oracle are exact."""
TENANTS = {
    "requests": TenantLimit(concurrent=2),
    "tokens": TenantLimit(tokens_per_minute=PER_MINUTE),
    "both": TenantLimit(concurrent=3, tokens_per_minute=PER_MINUTE),
    "free": TenantLimit(),
}


def enter_all(limits: TenantLimits, tenant: str, *tokens: int, now: float = 0.0) -> list[TenantPermit]:
    return [limits.enter_nowait(tenant, size, now) for size in tokens]


def test_a_tenant_has_so_many_requests_at_once() -> None:
    limits = TenantLimits({"me": TenantLimit(concurrent=2)})
    first, _ = enter_all(limits, "me", 1, 1)
    with pytest.raises(TenantLimitError, match="2 requests waiting or running") as caught:
        limits.enter_nowait("me", 1, now=0.0)
    assert (caught.value.tenant, caught.value.reason, caught.value.limit) == ("me", "concurrent", 2)
    assert limits.enter_nowait("you", 1, now=0.0)
    first.release(0, now=5.0)
    assert limits.enter_nowait("me", 1, now=5.0)
    assert limits.under_way("me") == 2


def test_a_tenant_has_so_many_tokens_a_minute() -> None:
    limits = TenantLimits({"me": TenantLimit(tokens_per_minute=600)})
    enter_all(limits, "me", 400, 200)
    with pytest.raises(TenantLimitError, match="600 tokens a minute") as caught:
        limits.enter_nowait("me", 100, now=0.0)
    assert caught.value.reason == "tokens_per_minute"
    assert caught.value.retry_after == pytest.approx(10, abs=0.01)
    with pytest.raises(TenantLimitError):
        limits.enter_nowait("me", 100, now=9.9)
    assert limits.enter_nowait("me", 100, now=caught.value.retry_after)


def test_tokens_that_were_not_generated_are_given_back() -> None:
    limits = TenantLimits({"me": TenantLimit(tokens_per_minute=600)})
    (permit,) = enter_all(limits, "me", 600)
    permit.release(unused=500, now=0.0)
    permit.release(unused=500, now=0.0)
    assert limits.enter_nowait("me", 500, now=0.0)
    with pytest.raises(TenantLimitError):
        limits.enter_nowait("me", 1, now=0.0)


def test_what_can_never_fit_is_refused_for_good_with_both_numbers() -> None:
    limits = TenantLimits({}, default=TenantLimit(tokens_per_minute=600))
    with pytest.raises(InvalidRequestError, match=r"601 tokens .* 600 tokens a minute") as caught:
        limits.enter_nowait("anybody", 601, now=0.0)
    assert caught.value.param == "max_tokens"
    assert len(limits) == 0


def test_a_refusal_tells_when_both_limits_are_met() -> None:
    limits = TenantLimits({"me": TenantLimit(concurrent=1, tokens_per_minute=600)})
    enter_all(limits, "me", 600)
    with pytest.raises(TenantLimitError) as caught:
        limits.enter_nowait("me", 300, now=0.0)
    assert caught.value.reason == "tokens_per_minute", "its tokens take longer than its request is likely to"
    assert caught.value.retry_after == pytest.approx(30, abs=0.01)


def test_a_full_tenant_is_told_when_one_of_its_requests_is_likely_to_end() -> None:
    limits = TenantLimits({"me": TenantLimit(concurrent=2)})
    for _ in range(20):
        limits.enter_nowait("you", 1, now=0.0).release(0, now=10.0)
    limits.enter_nowait("me", 1, now=12.0)
    limits.enter_nowait("me", 1, now=15.0)
    with pytest.raises(TenantLimitError) as caught:
        limits.enter_nowait("me", 1, now=16.0)
    assert caught.value.retry_after == pytest.approx(6, abs=0.01)


def test_nothing_is_let_in_where_nothing_may_be() -> None:
    limits = TenantLimits({"me": TenantLimit(concurrent=0)})
    with pytest.raises(TenantLimitError) as caught:
        limits.enter_nowait("me", 1, now=0.0)
    assert caught.value.retry_after > 0


@pytest.mark.parametrize("unused", [-1, 11])
def test_no_more_is_given_back_than_was_taken(unused: int) -> None:
    (permit,) = enter_all(TenantLimits({}), "me", 10)
    with pytest.raises(ValueError, match="from 0 to 10 tokens"):
        permit.release(unused, now=0.0)


def test_idle_tenants_are_forgotten() -> None:
    limits = TenantLimits({}, default=TenantLimit(tokens_per_minute=600))
    for number in range(100):
        limits.enter_nowait(f"tenant-{number}", 300, now=0.0).release(0, now=1.0)
    running = limits.enter_nowait("running", 300, now=1.0)
    limits.enter_nowait("late", 10, now=29.9)
    assert len(limits) == 102
    limits.enter_nowait("later", 10, now=30.1)
    assert len(limits) == 3, "all buckets are full again, but these have something under way"
    running.release(300, now=31.0)
    assert len(limits) == 2


@dataclass
class Bucket:
    """A token bucket that is kept filled up from moment to moment."""

    level: float = PER_MINUTE
    under_way: list[tuple[TenantPermit, int]] = field(default_factory=list)

    def fill(self, tokens: float) -> None:
        self.level = min(self.level + tokens, PER_MINUTE)


def may_enter(bucket: Bucket, limit: TenantLimit, tokens: int) -> bool:
    has_place = limit.concurrent is None or len(bucket.under_way) < limit.concurrent
    return has_place and (limit.tokens_per_minute is None or tokens <= bucket.level)


def try_to_enter(
    limits: TenantLimits, tenant: str, tokens: int, now: float
) -> TenantPermit | InvalidRequestError | TenantLimitError:
    try:
        return limits.enter_nowait(tenant, tokens, now)
    except (InvalidRequestError, TenantLimitError) as error:
        return error


operations = st.lists(
    st.one_of(
        st.tuples(st.just("enter"), st.sampled_from(sorted(TENANTS)), st.integers(1, PER_MINUTE + 10)),
        st.tuples(st.just("enter"), st.sampled_from(sorted(TENANTS)), st.integers(1, 30)),
        st.tuples(st.just("release"), st.sampled_from(sorted(TENANTS)), st.integers(0, PER_MINUTE)),
        st.tuples(st.just("advance"), st.just(""), st.integers(1, 40)),
    ),
    max_size=60,
)


@given(operations)
def test_it_agrees_with_buckets_that_are_filled_all_the_time(steps: list[tuple[str, str, int]]) -> None:
    limits, now = TenantLimits(TENANTS), 0.0
    buckets = {tenant: Bucket() for tenant in TENANTS}
    for operation, tenant, number in steps:
        if operation == "advance":
            now += number / 4
            for bucket in buckets.values():
                bucket.fill(number)
        elif operation == "enter":
            bucket, limit = buckets[tenant], TENANTS[tenant]
            outcome = try_to_enter(limits, tenant, number, now)
            if limit.tokens_per_minute is not None and number > PER_MINUTE:
                assert isinstance(outcome, InvalidRequestError)
            elif may_enter(bucket, limit, number):
                assert isinstance(outcome, TenantPermit)
                bucket.level -= number
                bucket.under_way.append((outcome, number))
            else:
                assert isinstance(outcome, TenantLimitError)
                if outcome.reason == "tokens_per_minute":
                    assert outcome.retry_after == pytest.approx((number - bucket.level) / 4, abs=0.01)
        elif buckets[tenant].under_way:
            permit, tokens = buckets[tenant].under_way.pop(0)
            permit.release(min(number, tokens), now)
            buckets[tenant].fill(min(number, tokens))
        assert [limits.under_way(tenant) for tenant in TENANTS] == [len(b.under_way) for b in buckets.values()]


@given(operations)
def test_nobody_is_remembered_for_more_than_a_minute_after_the_last_request(steps: list[tuple[str, str, int]]) -> None:
    limits, now = TenantLimits({}, default=TenantLimit(tokens_per_minute=PER_MINUTE)), 0.0
    permits: list[TenantPermit] = []
    names = itertools.cycle(f"tenant-{number}" for number in range(50))
    for operation, _, number in steps:
        if operation == "advance":
            now += number / 4
        elif operation == "enter" and number <= PER_MINUTE:
            permits.append(limits.enter_nowait(next(names), number, now))
        elif permits:
            permits.pop(number % len(permits)).release(0, now)
    for permit in permits:
        permit.release(0, now)
    last = limits.enter_nowait("last", 1, now + 60)
    last.release(1, now + 60)
    assert len(limits) == 0

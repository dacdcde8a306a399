"""What each tenant may have under way: requests at once, and tokens a minute."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from llamalane.errors import InvalidRequestError, TenantLimitError
from llamalane.scheduler.quantiles import QuantileWindow, likely_duration

MINUTE = 60.0
FIRST_GUESS = 1.0
"""A request is thought to be under way for so many seconds at least, while nothing is known."""
_WINDOW = 256
"""How many recent times under way are remembered."""
_CERTAINTY = 0.8
"""How sure it should be that a request has ended when a refused one comes back."""
_ROUNDING = 0.001
"""So many seconds more, lest rounding turns away who comes back just when told."""


@dataclass(frozen=True, slots=True)
class TenantLimit:
    """What one tenant may have.

    Attributes:
        concurrent: the most requests that wait or run at once; None for no limit.
        tokens_per_minute: the most tokens, of prompts and outputs together, at a stretch and in every minute after
            that; at least 1, None for no limit.
        weight: its share of the service while others want theirs, in proportion to theirs; more than 0.
    """

    concurrent: int | None = None
    tokens_per_minute: int | None = None
    weight: float = 1.0


UNLIMITED = TenantLimit()


class TenantPermit:
    """A request of a tenant that is under way, from its submission to its end."""

    __slots__ = ("_limits", "tenant", "tokens")

    def __init__(self, limits: TenantLimits, tenant: str, tokens: int) -> None:
        self.tenant = tenant
        self.tokens = tokens
        """The tokens charged for it."""
        self._limits: TenantLimits | None = limits

    def release(self, unused: int, now: float) -> None:
        """Note that the request has ended, and refund the `unused` of its tokens; a second time changes nothing."""
        if not 0 <= unused <= self.tokens:
            raise ValueError(f"from 0 to {self.tokens} tokens can be refunded; got {unused}")
        limits, self._limits = self._limits, None
        if limits is not None:
            limits._leave(self, unused, now)


class _Account:
    """What a tenant has under way.

    The tokens that it may use are a bucket: it holds a minute's worth and fills up steadily, so all about it is told
    by the moment at which it will be full.
    """

    __slots__ = ("closing", "full_at", "permits")

    def __init__(self) -> None:
        self.permits: dict[TenantPermit, float] = {}
        """Each with the moment of its submission."""
        self.full_at = -math.inf
        self.closing = False
        """Whether it will be looked at when its bucket is full."""

    def seconds_short(self, tokens: int, per_minute: int, now: float) -> float:
        """Return in how many seconds the bucket holds `tokens`: 0 or less if it does. Raises if it never will."""
        if tokens > per_minute:
            raise InvalidRequestError(
                f"the prompt and max_tokens are {tokens} tokens together, and the tenant may use {per_minute} tokens "
                "a minute: shorten the prompt or lower max_tokens",
                param="max_tokens",
            )
        return max(self.full_at - now, 0.0) - (per_minute - tokens) * MINUTE / per_minute

    def charge(self, tokens: int, per_minute: int | None, now: float) -> None:
        """Take `tokens` out of the bucket, or put some back if they are negative."""
        if per_minute is not None:
            self.full_at = max(self.full_at, now) + tokens * MINUTE / per_minute

    def change_rate(self, before: int | None, after: int | None, now: float) -> None:
        """Let the bucket hold, and fill up with, another number of tokens a minute; it lacks as many as it did."""
        if before is None or after is None:
            self.full_at = -math.inf
            for permit in self.permits:  # nothing is left of what they were charged, or they never were
                permit.tokens = 0
        else:
            self.full_at = now + max(self.full_at - now, 0.0) * before / after


class TenantLimits:
    """Keeps every tenant within its limit: its own, or `default`.

    A request is charged at its submission with all the tokens that it may come to use, and refunded at its end with
    those that it did not. Tenants with nothing under way and a full bucket are forgotten.
    """

    def __init__(self, limits: Mapping[str, TenantLimit], default: TenantLimit = UNLIMITED) -> None:
        self._limits = dict(limits)
        self._default = default
        self._accounts: dict[str, _Account] = {}
        self._closing: list[tuple[float, str]] = []
        """A heap: when which tenant may have to be forgotten."""
        self._durations: QuantileWindow[float] = QuantileWindow(_WINDOW)
        """How long requests were under way lately."""

    def __len__(self) -> int:
        """Return how many tenants are remembered."""
        return len(self._accounts)

    def set_limits(self, limits: Mapping[str, TenantLimit], default: TenantLimit, now: float) -> None:
        """Go by other limits from now on. What was used of a minute's tokens stays used; nothing under way ends."""
        before = {tenant: self.limit(tenant).tokens_per_minute for tenant in self._accounts}
        self._limits, self._default = dict(limits), default
        for tenant, account in self._accounts.items():
            account.change_rate(before[tenant], self.limit(tenant).tokens_per_minute, now)
        self._closing.clear()
        for tenant, account in self._accounts.items():
            account.closing = False
            self._close(tenant, account)
        self._forget(now)

    def limit(self, tenant: str) -> TenantLimit:
        """Return a tenant's limit."""
        return self._limits.get(tenant, self._default)

    def under_way(self, tenant: str) -> int:
        """Return how many requests of a tenant wait or run."""
        account = self._accounts.get(tenant)
        return 0 if account is None else len(account.permits)

    def check(self, tenant: str, tokens: Sequence[int]) -> None:
        """Raise `InvalidRequestError` for requests with so many `tokens` each that can never be let in together."""
        limit = self.limit(tenant)
        for what, wanted, bound in (
            ("requests at once", len(tokens), limit.concurrent),
            ("tokens a minute", sum(tokens), limit.tokens_per_minute),
        ):
            if len(tokens) > 1 and bound is not None and wanted > bound:
                message = f"{len(tokens)} choices need {wanted} {what}, and the tenant may have {bound}: ask for fewer"
                raise InvalidRequestError(message, param="n")

    def enter_nowait(self, tenant: str, tokens: int, now: float) -> TenantPermit:
        """Let a request of a tenant in, and charge it with `tokens`: its prompt's and `max_tokens`.

        Raises `TenantLimitError` when the tenant has too much under way, and `InvalidRequestError` when the request
        alone is more than a minute's tokens.
        """
        self._forget(now)
        limit = self.limit(tenant)
        account = self._accounts.get(tenant) or _Account()
        refusals: list[tuple[float, str, int]] = []
        if limit.concurrent is not None and len(account.permits) >= limit.concurrent:
            refusals.append((self._until_one_ends(account, now), "concurrent", limit.concurrent))
        if limit.tokens_per_minute is not None:
            missing = account.seconds_short(tokens, limit.tokens_per_minute, now)
            if missing > 0:
                refusals.append((missing + _ROUNDING, "tokens_per_minute", limit.tokens_per_minute))
        if refusals:
            seconds, reason, bound = max(refusals)
            raise TenantLimitError(seconds, tenant=tenant, reason=reason, limit=bound)
        permit = TenantPermit(self, tenant, tokens)
        account.charge(tokens, limit.tokens_per_minute, now)
        account.permits[permit] = now
        self._accounts[tenant] = account
        return permit

    def _leave(self, permit: TenantPermit, unused: int, now: float) -> None:
        account = self._accounts[permit.tenant]
        since = account.permits.pop(permit)
        if now > since:  # else it was refused at once
            self._durations.add(now - since)
        account.charge(-unused, self.limit(permit.tenant).tokens_per_minute, now)
        self._close(permit.tenant, account)
        self._forget(now)

    def _until_one_ends(self, account: _Account, now: float) -> float:
        """Return in how many seconds one of the tenant's requests is likely to have ended."""
        if not account.permits:
            return FIRST_GUESS
        durations = self._durations if len(self._durations) else None
        # One of n has ended for sure enough when each would have with this probability.
        share = 1 - (1 - _CERTAINTY) ** (1 / len(account.permits))
        ages = [now - since for since in account.permits.values()]
        return min(likely_duration(durations, age, share, FIRST_GUESS) - age for age in ages) + _ROUNDING

    def _close(self, tenant: str, account: _Account) -> None:
        """Have a tenant without requests looked at when its bucket is full."""
        if not account.permits and not account.closing:
            account.closing = True
            heapq.heappush(self._closing, (account.full_at, tenant))

    def _forget(self, now: float) -> None:
        """Forget the tenants that have nothing under way and a full bucket."""
        while self._closing and self._closing[0][0] <= now:
            _, tenant = heapq.heappop(self._closing)
            account = self._accounts[tenant]
            account.closing = False
            if account.permits:
                continue
            if account.full_at <= now:
                del self._accounts[tenant]
            else:
                self._close(tenant, account)

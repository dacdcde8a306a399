"""Whose cells a request can share: prompts that begin alike are computed once. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from llamalane.kvcache import common_prefix
from llamalane.scheduler.request import Request
from llamalane.streams import PoolLane, SharedPrefix

SHORTEST = 16
"""So many tokens at least must be shared, for a copy to be worth its while."""
SHORTEST_PARTITIONED = 64
"""The same where sequences have parts of their own: a whole part is copied then."""


def shared_prefix(request: Request, lane: PoolLane, others: Iterable[Request]) -> SharedPrefix | None:
    """Return the longest prefix of a request's prompt that can be copied on `lane`, None when none is worth it.

    `others` are the requests that run or are paused there; only those of the same tenant count. What the request's
    own sequence would hold anyway counts against it.
    """
    if not lane.region.can_roll_back:
        return None
    tokens = request.history
    least = SHORTEST_PARTITIONED if lane.region.partitioned else SHORTEST
    best = lane.region.keeper(tokens, request.tenant)
    share = SharedPrefix(*best) if best is not None else None
    for other in others:
        if other.tenant != request.tenant or other.lease is None or other is request:
            continue
        length = min(common_prefix(tokens, other.history), len(tokens) - 1)
        if share is None or length > share.length:
            share = _share_of(other, length)
    own = lane.region.cached(tokens, request.tenant)
    return share if share is not None and share.length >= own + least else None


def _share_of(other: Request, length: int) -> SharedPrefix:
    assert other.lease is not None
    if other.lease.paused:
        return SharedPrefix(other.lease.sequence, min(length, other.lease.cached))
    if other.since_join:  # all but the last token that was chosen is computed
        return SharedPrefix(other.lease.sequence, min(length, other.length - 1))
    return SharedPrefix(other.lease.sequence, length, leader=other.id)

"""Which request a newer one replaces: an editor that completes at every key wants only the last answer."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

RequestT = TypeVar("RequestT", bound=Hashable)


class LatestRequests(Generic[RequestT]):
    """The latest request under each key of each tenant, until it is forgotten.

    Requests may be named by anything that can be hashed. Every operation is O(1), and nothing is kept of requests
    that were forgotten or replaced.
    """

    def __init__(self) -> None:
        self._latest: dict[tuple[str, str], RequestT] = {}
        self._keys: dict[RequestT, tuple[str, str]] = {}

    def __len__(self) -> int:
        return len(self._latest)

    def replace(self, tenant: str, key: str, request: RequestT) -> RequestT | None:
        """Make `request` the latest under its tenant's key; returns the one it replaces, None when there is none.

        A request has one key; under a new one, it is no longer found under the old one.
        """
        self.forget(request)
        older = self._latest.get((tenant, key))
        if older is not None:
            del self._keys[older]
        self._latest[tenant, key] = request
        self._keys[request] = (tenant, key)
        return older

    def forget(self, request: RequestT) -> None:
        """Note that a request has ended; nothing happens when it was replaced, or never had a key."""
        key = self._keys.pop(request, None)
        if key is not None:
            del self._latest[key]

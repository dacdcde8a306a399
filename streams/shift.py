"""How a sequence goes on that is full. The lane and whoever keeps the books of it count alike, by these rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llamalane.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ContextShift:
    """A sequence that has `limit` tokens loses half of those that follow its first `keep`.

    `keep` is from 0 to half of `limit`. Raises `ConfigError` otherwise.
    """

    limit: int
    keep: int

    def __post_init__(self) -> None:
        if not 0 <= self.keep <= self.limit // 2:
            raise ConfigError(
                f"a context shift can keep from 0 to {self.limit // 2} first tokens, half of what a sequence holds; "
                f"got {self.keep}"
            )

    def dropped(self, length: int) -> int:
        """Return how many tokens a sequence loses that has `length`, of which the last was not computed yet."""
        return (length - 1 - self.keep) // 2 if length >= self.limit else 0

    def shorten(self, tokens: Sequence[int], dropped: int) -> list[int]:
        """Return `tokens` without the `dropped` ones after those that are kept."""
        return [*tokens[: self.keep], *tokens[self.keep + dropped :]] if dropped else list(tokens)

"""One sequence that a lane is computing."""

from __future__ import annotations

from dataclasses import dataclass

from llamalane.streams.llama.sampler import Sampler
from llamalane.streams.lookup import Drafter
from llamalane.streams.steps import Join, SharedPrefix


@dataclass(slots=True, eq=False)
class Row:
    """One sequence: `tokens` up to `computed` are in its cells, the rest is to be computed.

    `sat_out` counts the steps in a row in which it had no part; of two rows, the one with the smaller `turn` had its
    last part earlier. `cells` is how many it may fill, None for all.
    """

    join: Join
    sampler: Sampler
    tokens: list[int]
    computed: int
    cells: int | None
    turn: int
    chosen: int = 0
    started: bool = False
    sat_out: int = 0
    awaits: SharedPrefix | None = None
    """A prefix that another row is computing for it."""
    measure: range = range(0)
    """Which of its tokens are yet to be told with their log probabilities."""
    drafter: Drafter | None = None
    """What drafts its next tokens, once it has."""

    @property
    def decoding(self) -> bool:
        """Whether a single token is to be computed."""
        return len(self.tokens) - self.computed == 1

    @property
    def overdue(self) -> bool:
        """Whether it is sheltered and had no part in the last step."""
        return self.join.sheltered and self.sat_out > 0

    @property
    def ready(self) -> int:
        """How many tokens can be computed: those that there are, and for which it has cells."""
        if self.awaits is not None:
            return 0
        end = len(self.tokens) if self.cells is None else min(len(self.tokens), self.cells)
        return max(0, end - self.computed)

    @property
    def unmeasured(self) -> int:
        """How many tokens can be computed before one whose logits tell of a token to be measured."""
        return max(0, self.measure.start - 1 - self.computed) if self.measure else 0

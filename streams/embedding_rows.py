"""The texts that a lane has to embed, and which of them the next step computes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from llamalane.ids import PlanVersion, RequestId
from llamalane.streams.llama.batch import Batch
from llamalane.streams.steps import Change, Join, Leave, Park, Parked, Rank, StepPlan


@dataclass(slots=True, eq=False)
class EmbeddingRow:
    """One text. `sat_out` counts the steps in a row in which it had no part."""

    join: Join
    sat_out: int = 0

    @property
    def overdue(self) -> bool:
        """Whether it is sheltered and had no part in the last step."""
        return self.join.sheltered and self.sat_out > 0


class EmbeddingRows:
    """The rows of a lane that embeds, edited by plans. Owned by the lane's thread.

    Nothing of a row is in any cell between steps, so whoever is parked simply begins anew.
    """

    def __init__(self) -> None:
        self._rows: dict[RequestId, EmbeddingRow] = {}
        self._left: list[RequestId] = []
        self._parked: list[Parked] = []
        self.version = PlanVersion(0)
        self.budget = 1

    def __len__(self) -> int:
        return len(self._rows)

    def apply(self, plan: StepPlan) -> None:
        """Carry out the edits of `plan` that are new."""
        for edit in plan.edits:
            if edit.version > self.version:
                self._carry_out(edit.change)
        self.version = plan.version
        self.budget = plan.prefill_tokens

    def take_news(self) -> tuple[tuple[RequestId, ...], tuple[Parked, ...]]:
        """Return who has left and who was parked by plans' edits, once."""
        news = tuple(self._left), tuple(self._parked)
        self._left, self._parked = [], []
        return news

    def fill(self, batch: Batch) -> list[EmbeddingRow]:
        """Fill `batch` with whole texts, and return their rows: overdue ones, then by urgency.

        There is one at least, and more within the plan's budget, as far as they fit. Rows less urgent than the best
        sit out every second step, so that an urgent text's step is short and they go on all the same.
        """
        best = min(row.join.level for row in self._rows.values())
        part = [row for row in self._rows.values() if row.join.level == best or row.sat_out]
        part.sort(key=lambda row: (not row.overdue, row.join.urgency))
        chosen: list[EmbeddingRow] = []
        batch.clear()
        for row in part:
            size = batch.size + len(row.join.tokens)
            if not chosen or size <= min(self.budget, batch.capacity):
                batch.add_text(row.join.sequence, row.join.tokens)
                chosen.append(row)
        return chosen

    def advance(self, computed: Iterable[EmbeddingRow]) -> None:
        """Take out the rows that a step has computed; the others sat it out."""
        for row in computed:
            del self._rows[row.join.request]
        for row in self._rows.values():
            row.sat_out += 1

    def clear(self) -> None:
        """Drop every row."""
        self._rows.clear()
        self._left, self._parked = [], []

    def _carry_out(self, change: Change) -> None:
        match change:
            case Join() as join:
                self._rows[join.request] = EmbeddingRow(join)
            case Leave(request, _):
                self._rows.pop(request, None)
                self._left.append(request)
            case Park(request, _, _):
                self._rows.pop(request, None)
                self._parked.append(Parked(request, 0))
            case Rank(request, level, urgency):
                row = self._rows.get(request)
                if row is not None:
                    row.join = replace(row.join, level=level, urgency=urgency)
            case _:  # it is about cells, which no sequence has here
                pass

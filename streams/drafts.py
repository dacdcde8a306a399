"""Which rows of a step get drafts, and what is taken back of them.

A row with a draft computes it together with its next token, and its logits tell after each token which one really
comes next. As far as that is the drafted one, the row has gained a token without a step of its own. The tokens are
those that it would have had without drafts: each is chosen from the same logits, by the same sampler.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from llamalane.ids import Level
from llamalane.streams.cells import Cells, trim
from llamalane.streams.lookup import Drafter
from llamalane.streams.row import Row
from llamalane.streams.shift import ContextShift


@dataclass(frozen=True, slots=True)
class DraftOptions:
    """How a lane drafts.

    Attributes:
        draft_tokens: the most tokens of a draft, at least 1.
        most_rows: in a step with more decoding rows than so many nobody drafts.
        levels: rows of these levels may draft; None for all.
    """

    draft_tokens: int
    most_rows: int
    levels: frozenset[Level] | None = None


def find_drafts(
    rows: Sequence[Row], options: DraftOptions, *, room: int, alike: bool, shift: ContextShift | None = None
) -> Mapping[Row, Sequence[int]]:
    """Return a draft for each of a step's decoding rows that may have one; a step has `room` for so many tokens.

    With `alike` all rows get as many tokens, or none does: where sequences have cells of their own, llama.cpp computes
    in one pass only as much as is alike. No row gets more tokens than it may choose, less one, nor than it has cells
    for, nor so many that its sequence would be full before the step ends.
    """
    drafts: dict[Row, Sequence[int]] = {}
    for row in rows:
        most = min(options.draft_tokens, room, _most_of(row, shift))
        if most > 0 and (options.levels is None or row.join.level in options.levels):
            if row.drafter is None:
                row.drafter = Drafter(row.tokens, options.draft_tokens)
            draft = row.drafter.draft(most)
            if draft:
                drafts[row] = draft
                room -= len(draft)
    if not alike or len(rows) < 2:
        return drafts
    shortest = min(len(drafts.get(row, ())) for row in rows)
    return {row: draft[:shortest] for row, draft in drafts.items()} if shortest else {}


def take_back(row: Row, cells: Cells) -> None:
    """Remove what a row has computed of a draft beyond the last token that it has.

    A sliding window may have moved on by then; such a row is computed again from its beginning.
    """
    right = len(row.tokens) - 1
    if row.computed > right:
        row.computed = trim(cells, row.join.sequence, right)


def _most_of(row: Row, shift: ContextShift | None) -> int:
    if row.measure:
        return 0
    most = row.join.max_tokens - row.chosen - 1
    if row.cells is not None:
        most = min(most, row.cells - len(row.tokens))
    if shift is not None:
        most = min(most, shift.limit - len(row.tokens) - 1)
    return most

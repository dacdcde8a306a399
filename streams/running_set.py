"""The requests that a lane is computing, and what each has still to do."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from llamalane.ids import PlanVersion, RequestId
from llamalane.streams.cells import Cells, MovableCells, copy, merge, move, restore, save, stow, trim
from llamalane.streams.drafts import DraftOptions, find_drafts
from llamalane.streams.llama.batch import Batch
from llamalane.streams.llama.sampler import Sampler
from llamalane.streams.measuring import MeasuredPart
from llamalane.streams.parts import Parts
from llamalane.streams.row import Row
from llamalane.streams.shift import ContextShift
from llamalane.streams.steps import (
    Change,
    Copied,
    Edit,
    Grant,
    Join,
    Leave,
    Merge,
    Move,
    Park,
    Parked,
    Parking,
    Rank,
    Restore,
    Restored,
    SharedPrefix,
    StepPlan,
    StepShare,
    Stow,
    Stowed,
    Trim,
)


@dataclass(slots=True)
class News:
    """What has to be reported beside the steps: what plans' edits did, and who got the prefix that it shares."""

    left: list[RequestId] = field(default_factory=list)
    parked: list[Parked] = field(default_factory=list)
    copied: list[Copied] = field(default_factory=list)
    stowed: list[Stowed] = field(default_factory=list)
    restored: list[Restored] = field(default_factory=list)


@dataclass(slots=True)
class Work:
    """What one step computes: rows that choose their next token, in the batch's order, and all rows with their counts.

    Row number i of `outputs` chooses by the step's logits number ``places[i]``; further ones are for `measured`. If it
    is among the `drafts`, the logits after each drafted token follow; `drafted_tokens` are in all of these, and the
    lane counts how many turned out right.
    `started` are requests that have their first part in it. `decoding` are the rows that decode, in the order of their
    turns, and `prompts` those whose prompts are computed; `sitting_out` have no part, though they could have had one.
    """

    outputs: list[Row] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    measured: list[MeasuredPart] = field(default_factory=list)
    computed: list[tuple[Row, int]] = field(default_factory=list)
    prefill_tokens: int = 0
    started: list[RequestId] = field(default_factory=list)
    decoding: list[Row] = field(default_factory=list)
    prompts: list[Row] = field(default_factory=list)
    sitting_out: list[Row] = field(default_factory=list)
    drafts: Mapping[Row, Sequence[int]] = field(default_factory=dict)
    drafted_tokens: int = 0
    accepted_tokens: int = 0

    @property
    def decode_rows(self) -> int:
        """How many rows decode."""
        return len(self.decoding)

    @property
    def rows(self) -> Iterator[Row]:
        """The rows that have a part in the step."""
        return (row for row, _ in self.computed)


class RunningSet:
    """The rows of one lane, edited by plans. Owned by the lane's thread.

    With `by_sequence` a batch is laid out in the order of sequence ids, decoding rows and prompts alike. `shift` tells
    how rows go on that are full; without it, none gets there. A step may give logits for `output_rows` tokens, which
    leaves room for prompts to be measured beside the rows that choose a token; one is always left for each of them.
    `drafting` tells how rows draft tokens in steps that compute no prompt; without it, none does.
    """

    def __init__(
        self,
        make_sampler: Callable[[Join], Sampler],
        *,
        by_sequence: bool = False,
        shift: ContextShift | None = None,
        output_rows: int = 0,
        drafting: DraftOptions | None = None,
    ) -> None:
        self._make_sampler = make_sampler
        self._by_sequence = by_sequence
        self._shift = shift
        self._output_rows = output_rows
        self._drafting = drafting
        self._rows: dict[RequestId, Row] = {}
        self._turns = itertools.count()
        self._taken = PlanVersion(0)
        self._edits: deque[Edit] = deque()
        """Edits that were taken, and have yet to be carried out."""
        self._work: Parts[None] | None = None
        """What carries out the first of them, when it has begun."""
        self.prefill_tokens = 0
        self.share: StepShare | None = None
        self.successors = False
        self._news = News()

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows.values())

    def __contains__(self, row: Row) -> bool:
        return self._rows.get(row.join.request) is row

    @property
    def version(self) -> PlanVersion:
        """The newest plan of which every edit was carried out, and of all before it."""
        return PlanVersion(self._edits[0].version - 1) if self._edits else self._taken

    @property
    def busy(self) -> bool:
        """Whether there are edits that have yet to be carried out."""
        return bool(self._edits)

    @property
    def ready(self) -> bool:
        """Whether any row can go on without another plan."""
        return any(row.ready for row in self._rows.values())

    def take_news(self) -> News:
        """Return what has to be reported, once."""
        news, self._news = self._news, News()
        return news

    def apply(self, plan: StepPlan, cells: Cells, has_time: Callable[[], bool] = lambda: True) -> None:
        """Take the edits of `plan` that are new, and `carry_on`; all else holds from now on."""
        self._edits.extend(edit for edit in plan.edits if edit.version > self._taken)
        self._taken = plan.version
        self.prefill_tokens = plan.prefill_tokens
        self.share = plan.share
        self.successors = plan.successors
        self.carry_on(cells, has_time)

    def carry_on(self, cells: Cells, has_time: Callable[[], bool] = lambda: True) -> None:
        """Carry out edits that were taken, in their order.

        Cells that are saved or put back can be many. So `has_time` is asked after each part of that; when there is none
        left, and rows are ready that the rest would keep from their next step, it is left for later.
        """
        while self._edits:
            if self._work is None:
                self._work = self._carry_out(self._edits[0], cells)
            for _ in self._work:
                if not has_time() and self.ready:
                    return
            self._work = None
            done = self._edits.popleft()
            if _copies(done.change) and not has_time() and self.ready:
                break
        self.share_prefixes(cells)

    def share_prefixes(self, cells: Cells) -> None:
        """Let those rows go on that have waited for a prefix which is there by now."""
        for row in self._rows.values():
            if row.awaits is not None:
                self._share_prefix(row, cells)

    def shift(self, cells: MovableCells) -> bool:
        """Make room in the rows that are full, just before a step; returns whether cells were moved for it.

        Such a step must not be abandoned: it turns the moved keys first. A row whose cells cannot be moved computes
        again what it keeps.
        """
        moved = False
        for row in self._full():
            assert self._shift is not None
            dropped = self._shift.dropped(len(row.tokens))
            row.tokens = self._shift.shorten(row.tokens, dropped)
            row.drafter = None
            if cells.shift(row.join.sequence, self._shift.keep, dropped):
                row.computed -= dropped
                moved = True
            else:
                row.computed = 0
        return moved

    def fill(self, batch: Batch) -> Work:
        """Fill `batch` with the next step: decoding rows, then prompts within the budget: overdue, then by urgency.

        No row changes until the step is computed, and `advance` told of it.
        """
        ready = [row for row in self._rows.values() if row.ready]
        decoding = [row for row in ready if row.decoding]
        prompts = [row for row in ready if not row.decoding]
        part = self._take_part(decoding, prompts)
        chosen = [(row, 1) for row in part]
        budget = min(max(self.prefill_tokens, 1), batch.capacity - len(chosen))
        spare = max(0, self._output_rows - len(part) - len(prompts))
        work = Work(decoding=part)
        if self._drafting is not None and not prompts and len(decoding) <= self._drafting.most_rows:
            self._draft(work, self._drafting, batch.capacity)
            chosen = [(row, 1 + len(work.drafts.get(row, ()))) for row in part]
        for row in sorted(prompts, key=lambda row: (not row.overdue, row.join.urgency)):
            count = min(row.ready, budget)
            if row.measure:
                count = min(count, row.unmeasured + 1 + spare)
                spare -= max(0, count - row.unmeasured - 1)
            if count == 0:
                break
            chosen.append((row, count))
            work.prompts.append(row)
            budget -= count
            work.prefill_tokens += count
        work.sitting_out = list(set(ready).difference(row for row, _ in chosen))
        if self._by_sequence:
            chosen.sort(key=lambda part: part[0].join.sequence)
        batch.clear()
        for row, count in chosen:
            self._add(batch, work, row, count)
        return work

    def advance(self, work: Work) -> None:
        """Note that a step was computed."""
        for row in work.sitting_out:
            row.sat_out += 1
        for row in work.decoding:
            row.turn = next(self._turns)
        for row, count in work.computed:
            row.computed += count
            row.started = True
            row.sat_out = 0
        for part in work.measured:
            part.row.measure = range(part.tokens.stop, part.row.measure.stop)

    def retire(self, row: Row, cells: Cells) -> None:
        """Take out a row that has ended, or leaves; its cells stay until its sequence is given away.

        Of the rows that wait for its prefix, the one that waits for most gets what is there and computes the rest, and
        the others wait for that one: so nothing is computed twice.
        """
        del self._rows[row.join.request]
        row.sampler.close()
        heirs = [one for one in self._rows.values() if one.awaits and one.awaits.leader == row.join.request]
        heirs.sort(key=lambda one: one.awaits.length if one.awaits else 0)
        if not heirs:
            return
        heir = heirs.pop()
        for one in heirs:
            assert one.awaits is not None
            one.awaits = replace(one.awaits, sequence=heir.join.sequence, leader=heir.join.request)
        assert heir.awaits is not None
        if row.awaits is None:
            self._copy(heir, cells)
        else:  # it has nothing yet: its heir waits for the same
            heir.awaits = replace(row.awaits, length=min(row.awaits.length, heir.awaits.length))
        self.share_prefixes(cells)

    def clear(self) -> None:
        """Drop every row."""
        for row in self._rows.values():
            row.sampler.close()
        self._rows.clear()
        self._edits.clear()
        self._work = None
        self._news = News()

    def _full(self) -> list[Row]:
        if self._shift is None:
            return []
        return [row for row in self._rows.values() if self._shift.dropped(len(row.tokens))]

    def _take_part(self, decoding: list[Row], prompts: list[Row]) -> list[Row]:
        """Return the decoding rows that have a part in the next step.

        Rows less urgent than a prompt that is to be computed sit out every second step, so that the prompt's step is
        short and they go on all the same. Of rows less urgent than the plan's share protects, only some have a part.
        """
        best = min((row.join.level for row in prompts), default=None)
        part = [row for row in decoding if best is None or row.join.level <= best or row.sat_out]
        if self.share is not None:
            part = self._within_share(part, self.share)
        return part if part or prompts else decoding

    @staticmethod
    def _within_share(part: list[Row], share: StepShare) -> list[Row]:
        others = [row for row in part if row.join.level > share.protected]
        overdue = [row for row in others if row.overdue]
        rest = sorted((row for row in others if row not in overdue), key=lambda row: row.turn)
        protected = [row for row in part if row.join.level <= share.protected]
        return [*protected, *overdue, *rest[: max(0, share.others - len(overdue))]]

    def _draft(self, work: Work, drafting: DraftOptions, capacity: int) -> None:
        """Let the rows of a step draft tokens, as far as there is room for them and their logits."""
        room = min(self._output_rows, capacity) - len(work.decoding)
        drafts = find_drafts(work.decoding, drafting, room=room, alike=self._by_sequence, shift=self._shift)
        work.drafts = drafts
        work.drafted_tokens = sum(map(len, drafts.values()))

    @staticmethod
    def _add(batch: Batch, work: Work, row: Row, count: int) -> None:
        if row in work.drafts:
            work.places.append(batch.outputs)
            batch.add(row.join.sequence, [row.tokens[-1], *work.drafts[row]], row.computed, output=count)
            work.computed.append((row, count))
            work.outputs.append(row)
            if not row.started:
                work.started.append(row.join.request)
            return
        end = row.computed + count
        chooses = end == len(row.tokens)
        place = batch.outputs
        wanted = max(0, count - row.unmeasured) if row.measure else int(chooses)
        batch.add(row.join.sequence, row.tokens[row.computed : end], row.computed, output=wanted)
        work.computed.append((row, count))
        if chooses:
            work.outputs.append(row)
            work.places.append(batch.outputs - 1)
        if row.measure and wanted:
            tokens = range(row.measure.start, min(end + 1, row.measure.stop))
            work.measured.append(MeasuredPart(row, tokens, place))
        if not row.started:
            work.started.append(row.join.request)

    def _carry_out(self, edit: Edit, cells: Cells) -> Parts[None]:
        match edit.change:
            case Join() as join:
                yield from self._join(join, cells)
            case Leave(request, keep):
                row = self._rows.get(request)
                if row is not None:  # else it has ended by itself in the meantime
                    self.retire(row, cells)
                    trim(cells, row.join.sequence, keep)
                self._news.left.append(request)
            case Park() as park:
                parked = yield from self._park(park, cells)
                self._news.parked.append(parked)  # others may have been told of in the meantime
            case Grant(request, count):
                if request in self._rows:
                    self._rows[request].cells = count
            case Rank(request, level, urgency):
                row = self._rows.get(request)
                if row is not None:
                    row.join = replace(row.join, level=level, urgency=urgency)
            case Trim(sequence, keep):
                trim(cells, sequence, keep)
            case Move() as change:
                move(cells, change)
            case Merge() as change:
                merge(cells, change)
            case Stow() as change:
                stowed = yield from stow(cells, change)
                self._news.stowed.append(stowed)
            case Restore() as change:
                restored = yield from restore(cells, change)
                self._news.restored.append(restored)

    def _join(self, join: Join, cells: Cells) -> Parts[None]:
        computed = 0
        if join.saved is not None:
            restored = yield from cells.restoring(join.sequence, join.saved.data)
            computed = join.saved.length if restored else 0
        elif join.share is not None:
            cells.remove(join.sequence)
        else:
            computed = trim(cells, join.sequence, join.cached)
            if computed < join.cached:  # what should have been put back is not there
                self._news.copied.append(Copied(join.request, computed))
        sampler, turn = self._make_sampler(join), next(self._turns)
        row = Row(join, sampler, list(join.tokens), computed, join.cells, turn, awaits=join.share, measure=join.measure)
        self._rows[join.request] = row
        self._share_prefix(row, cells)  # now if it is there: a later edit may use its sequence for somebody else

    def _share_prefix(self, row: Row, cells: Cells) -> None:
        if row.awaits is None:
            return
        leader = self._leader(row.awaits)
        if leader is None or (leader.awaits is None and leader.computed >= row.awaits.length):
            self._copy(row, cells)

    def _leader(self, share: SharedPrefix) -> Row | None:
        return self._rows.get(share.leader) if share.leader is not None else None

    def _copy(self, row: Row, cells: Cells) -> None:
        """Give a row the prefix that it has waited for, or as much of it as there is."""
        assert row.awaits is not None
        begin = time.monotonic()
        row.computed = copy(cells, row.awaits.sequence, row.join.sequence, row.awaits.length)
        row.awaits = None
        self._news.copied.append(Copied(row.join.request, row.computed, time.monotonic() - begin))

    def _park(self, park: Park, cells: Cells) -> Parts[Parked]:
        row = self._rows.get(park.request)
        if row is not None and row in self._full():  # its request counts on the shift, which has not been made yet
            self.retire(row, cells)
            cells.remove(park.sequence)
            return Parked(park.request, 0)
        if row is not None:
            self.retire(row, cells)
        computed = cells.length(park.sequence) if row is None else row.computed
        if park.how is Parking.PAUSE:
            return Parked(park.request, computed)
        saved, seconds = yield from save(cells, park.sequence, computed if park.how is Parking.SWAP else 0)
        cells.remove(park.sequence)
        return Parked(park.request, computed, saved, seconds)


def _copies(change: Change) -> bool:
    """Return whether carrying a change out copies cells into host memory, or from there."""
    match change:
        case Park(how=how):
            return how is Parking.SWAP
        case Join(saved=saved):
            return saved is not None
        case _:
            return isinstance(change, Stow | Restore)

"""One request on its way through the scheduler."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

from llamalane.ids import Level, RequestId
from llamalane.scheduler.delivery import Delivery
from llamalane.scheduler.displacement import PROGRESS
from llamalane.scheduler.events import EventKind
from llamalane.scheduler.gang import Gang
from llamalane.scheduler.limits import TenantPermit
from llamalane.scheduler.logprobs import OutputLogprobs, PromptMeasurement
from llamalane.scheduler.output import OutputText
from llamalane.scheduler.result import Result, Timings, Usage
from llamalane.streams import (
    ContextShift,
    FinishReason,
    Join,
    Lease,
    Parked,
    PoolLane,
    SamplingParameters,
    SavedCells,
    SharedPrefix,
    TokenScores,
    llama,
)

BLOCK = 32
"""So many KV cells are reserved at a time for a request that grows."""


class RequestState(enum.Enum):
    """Where a request is."""

    WAITING = "waiting"
    """In the queue."""
    RUNNING = "running"
    """It holds a lease, and its lane computes it."""
    PARKING = "parking"
    """It has to give way; its lane has not confirmed yet that it stopped. After that it waits."""
    LEAVING = "leaving"
    """Its outcome is known; its lease is held until the lane has confirmed that it stopped."""
    DONE = "done"
    """Nothing of it is left in the scheduler."""


_NEXT = {
    RequestState.WAITING: {RequestState.RUNNING, RequestState.PARKING, RequestState.DONE},
    RequestState.RUNNING: {RequestState.WAITING, RequestState.PARKING, RequestState.LEAVING, RequestState.DONE},
    RequestState.PARKING: {RequestState.WAITING, RequestState.LEAVING, RequestState.DONE},
    RequestState.LEAVING: {RequestState.DONE},
    RequestState.DONE: set(),
}


@dataclass(slots=True, eq=False)
class Request:
    """A request: what was asked, where it is, and what it has got.

    Attributes:
        tokens: the prompt.
        sampling: how tokens are chosen; its seed is set.
        max_tokens: the most tokens that it may get, already cut to what fits a sequence, unless it has a `shift`.
        tenant: whose it is.
        cache_salt: only requests of the same tenant with the same salt share cells.
        key: its place in the order of waiting; kept when it has to wait again.
        order: counts submissions: equal keys go first come, first served.
        deadline: the moment at which it is dropped, None for never; `deadline_after` is the same, in seconds from
            arrival.
        sheltered: admitted by the guaranteed share: never displaced.
        lease: its place; while it is parked and paused, its cells.
        saved: its cells in host memory, while it is parked and swapped; `saved_form` is the form of their region.
        share: the prefix that it takes from another sequence, since it was put on its present lane.
        reused: tokens that its lane need not compute since it was put there last: kept, shared or saved.
        since_join: tokens generated since it was put on its present lane.
        computed: of the tokens that go before the first of these, how many its cells are known to hold.
        shift: how it goes on when its sequence is full; None where it ends there, or before.
        dropped: tokens that its sequence has lost in this way.
        grammar: what its output follows.
        logprobs: the log probabilities of its output, if it asked for them; `prompt_logprobs` are those of its prompt.
        supersede: a key: a newer request of the same tenant with it ends this one.
        gang: the requests that start together with it.
        permit: what its tenant is charged for it.
        first_token_at, last_token_at: when it got its first token, and the last one so far.
        model: the name of the model that embeds it; empty where text is generated.
        events: what happened to it, and when.
        gives_way: whether it ran when its lane was told to park it; else it was paused.
        handed_over: whether it is on its way from a lane for prompts to another one, being parked for that or waiting.
        parks: how often it was parked; `parks_in_a_row` without having got on in between.
        handovers: how often it left a lane for prompts to go on elsewhere.
    """

    id: RequestId
    tokens: Sequence[int]
    sampling: SamplingParameters
    max_tokens: int
    level: Level
    tenant: str
    choice: int
    arrival: float
    key: tuple[int, float]
    order: int
    output: OutputText
    deadline: float | None = None
    deadline_after: float = 0.0
    sheltered: bool = False
    state: RequestState = RequestState.WAITING
    lease: Lease | None = None
    lane: str = ""
    generated: list[int] = field(default_factory=list)
    cached: int = 0
    reused: int = 0
    since_join: int = 0
    computed: int = 0
    admitted_at: float | None = None
    first_token_at: float | None = None
    last_token_at: float | None = None
    restarts: int = 0
    saved: SavedCells | None = None
    saved_form: str = ""
    share: SharedPrefix | None = None
    shift: ContextShift | None = None
    dropped: int = 0
    cache_salt: str = ""
    grammar: llama.CompiledGrammar | None = None
    logprobs: OutputLogprobs | None = None
    prompt_logprobs: PromptMeasurement | None = None
    supersede: str | None = None
    gang: Gang[Request] | None = None
    permit: TenantPermit | None = None
    model: str = ""
    events: list[tuple[EventKind, float]] = field(default_factory=list)
    gives_way: bool = False
    handed_over: bool = False
    parks: int = 0
    handovers: int = 0
    parks_in_a_row: int = 0
    delivery: Delivery = field(default_factory=Delivery)

    def __post_init__(self) -> None:
        if self.prompt_logprobs is not None:
            self.note_prompt(())  # a prompt of one token has nothing to measure

    @property
    def prompt_tokens(self) -> int:
        """The length of its prompt in tokens."""
        return len(self.tokens)

    @property
    def scope(self) -> str:
        """Only requests of the same scope share cells."""
        return f"{self.tenant}\0{self.cache_salt}" if self.cache_salt else self.tenant

    @property
    def company(self) -> list[Request]:
        """It and the others that have to start together with it, who are all there."""
        return [self] if self.gang is None or self not in self.gang.waiting else list(self.gang.waiting)

    @property
    def cells(self) -> int:
        """How many KV cells it can come to need."""
        cells = len(self.tokens) + self.max_tokens
        return cells if self.shift is None else min(cells, self.shift.limit)

    @property
    def length(self) -> int:
        """How many tokens its sequence has, prompt and output."""
        return len(self.tokens) + len(self.generated) - self.dropped

    @property
    def shifting(self) -> bool:
        """Whether its cells hold, or may by now, what was computed after tokens that were dropped.

        Nobody else can go on from those, and they change under whoever does not ask the lane. Before it has got all
        the cells that a sequence can hold, its lane does not come that far.
        """
        full = self.shift is not None and self.lease is not None and self.lease.cells >= self.shift.limit
        return full or self.dropped > 0

    @property
    def next_cells(self) -> int:
        """How many KV cells let it run for a while: for what it has, and a block more."""
        return min(self.length + BLOCK, self.cells)

    @property
    def runs_short(self) -> bool:
        """Whether it will soon need more cells than its lease has."""
        assert self.lease is not None
        return self.lease.cells - self.length < BLOCK // 2 and self.lease.cells < self.cells

    @property
    def history(self) -> list[int]:
        """The prompt and what was generated so far, without what was dropped.

        This is what its lane computes before it chooses the next token.
        """
        history = [*self.tokens, *self.generated]
        return history if self.shift is None else self.shift.shorten(history, self.dropped)

    @property
    def findable(self) -> Sequence[int]:
        """The tokens of its history whose cells a lane may use that holds some.

        None while its prompt is being measured: what a token's logits were, its cells do not tell.
        """
        measured = self.prompt_logprobs is None or not self.prompt_logprobs.missing
        return self.history if measured else ()

    def fits_saved(self, lane: PoolLane) -> bool:
        """Return whether a lane can put its saved cells back, if it has any."""
        return self.saved is None or self.saved_form == lane.region.form

    def move(self, state: RequestState) -> None:
        """Go on to `state`; anything but a step that the life of a request has is a programming error."""
        if state not in _NEXT[self.state]:
            raise RuntimeError(f"request {self.id} cannot go from {self.state.value} to {state.value}")
        self.state = state

    def join(self) -> Join:
        """Return the edit that puts it on its lane; called once for each lease, and each time that it is resumed."""
        assert self.lease is not None
        assert self.sampling.seed is not None
        self.since_join = 0
        self.handed_over = False
        saved, self.saved = self.saved, None
        shared = self.share.length if self.share is not None else 0
        self.computed = saved.length if saved is not None else self.lease.cached
        self.reused = max(self.computed, shared) if saved is None else saved.length
        return Join(
            request=self.id,
            sequence=self.lease.sequence,
            tokens=self.history,
            cached=self.computed,
            generated=len(self.generated),
            max_tokens=self.max_tokens - len(self.generated),
            sampling=self.sampling,
            choice=self.choice,
            level=self.level,
            urgency=(*self.key, self.order),
            cells=self.lease.cells if self.lease.cells < self.cells else None,
            saved=saved,
            sheltered=self.sheltered,
            share=self.share,
            measure=range(0) if self.prompt_logprobs is None else self.prompt_logprobs.missing,
            following=None if self.grammar is None else llama.Following(self.grammar, tuple(self.generated)),
        )

    def cells_to_fill(self) -> int:
        """Return how many tokens its lane has to compute before it chooses the first one."""
        return self.length - self.reused

    def cells_filled(self) -> Sequence[int]:
        """Return the tokens that its cells are known to hold, for others to go on from.

        The token chosen last was not computed. Of a prompt that was left half-way, only what was there before counts.
        """
        if self.shifting:
            return ()
        if not self.since_join:
            return self.history[: self.lease.cached if self.lease else 0]
        return self.history[:-1]

    def note_parked(self, parked: Parked) -> None:
        """Take note of what its lane says of its cells, now that it is parked."""
        if self.gives_way and not self.handed_over:
            self.parks += 1
            self.parks_in_a_row += 1
        self.saved = parked.saved
        self.handed_over = self.handed_over and self.saved is not None
        if self.lease is not None:
            self.lease.settle(parked.computed)

    def note_admission(self, now: float) -> bool:
        """Take note that it was put on a lane; returns whether it was for the first time."""
        if self.admitted_at is not None:
            return False
        self.admitted_at = now
        self.cached = self.reused
        return True

    def accept(
        self, token: int, finish: FinishReason | None, now: float, scores: TokenScores | None = None
    ) -> FinishReason | None:
        """Take the next token and hand over the text that it completes; `scores` tell how likely it was.

        Returns why the output ends with it, if it does: for the lane's reason, or because of a stop string.
        """
        if self.first_token_at is None:
            self.first_token_at = now
        self.last_token_at = now
        self.generated.append(token)
        self.since_join += 1
        if self.since_join == PROGRESS:
            self.parks_in_a_row = 0
        if self.logprobs is not None and scores is not None:
            self.logprobs.add(scores, held=self.output.held)
        self._hand_over(self.output.add(token))
        if self.output.stopped:
            return FinishReason.STOP
        if finish is not None:
            self._hand_over(self.output.finish())
        elif self.shift is not None:  # its lane does the same before it computes the token
            self.dropped += self.shift.dropped(self.length)
        return finish

    def note_prompt(self, scores: Sequence[TokenScores]) -> None:
        """Take note of how likely the next tokens of its prompt were, and hand all over once they are complete."""
        assert self.prompt_logprobs is not None
        self.prompt_logprobs.add(scores)
        result = self.prompt_logprobs.result
        if result is not None:
            self.delivery.put_prompt(result)

    def result(self, finish: FinishReason, now: float) -> Result:
        """Return the result of a request that has ended with `finish`."""
        assert self.admitted_at is not None
        assert self.first_token_at is not None
        assert self.sampling.seed is not None
        return Result(
            id=self.id,
            text=self.output.text,
            tokens=tuple(self.generated),
            finish_reason=finish,
            usage=Usage(len(self.tokens), len(self.generated), self.cached),
            timings=Timings(
                wait=self.admitted_at - self.arrival,
                first_token=self.first_token_at - self.arrival,
                total=now - self.arrival,
                per_token=(now - self.first_token_at) / max(1, len(self.generated) - 1),
                lane=self.lane,
                restarts=self.restarts,
                parks=self.parks,
                handovers=self.handovers,
            ),
            seed=self.sampling.seed,
            level=self.level,
            logprobs=None if self.logprobs is None else self.logprobs.released,
            ending=None if self.logprobs is None else self.logprobs.ending,
            cumulative_logprob=None if self.logprobs is None else self.logprobs.cumulative,
            prompt_logprobs=self.delivery.prompt,
            stop=self.output.met,
        )

    def _hand_over(self, text: str) -> None:
        self.delivery.put(text, () if self.logprobs is None else self.logprobs.release(text))

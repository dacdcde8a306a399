"""What the scheduler and a lane say to each other: plans go down, reports come up.

A lane keeps its own running set and never waits for the scheduler. A `StepPlan` edits that set; it waits in the lane's
mailbox until the lane reaches the end of a step, and a newer plan replaces one not yet taken. So that replacing loses
nothing, every plan repeats the edits that no report has acknowledged yet, each with the version of the plan that first
held it; the lane skips those that it knows.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from llamalane.errors import LlamalaneError
from llamalane.ids import MOST_URGENT, Level, PlanVersion, RequestId, SequenceId, StepNumber
from llamalane.streams.sampling import SamplingParameters
from llamalane.streams.token_scores import TokenScores

if TYPE_CHECKING:
    from llamalane.streams.llama import Following, Vector

NO_STEP = StepNumber(0)
"""Stands before a lane's first step."""


class FinishReason(enum.Enum):
    """Why a request's output ended, in OpenAI's words."""

    STOP = "stop"
    """The model ended it, or a stop string was met."""
    LENGTH = "length"
    """`max_tokens` was reached, or the sequence is full."""


class Parking(enum.Enum):
    """What becomes of the cells of a row that is taken off to make room."""

    PAUSE = "pause"
    """They stay where they are."""
    SWAP = "swap"
    """They are copied to host memory, and removed from the lane."""
    RECOMPUTE = "recompute"
    """They are removed; the tokens are computed again when the request goes on."""


@dataclass(frozen=True, slots=True)
class SavedCells:
    """The cells of a sequence's first `length` tokens, in llama.cpp's own form."""

    data: bytearray
    length: int


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """The first `length` tokens of a prompt, which `sequence` holds too.

    `leader` is the request that is computing them just now, None when they are there. Of a leader that stops before,
    what it has computed is used.
    """

    sequence: SequenceId
    length: int
    leader: RequestId | None = None


@dataclass(frozen=True, slots=True)
class Join:
    """Put a request into the running set.

    Attributes:
        request: whose row it is.
        sequence: the row's sequence id, which its lease owns.
        tokens: every token to be computed before the next one is chosen: the prompt, and after a restart also what
            was generated before.
        cached: how many of the first `tokens` the sequence's cells hold already; fewer than `len(tokens)`. The lane
            removes all other cells of the sequence first.
        generated: how many of the last `tokens` were generated, not given.
        max_tokens: how many tokens may still be chosen, at least 1; 0 on a lane that embeds, to which nothing else
            matters of what follows but level, urgency and shelter.
        sampling: how they are chosen; `seed` is set.
        choice: tells apart the outputs of one request with the same seed.
        level: the request's priority: while its prompt is computed, less urgent rows sit out every second step.
        urgency: rows with smaller values have their prompts computed first.
        cells: how many cells the row may fill, None for as many as it comes to need; it sits out when they are full.
        saved: cells to put back first; `cached` is then their length. When they cannot be, all `tokens` are computed.
        sheltered: it never sits out two steps in a row.
        share: where the first tokens' cells can be copied from, instead of being computed.
        following: the grammar of the output, and what there is of the output already.
        measure: which of `tokens` are to be reported with their log probabilities, from 1 on; those up to the first of
            them are not cached.
    """

    request: RequestId
    sequence: SequenceId
    tokens: Sequence[int]
    cached: int
    generated: int
    max_tokens: int
    sampling: SamplingParameters
    choice: int = 0
    level: Level = MOST_URGENT
    urgency: tuple[float, ...] = ()
    cells: int | None = None
    saved: SavedCells | None = None
    sheltered: bool = False
    share: SharedPrefix | None = None
    following: Following | None = None
    measure: range = range(0)


@dataclass(frozen=True, slots=True)
class Leave:
    """Take a request out of the running set, keeping the first `keep` cells of its sequence."""

    request: RequestId
    keep: int


@dataclass(frozen=True, slots=True)
class Park:
    """Take a request out of the running set, to go on later; a paused one's cells can be swapped or given up too."""

    request: RequestId
    sequence: SequenceId
    how: Parking


@dataclass(frozen=True, slots=True)
class Grant:
    """Let a row fill `cells` cells."""

    request: RequestId
    cells: int


@dataclass(frozen=True, slots=True)
class Rank:
    """Let a row have another `level` and `urgency`, as `Join` has them."""

    request: RequestId
    level: Level
    urgency: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Trim:
    """Remove all but the first `keep` cells of a sequence that no row uses."""

    sequence: SequenceId
    keep: int = 0


@dataclass(frozen=True, slots=True)
class Move:
    """Let `to`, which is empty, hold the cells of `sequence`, which no row uses."""

    sequence: SequenceId
    to: SequenceId


@dataclass(frozen=True, slots=True)
class Merge:
    """Let `sequence` share the cells of `source` from `start` to `end`, where it holds the same tokens in others."""

    sequence: SequenceId
    source: SequenceId
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Stow:
    """Save the cells of a sequence that no row uses, then remove all but the first `keep`; `ticket` names them."""

    ticket: int
    sequence: SequenceId
    keep: int = 0


@dataclass(frozen=True, slots=True)
class Restore:
    """Put saved cells into a sequence that no row uses, and keep the first `length`; `ticket` names them.

    `read` gives them, on the lane's thread, or None if they are not to be had.
    """

    ticket: int
    sequence: SequenceId
    read: Callable[[], bytearray | None]
    length: int


Change = Join | Leave | Park | Grant | Rank | Trim | Move | Merge | Stow | Restore


@dataclass(frozen=True, slots=True)
class Edit:
    """One change of the running set; `version` is the first plan that holds it."""

    version: PlanVersion
    change: Change


@dataclass(frozen=True, slots=True)
class StepShare:
    """How many rows less urgent than `protected` have a part in each step; those go first that sat out longest."""

    protected: Level
    others: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Edits to a lane's running set, oldest first, and what holds for every step until the next plan.

    `epoch` counts the contexts that the lane had when the plan was made: a lane that has lost its context since then
    drops the plan. A step may compute `prefill_tokens` of prompts; `share` bounds its less urgent rows, None for no
    bound. `successors` tells that requests wait for places: when a row ends, a plan will follow at once that has
    `heard` of the step in which it did.
    """

    epoch: int
    version: PlanVersion
    edits: tuple[Edit, ...]
    prefill_tokens: int
    share: StepShare | None = None
    successors: bool = False
    heard: StepNumber = NO_STEP


@dataclass(frozen=True, slots=True)
class Parked:
    """A request that was taken off: its cells held `computed` tokens; swapping them took `seconds`."""

    request: RequestId
    computed: int
    saved: SavedCells | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Copied:
    """A request that was to share a prefix, and got its first `length` tokens; it took `seconds`."""

    request: RequestId
    length: int
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Stowed:
    """The cells of a sequence that was to be saved, None when that failed; it took `seconds`."""

    ticket: int
    saved: SavedCells | None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Restored:
    """A sequence that was to be put back: `done` tells whether it holds the cells now, else it is empty.

    `size` is what the cells took, in bytes.
    """

    ticket: int
    done: bool
    size: int = 0


@dataclass(frozen=True, slots=True)
class RowOutput:
    """A token that a row gained in a step, and with the last one the reason; or an error, which ends the row.

    `scores` tell how likely the token was, if its request asks for that. On a lane that embeds it is the row's vector,
    or its scores, with which it ends; `token` is −1 then.
    """

    request: RequestId
    token: int
    finish: FinishReason | None = None
    error: LlamalaneError | None = None
    scores: TokenScores | None = None
    vector: Vector | None = None

    @property
    def ended(self) -> bool:
        """Whether the lane has taken the row out of the running set by itself."""
        return self.finish is not None or self.error is not None


@dataclass(frozen=True, slots=True)
class PromptScores:
    """How likely the next tokens of a request's prompt were, after those that were told before."""

    request: RequestId
    scores: tuple[TokenScores, ...]


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """A request whose prompt had a part in a step: its cells hold the first `computed` tokens now."""

    request: RequestId
    computed: int


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Where one step's time went, in seconds."""

    begin: float
    """When the step started, as `time.monotonic` counts."""
    decode: float
    """In `llama_decode`, until its results could be read."""
    sample: float
    """Choosing tokens."""
    idle: float
    """Between the end of the step before and the start of this one's decode, sampling excluded; 0 after sleep."""
    threads: int = 0
    """CPU threads that computed it; 0 if that is not known."""


@dataclass(frozen=True, slots=True)
class StepReport:
    """One step, or a plan taken without one.

    Attributes:
        lane: the lane's name.
        step: the step's number; unchanged when nothing was computed.
        version: the newest plan that the lane has taken; its edits are acknowledged.
        left: requests that left by a plan's edit, whether or not the lane knew them.
        parked: requests that were taken off by a plan's edit, or whose cells were, whether or not the lane knew them.
        copied: requests that have got the prefix which they were to share, or as much of it as there was.
        stowed: sequences that were saved.
        restored: sequences that were put back, or could not be.
        started: requests that had their first rows in this step.
        outputs: what each row gained.
        prompt_scores: what the step tells of prompts.
        prompts: how far the prompts are that had a part in the step.
        decode_rows: rows that computed one generated token.
        prefill_tokens: prompt tokens computed.
        drafted_tokens: tokens that were computed as drafts, beside those.
        accepted_tokens: how many of them turned out right. Each is an output more of its row, which tell its tokens in
            their order.
        times: None when nothing was computed.
        abandoned: the step was broken off, and none of its rows has advanced.
    """

    lane: str
    step: StepNumber
    version: PlanVersion
    left: tuple[RequestId, ...] = ()
    parked: tuple[Parked, ...] = ()
    copied: tuple[Copied, ...] = ()
    stowed: tuple[Stowed, ...] = ()
    restored: tuple[Restored, ...] = ()
    started: tuple[RequestId, ...] = ()
    outputs: tuple[RowOutput, ...] = ()
    prompt_scores: tuple[PromptScores, ...] = ()
    prompts: tuple[PromptProgress, ...] = ()
    decode_rows: int = 0
    prefill_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    times: StepTimes | None = None
    abandoned: bool = False


@dataclass(frozen=True, slots=True)
class LaneFailed:
    """The lane's context failed: its running set and all its cells are gone, and plans of earlier epochs are dropped.

    The lane builds a new context and says `LaneReady`, or, after too many failures in a row, ends (`down`).
    """

    lane: str
    epoch: int
    error: LlamalaneError
    down: bool


@dataclass(frozen=True, slots=True)
class LaneReady:
    """The lane has a new, empty context."""

    lane: str


LaneMessage = StepReport | LaneFailed | LaneReady
Receiver = Callable[[LaneMessage], None]
"""Takes a lane's message; called on the lane's thread, and must not block."""


class LaneBackend(Protocol):
    """What the scheduler needs of a lane: anything that can carry out step plans can be scheduled."""

    @property
    def name(self) -> str:
        """The lane's name, unique within its pool."""

    @property
    def max_step_tokens(self) -> int:
        """The most tokens that one step can compute."""

    def start(self, receiver: Receiver) -> None:
        """Begin to carry out plans, sending each message to `receiver`. Called once."""

    def post(self, plan: StepPlan) -> None:
        """Lay `plan` into the mailbox, in place of one that was not taken yet. Never blocks."""

    def abandon(self, step: StepNumber) -> None:
        """Break off that step if it is under way and the lane can; never blocks for long."""

    def close(self) -> None:
        """End after the step under way, and free everything. Blocks until that is done; may be repeated."""

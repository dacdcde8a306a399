"""Whether a prompt is computed on a lane for prompts, and its cells handed over to the lane of its output. Pure.

Where a prompt is computed beside running outputs, each of them waits for it. A lane that computes prompts only keeps
them apart (as DuetServe and other servers that divide the two do), and in return the cells have to be saved there and
put back on the other lane. What is compared is the time that all of the requests lose together.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from llamalane.scheduler.parking import ParkingCosts

SHORT = 64
"""A prompt with so many tokens to compute, or fewer, always starts where its output will be computed."""

_WEIGHT = 0.1
"""How much the newest step counts in a running mean."""


class LaneRole(enum.Enum):
    """What a lane is for."""

    ANY = "any"
    """Prompts and outputs."""
    PREFILL = "prefill"
    """Prompts; their requests are handed over once they have got a token."""
    DECODE = "decode"
    """Outputs; prompts too, where they are short or a handover does not pay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectStart:
    """A prompt that is computed on the lane of its output.

    Attributes:
        tokens: how many of its tokens have to be computed there.
        outputs: the running outputs of that lane, which wait for it.
        token_seconds: how long a prompt token takes there, None while that is unknown.
    """

    tokens: int
    outputs: int
    token_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """The same prompt, computed on a lane for prompts.

    Attributes:
        tokens: how many of its tokens have to be computed there.
        before: tokens of other prompts that the lane computes before.
        token_seconds: how long a prompt token takes there.
        cells: how many cells are handed over, 0 if the first token is also the last.
    """

    tokens: int
    before: int
    token_seconds: float
    cells: int


class Slowdown:
    """Learns how much slower outputs are computed while a lane for prompts computes on the same machine."""

    def __init__(self) -> None:
        self._undisturbed: dict[tuple[str, int], float] = {}
        """Seconds of a step without prompts, by its lane and rows, with no other lane computing prompts."""
        self._ratio = 1.0

    @property
    def share(self) -> float:
        """Which part of its time an output loses meanwhile: at least 0, less than 1; 0 until it was measured."""
        return max(0.0, 1 - 1 / self._ratio)

    def observe(self, lane: str, rows: int, seconds: float, *, disturbed: bool) -> None:
        """Learn from a step of `rows` outputs and no prompt; `disturbed` tells that a lane computed prompts then."""
        usual = self._undisturbed.get((lane, rows))
        if not disturbed:
            self._undisturbed[lane, rows] = seconds if usual is None else usual + _WEIGHT * (seconds - usual)
        elif usual and seconds > 0:
            self._ratio += _WEIGHT * (seconds / usual - self._ratio)


class HandoverPolicy:
    """Decides which prompts are computed on lanes for prompts.

    `roles` tells what each lane is for, by its name, and `costs` what saving cells takes and whether there is memory
    for them. With `always`, every prompt of more than `short` tokens, at least 1, is handed over that can be; else
    those for which that saves time.
    """

    def __init__(
        self, roles: Mapping[str, LaneRole], costs: ParkingCosts, *, always: bool = False, short: int = SHORT
    ) -> None:
        self.slowdown = Slowdown()
        self._roles = dict(roles)
        self._costs = costs
        self._always = always
        self._short = short

    def role(self, lane: str) -> LaneRole:
        """Return what a lane is for."""
        return self._roles.get(lane, LaneRole.ANY)

    def is_short(self, tokens: int) -> bool:
        """Return whether so many tokens are too few to be computed elsewhere."""
        return tokens <= self._short

    def fits(self, cells: int) -> bool:
        """Return whether so many cells can be saved, as far as it is known how large they are."""
        return self._costs.fits(cells)

    def pays(self, direct: DirectStart, handover: Handover) -> bool:
        """Return whether a prompt is handed over rather than computed where its output will be.

        Never a short one, or one whose cells could not be saved. And unless it is always done, not while no output
        runs there that would have to wait, nor before it is known how quick the lane is.
        """
        if self.is_short(direct.tokens) or (handover.cells and not self.fits(handover.cells)):
            return False
        if self._always:
            return True
        if not direct.outputs or direct.token_seconds is None:
            return False
        return self.seconds_by_handover(direct.outputs, handover) < _seconds_directly(direct)

    def seconds_by_handover(self, outputs: int, handover: Handover) -> float:
        """Return the seconds that a prompt's handover takes from its own request and from `outputs` others together.

        Its own waits for the prompts before it, for its own, and until its cells are saved and put back. The others
        wait while they are put back, and are slower as long as the prompt is computed.
        """
        computing = handover.tokens * handover.token_seconds
        swapping = self._costs.swap_seconds(handover.cells)
        own = handover.before * handover.token_seconds + computing + swapping
        return own + outputs * (swapping / 2 + computing * self.slowdown.share)


def _seconds_directly(direct: DirectStart) -> float:
    """Return the seconds that a prompt takes from its own request, and from those that wait for it, together."""
    assert direct.token_seconds is not None
    return (1 + direct.outputs) * direct.tokens * direct.token_seconds

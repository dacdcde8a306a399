"""What is simulated: lanes, their places and their speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from llamalane.bench.simulator.lane import StepTimes
from llamalane.bench.simulator.request import SECOND
from llamalane.ids import Level
from llamalane.scheduler.priority import LEVELS

_CHUNK = 128
"""Prompt tokens in a step, where a prompt's cost is estimated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The simulated machine.

    Attributes:
        places: how many sequences each lane runs at once.
        speed: how long its steps take.
        max_step_tokens: the most tokens in one step, at least each lane's places.
        targets: for each level, how many seconds there should be at most between two tokens.
        cells: KV cells for each place: those of a lane are shared by all that run, are paused or are kept there.
        spare: how many sequences of a lane can hold cells beyond its places, None for as many as places: those of
            paused requests. The cells of other parked requests go to host memory.
        can_abandon: whether a step can be broken off.
    """

    places: Sequence[int]
    speed: StepTimes
    max_step_tokens: int = 512
    targets: Mapping[Level, float] = field(default_factory=lambda: dict.fromkeys(LEVELS, 0.15))
    cells: int = 2048
    spare: int | None = None
    can_abandon: bool = False

    @property
    def sequences(self) -> list[int]:
        """How many sequences of each lane can hold cells."""
        return [count + (count if self.spare is None else self.spare) for count in self.places]

    def capacity(self, prompt_tokens: float, output_tokens: float) -> float:
        """Return about how many requests of these mean lengths the machine can serve in a second.

        An estimate, to choose loads by: every step is taken to be full.
        """
        return sum(1 / self._seconds_each(places, prompt_tokens, output_tokens) for places in self.places)

    def _seconds_each(self, places: int, prompt_tokens: float, output_tokens: float) -> float:
        beside = self.speed.step(places - 1, 0) if places > 1 else 0
        for_token = (self.speed.step(places - 1, _CHUNK) - beside) / _CHUNK
        for_output = self.speed.step(places, 0) / places
        return (prompt_tokens * for_token + output_tokens * for_output) / SECOND

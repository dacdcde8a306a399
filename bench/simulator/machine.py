"""What is simulated: lanes, their places and their speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from llamalane.bench.simulator.lane import StepTimes
from llamalane.bench.simulator.passes import Part, passes_of
from llamalane.bench.simulator.request import SECOND, Picoseconds
from llamalane.ids import Level
from llamalane.scheduler.ledger import STRETCH
from llamalane.scheduler.pacing import SMALLEST_CHUNK
from llamalane.scheduler.priority import LEVELS


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
        partitioned: whether each sequence has cells of its own, which decides into which passes a step falls.
        micro_batch: the most tokens in one pass.
        can_abandon: whether a step can be broken off.
    """

    places: Sequence[int]
    speed: StepTimes
    max_step_tokens: int = 512
    targets: Mapping[Level, float] = field(default_factory=lambda: dict.fromkeys(LEVELS, 0.15))
    cells: int = 2048
    spare: int | None = None
    partitioned: bool = False
    micro_batch: int = 512
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
        length = round(prompt_tokens + output_tokens / 2)
        rows = [Part(sequence, length, 1) for sequence in range(places)]
        beside = self._step(rows[:-1]) if places > 1 else 0
        for_token = self._for_token(rows[:-1], beside, Part(places - 1, round(prompt_tokens / 2), SMALLEST_CHUNK))
        for_output = self._step(rows) / places
        return (prompt_tokens * for_token + output_tokens * for_output) / SECOND

    def _for_token(self, rows: Sequence[Part], beside: Picoseconds, chunk: Part) -> float:
        """Return what each token of a chunk adds to a step of these rows.

        The chunk is as large as the scheduler makes it for a long prompt: so that it stretches the step only so much.
        """
        tokens = min(chunk.tokens, self.max_step_tokens)
        while 2 * tokens <= self.max_step_tokens:
            larger = chunk._replace(tokens=2 * tokens)
            if rows and self._step([*rows, larger]) > STRETCH * beside:
                break
            tokens *= 2
        return (self._step([*rows, chunk._replace(tokens=tokens)]) - beside) / tokens

    def _step(self, parts: Sequence[Part]) -> Picoseconds:
        passes = passes_of(parts, partitioned=self.partitioned, micro_batch=self.micro_batch)
        return self.speed.step(passes, len(parts))

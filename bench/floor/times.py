"""What a lane did in some time, and on what it spent it."""

from __future__ import annotations

from dataclasses import dataclass

from llamalane.scheduler import EngineStatistics


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneTimes:
    """A lane's work. Times are in seconds.

    Attributes:
        seconds: how long it was watched.
        tokens: how many were chosen.
        decode: in `llama_decode`.
        sample: choosing tokens.
        idle: between steps, while there was work.
    """

    seconds: float
    steps: int
    tokens: int
    decode: float
    sample: float
    idle: float

    @property
    def tokens_per_second(self) -> float:
        """Tokens for each second."""
        return self.tokens / self.seconds

    @property
    def idle_share(self) -> float:
        """The share of the time between steps."""
        return self.idle / self.seconds

    @property
    def idle_step(self) -> float:
        """Seconds from the end of a step, sampling included, to the next one."""
        return self.idle / self.steps if self.steps else 0.0

    @classmethod
    def of(cls, statistics: EngineStatistics, now: float) -> LaneTimes:
        """Return what the first lane of an engine has done by `now`."""
        lane = statistics.lanes[0]
        return cls(
            seconds=now,
            steps=lane.steps,
            tokens=statistics.counters.completion_tokens,
            decode=lane.decode_seconds,
            sample=lane.sample_seconds,
            idle=lane.idle_seconds,
        )

    def since(self, earlier: LaneTimes) -> LaneTimes:
        """Return what was done after `earlier`."""
        return LaneTimes(
            seconds=self.seconds - earlier.seconds,
            steps=self.steps - earlier.steps,
            tokens=self.tokens - earlier.tokens,
            decode=self.decode - earlier.decode,
            sample=self.sample - earlier.sample,
            idle=self.idle - earlier.idle,
        )

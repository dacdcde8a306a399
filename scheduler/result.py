"""What a finished request returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from llamalane.ids import Level, RequestId
from llamalane.scheduler.logprobs import OutputToken, PromptLogprobs
from llamalane.streams import FinishReason

if TYPE_CHECKING:
    from llamalane.streams.llama import Vector


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts, as OpenAI counts them.

    Attributes:
        prompt_tokens: the prompt's length.
        completion_tokens: tokens generated, an end-of-generation token included.
        cached_tokens: how many of the prompt's tokens were already in the KV cache.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int

    @property
    def total_tokens(self) -> int:
        """Prompt and completion together."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class Timings:
    """Where a request's time went, in seconds from its submission.

    Attributes:
        wait: until it was admitted to a lane.
        first_token: until its first token.
        total: until its end.
        lane: the lane that finished it.
        per_token: mean time from one token to the next; 0 when there was one.
        restarts: how often its lane failed under it.
        parks: how often it had to give way.
        handovers: how often it left the lane that had computed its prompt for another one.
    """

    wait: float
    first_token: float
    total: float
    per_token: float
    lane: str
    restarts: int
    parks: int
    handovers: int


@dataclass(frozen=True, slots=True, eq=False)
class EmbeddingResult:
    """A text's vector, or the scores of a query and a document.

    Attributes:
        vector: float32, shape (numbers,), as the model gives it.
        prompt_tokens: the length of what was computed.
        wait, total: seconds until it was admitted to a lane, and until its end, both from its submission.
        lane: the lane that computed it.
    """

    id: RequestId
    vector: Vector
    prompt_tokens: int
    wait: float
    total: float
    lane: str
    level: Level


@dataclass(frozen=True, slots=True)
class Result:
    """A finished request.

    Attributes:
        text: the output, without the stop string that ended it.
        tokens: the tokens generated, an end-of-generation token included.
        seed: what its random numbers came from; the same seed repeats the output.
        logprobs: the tokens that `text` consists of, with their log probabilities, if the request asked for them; not
            those that stand for nothing, as what ends a generation, and not those of a stop string.
        ending: the last of `tokens`, likewise, if it stands for nothing, as one that ends a generation does.
        cumulative_logprob: the sum of the log probabilities of all `tokens`, likewise.
        prompt_logprobs: the tokens of the prompt with theirs, if the request asked for them.
        stop: the stop string that ended it, None if none did.
    """

    id: RequestId
    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    timings: Timings
    seed: int
    level: Level
    logprobs: tuple[OutputToken, ...] | None = None
    ending: OutputToken | None = None
    cumulative_logprob: float | None = None
    prompt_logprobs: PromptLogprobs | None = None
    stop: str | None = None

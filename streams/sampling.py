"""What a request may say about how its tokens are chosen."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from llamalane.errors import InvalidRequestError
from llamalane.streams.grammar import Grammar

MAX_SEED = 2**64 - 1
MAX_STOP_STRINGS = 16
MAX_STOP_LENGTH = 1024
MAX_OUTPUT_TOKENS = 2**31 - 1
MAX_ALTERNATIVES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParameters:
    """How tokens are chosen and when generation ends.

    A field that is not set has llama-server's default. Raises `InvalidRequestError` with the legal range for a value
    outside it.

    Attributes:
        max_tokens: the most tokens to generate, at least 1; None: until the sequence is full.
        temperature: ≥ 0; 0 always takes the likeliest token.
        top_k: keep the k likeliest tokens; 0 keeps all.
        top_p: keep the smallest set of tokens whose probability reaches p, 0 < p ≤ 1 (Holtzman et al., 2019).
        min_p: drop tokens less likely than min_p times the likeliest, 0 ≤ min_p ≤ 1.
        repeat_penalty: > 0; divides the logits of recent tokens, 1 leaves them.
        repeat_last_n: how many recent tokens, prompt included, the penalties look at; 0 turns them off, -1 means all
            that fit a sequence.
        presence_penalty: −2 … 2, subtracted from the logit of each token seen in that window.
        frequency_penalty: −2 … 2, subtracted once for each time it was seen.
        seed: 0 … 2⁶⁴ − 1; the same seed, prompt and numbers give the same tokens. None: a random one, told in the
            result.
        stop: texts that end generation; they are not part of the output.
        logit_bias: token → −100 … 100, or −inf to forbid it, added to its logit.
        ignore_eos: never choose an end-of-generation token, but where the grammar allows nothing else.
        grammar: what form the output has; generation ends when it is complete.
        logprobs: None, or beside how many of the likeliest tokens in its place, 0 … 20, each token of the output is
            told with its log probability. It is the natural logarithm of what the model's own logits give a token:
            before biases, penalties, temperature, cuts and the grammar. So a token that was chosen need not be among
            the likeliest, and one that was forbidden may be.
        prompt_logprobs: the same for the tokens of the prompt. All of it is computed then, in chunks that are smaller
            than usual: nothing that was cached of it is used.
    """

    max_tokens: int | None = None
    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    ignore_eos: bool = False
    grammar: Grammar | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None

    def __post_init__(self) -> None:
        if self.max_tokens is not None:
            _whole("max_tokens", self.max_tokens, 1, MAX_OUTPUT_TOKENS)
        _within("temperature", self.temperature, 0, 100)
        _whole("top_k", self.top_k, 0, 2**31 - 1)
        _above_zero("top_p", self.top_p, 1)
        _within("min_p", self.min_p, 0, 1)
        _above_zero("repeat_penalty", self.repeat_penalty, 100)
        _whole("repeat_last_n", self.repeat_last_n, -1, 2**31 - 1)
        _within("presence_penalty", self.presence_penalty, -2, 2)
        _within("frequency_penalty", self.frequency_penalty, -2, 2)
        if self.seed is not None:
            _whole("seed", self.seed, 0, MAX_SEED)
        self._check_stop()
        self._check_logit_bias()
        if not isinstance(self.ignore_eos, bool):
            raise InvalidRequestError(f"ignore_eos must be true or false; got {self.ignore_eos!r}", param="ignore_eos")
        if not isinstance(self.grammar, Grammar | None):
            raise InvalidRequestError(f"grammar must be a Grammar or None; got {self.grammar!r:.200}", param="grammar")
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                _whole(name, getattr(self, name), 0, MAX_ALTERNATIVES)

    def _check_stop(self) -> None:
        if not isinstance(self.stop, list | tuple) or not all(isinstance(text, str) for text in self.stop):
            raise InvalidRequestError(f"stop must be a sequence of strings; got {self.stop!r}", param="stop")
        if len(self.stop) > MAX_STOP_STRINGS:
            raise InvalidRequestError(
                f"at most {MAX_STOP_STRINGS} stop strings are allowed; got {len(self.stop)}", param="stop"
            )
        for text in self.stop:
            if not 0 < len(text) <= MAX_STOP_LENGTH:
                raise InvalidRequestError(
                    f"a stop string must have from 1 to {MAX_STOP_LENGTH} characters; got {len(text)}", param="stop"
                )

    def _check_logit_bias(self) -> None:
        if not isinstance(self.logit_bias, Mapping):
            raise InvalidRequestError(
                f"logit_bias must map tokens to numbers; got {self.logit_bias!r}", param="logit_bias"
            )
        for token, bias in self.logit_bias.items():
            if not _is_integer(token) or token < 0:
                raise InvalidRequestError(f"logit_bias tokens must be integers; got {token!r}", param="logit_bias")
            if not _is_number(bias) or (bias != -math.inf and not -100 <= bias <= 100):
                raise InvalidRequestError(
                    f"logit_bias must be from -100 to 100, or -inf; got {bias!r} for token {token}",
                    param="logit_bias",
                )

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.temperature == 0 or self.top_k == 1

    @property
    def penalizes(self) -> bool:
        """Whether recent tokens change the logits."""
        changes = self.repeat_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0
        return changes and self.repeat_last_n != 0


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, float) or _is_integer(value)


def _within(name: str, value: float, lowest: int, highest: int) -> None:
    if not _is_number(value) or not lowest <= value <= highest:
        raise InvalidRequestError(f"{name} must be from {lowest} to {highest}; got {value!r}", param=name)


def _whole(name: str, value: int, lowest: int, highest: int) -> None:
    _within(name, value, lowest, highest)
    if not _is_integer(value):
        raise InvalidRequestError(f"{name} must be an integer; got {value!r}", param=name)


def _above_zero(name: str, value: float, highest: int) -> None:
    if not _is_number(value) or not 0 < value <= highest:
        raise InvalidRequestError(f"{name} must be above 0 and at most {highest}; got {value!r}", param=name)

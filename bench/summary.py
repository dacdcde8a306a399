"""Numbers that sum up a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from llamalane.bench.latencies import Distribution, Latencies, Window
from llamalane.bench.reading import Record

__all__ = ["Distribution", "LoadSummary", "Objective", "Window", "summarize"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """What a request should see at least: its service level objective, in seconds; None asks for nothing.

    Attributes:
        first_token: within so long its first token should come.
        inter_token: so far apart its tokens should be in the mean.
    """

    first_token: float | None = None
    inter_token: float | None = None

    def met(self, record: Record) -> bool:
        """Whether a request was answered in full, and in time."""
        first, further = record.time_to_first_token, record.time_per_output_token
        if record.error is not None or record.cut or first is None:
            return False
        return (self.first_token is None or first <= self.first_token) and (
            self.inter_token is None or further is None or further <= self.inter_token
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSummary:
    """A run in numbers. Times are in seconds; latencies are those that came to their end in the window.

    Attributes:
        requests: requests that ended, with an error or without; refused ones are counted apart.
        cut: requests under way when the clients were stopped.
        rejections: tries that the server had no room for (429 or 503).
        errors: how often each other error was met.
        wrong_length: answers without an error that have not exactly as many tokens as asked for, as the server counts.
        uncounted: answers without an error of which the server did not say how many tokens they have.
        cached_share: share of all prompt tokens that the server took from a cache.
        window: length of the window.
        tokens_per_second: generated tokens that came within the window; None without a window.
        requests_per_second: answers that were whole within the window; None without a window.
        goodput: those of them that met the objective; None without an objective.
        time_to_first_token: from the start of a request.
        time_per_output_token: a request's mean from one token to the next.
        inter_token: from one piece of text to the next.
        end_to_end: from the start of a request to its last byte.
        with_retries: the same from the first try on, of requests that had been refused before.
        time_to_refusal: from the start of a refused try to its last byte.
        generator_cpu: CPU seconds that the clients used for each second, as a share of one core.
    """

    requests: int
    cut: int
    rejections: int
    errors: dict[str, int]
    wrong_length: int
    uncounted: int
    cached_share: float | None
    window: float
    tokens_per_second: float | None
    requests_per_second: float | None
    goodput: float | None
    time_to_first_token: Distribution | None
    time_per_output_token: Distribution | None
    inter_token: Distribution | None
    end_to_end: Distribution | None
    with_retries: Distribution | None
    time_to_refusal: Distribution | None
    generator_cpu: float


def summarize(
    records: Sequence[Record], window: Window, generator_cpu: float, objective: Objective | None = None
) -> LoadSummary:
    """Sum up a run."""
    served = [record for record in records if not record.refused]
    ended = [record for record in served if not record.cut]
    good = [record for record in ended if record.error is None]
    in_time = [record for record in good if record.ended is not None and record.ended in window]
    prompts = sum(record.prompt_tokens or 0 for record in good)
    cached = sum(record.cached_tokens or 0 for record in good)
    counted = [record for record in good if record.output_tokens is not None]
    latencies = Latencies.of(records, window)
    return LoadSummary(
        requests=len(ended),
        cut=len(served) - len(ended),
        rejections=len(records) - len(served),
        errors=dict(Counter(record.error for record in served if record.error is not None)),
        wrong_length=sum(record.output_tokens != record.asked_tokens for record in counted),
        uncounted=len(good) - len(counted),
        cached_share=cached / prompts if prompts else None,
        window=window.seconds,
        tokens_per_second=_tokens_per_second(records, good, window),
        requests_per_second=_rate(in_time, window),
        goodput=None if objective is None else _rate(filter(objective.met, in_time), window),
        time_to_first_token=Distribution.of(latencies.time_to_first_token),
        time_per_output_token=Distribution.of(latencies.time_per_output_token),
        inter_token=Distribution.of(latencies.inter_token),
        end_to_end=Distribution.of(latencies.end_to_end),
        with_retries=Distribution.of(latencies.with_retries),
        time_to_refusal=Distribution.of(latencies.time_to_refusal),
        generator_cpu=generator_cpu,
    )


def _rate(records: Iterable[Record], window: Window) -> float | None:
    return sum(1 for _ in records) / window.seconds if window.seconds else None


def _tokens_per_second(records: Sequence[Record], good: Sequence[Record], window: Window) -> float | None:
    """Count pieces of text in the window, and turn them into tokens as the whole answers' usage says."""
    if not window.seconds:
        return None
    pieces = sum(time in window for record in records for time in record.token_times)
    whole_pieces = sum(len(record.token_times) for record in good)
    whole_tokens = sum(record.output_tokens or 0 for record in good)
    tokens_per_piece = whole_tokens / whole_pieces if whole_pieces and whole_tokens else 1.0
    return pieces * tokens_per_piece / window.seconds

"""Prompts are fresh, varied, and the same again for the same seed."""

from __future__ import annotations

from itertools import islice

from llamalane.bench.workload import Question, Span, Workload


def take(workload: Workload, seed: int, client: int, count: int = 200) -> list[Question]:
    return list(islice(workload.questions(seed, client), count))


def test_the_same_seed_asks_the_same() -> None:
    assert take(Workload(), 1, 2) == take(Workload(), 1, 2)


def test_every_prompt_is_new() -> None:
    prompts = [one.prompt for seed in (1, 2) for client in (0, 1) for one in take(Workload(), seed, client)]
    assert len(set(prompts)) == len(prompts)


def test_lengths_fill_their_ranges() -> None:
    questions = take(Workload(words=Span(3, 5), output_tokens=Span(7, 9)), 1, 0)
    assert {len(one.prompt.split()) for one in questions} == {3, 4, 5}
    assert {one.output_tokens for one in questions} == {7, 8, 9}


def test_a_span_around_a_mean() -> None:
    assert Span.around(40, 0.3) == Span(28, 52)
    assert Span.around(1, 1.0) == Span(1, 2)
    assert str(Span(12, 12)) == "12"

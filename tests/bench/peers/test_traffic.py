"""What the clients ask for under each name."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest

from llamalane.bench.exchange import Target
from llamalane.bench.peers.kinds import Traffic
from llamalane.bench.peers.traffic import RepeatedPrompts, SharedPrefixes, make_source, workload
from llamalane.bench.workload import Question, Source


def take(source: Source, client: int = 0, count: int = 60, seed: int = 1) -> list[Question]:
    return list(islice(source.questions(seed, client), count))


@pytest.mark.parametrize("traffic", Traffic)
def test_the_same_seed_asks_the_same(traffic: Traffic) -> None:
    source = make_source(traffic, None, None)
    assert take(source) == take(source)
    assert take(source) != take(source, client=1)
    assert take(source)[0].prompt != take(source, seed=2)[0].prompt


@pytest.mark.parametrize(
    ("traffic", "words"), [(Traffic.FRESH, 40), (Traffic.SHORT_CHAT, 12), (Traffic.LONG_PROMPT, 300)]
)
def test_prompts_are_as_long_as_their_name_says(traffic: Traffic, words: int) -> None:
    lengths = [len(one.prompt.split()) for one in take(make_source(traffic, None, None))]
    assert 0.7 * words - 1 <= min(lengths) <= max(lengths) <= 1.3 * words + 1


def test_lengths_can_be_chosen() -> None:
    questions = take(make_source(Traffic.LONG_PROMPT, 10, 20))
    assert all(7 <= len(one.prompt.split()) <= 13 and 14 <= one.output_tokens <= 26 for one in questions)


def test_prefixes_are_shared_by_all_clients() -> None:
    source = SharedPrefixes(questions_of=workload(5, 5), prefixes=2, prefix_words=30)
    questions = [one for client in (0, 1, 2) for one in take(source, client)]
    prefixes = Counter(" ".join(one.prompt.split()[:30]) for one in questions)
    assert len(prefixes) == 2
    assert min(prefixes.values()) > 30
    assert len({one.prompt for one in questions}) == len(questions)


def test_repeated_prompts_are_few_and_asked_by_all_clients() -> None:
    source = RepeatedPrompts(questions_of=workload(5, 5), prompts=4)
    first, second = ({one.prompt for one in take(source, client)} for client in (0, 1))
    assert first == second
    assert len(first) == 4
    assert len({one.seed for one in take(source)}) == 60, "the answers differ"


def test_each_client_is_of_one_class_with_its_level() -> None:
    source = make_source(Traffic.MIXED, None, None)
    classes = [{(one.kind, one.level) for one in take(source, client)} for client in range(5)]
    assert classes == [{("interactive", 1)}, {("normal", 3)}, {("batch", 5)}, {("batch", 5)}, {("interactive", 1)}]
    interactive, batch = take(source, 0), take(source, 2)
    assert max(one.output_tokens for one in interactive) < min(one.output_tokens for one in batch)


def test_the_level_goes_into_a_header_that_others_ignore() -> None:
    source = make_source(Traffic.MIXED, None, None)
    request = Target(url="http://host", model="m").encode(take(source, 2)[0], source)
    head, _, body = request.partition(b"\r\n\r\n")
    assert b"\r\nX-Priority: 5" in head
    assert b"priority" not in body

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from llamalane.ids import PlanVersion
from llamalane.streams import StepPlan
from llamalane.streams.mailbox import Mailbox

TIMEOUT = 30.0


def plan(version: int) -> StepPlan:
    return StepPlan(epoch=0, version=PlanVersion(version), edits=(), prefill_tokens=0)


@pytest.fixture
def eager_threads() -> Iterator[None]:
    """Let threads change places as often as possible, so that what is not atomic comes apart."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def test_a_plan_is_taken_once() -> None:
    mailbox = Mailbox()
    assert mailbox.take(0) is None
    first = plan(1)
    mailbox.post(first)
    assert mailbox.take(0) is first
    assert mailbox.take(0) is None


def test_a_newer_plan_replaces_one_that_was_not_taken() -> None:
    mailbox = Mailbox()
    mailbox.post(plan(1))
    mailbox.post(plan(2))
    taken = mailbox.take(None)
    assert taken is not None
    assert taken.version == 2
    assert mailbox.take(0) is None


def test_whoever_waits_gets_the_plan() -> None:
    mailbox = Mailbox()
    with ThreadPoolExecutor(1) as executor:
        waiting = executor.submit(mailbox.take, None)
        first = plan(1)
        mailbox.post(first)
        assert waiting.result(TIMEOUT) is first


def test_closing_wakes_whoever_waits() -> None:
    mailbox = Mailbox()
    assert not mailbox.closed
    with ThreadPoolExecutor(1) as executor:
        waiting = executor.submit(mailbox.take, None)
        mailbox.close()
        assert waiting.result(TIMEOUT) is None
    assert mailbox.closed
    assert mailbox.take(None) is None


@pytest.mark.usefixtures("eager_threads")
def test_no_plan_is_lost_between_looking_and_taking() -> None:
    # A plan that comes while another is taken out must stay: each round ends only when its last plan was seen.
    mailbox, rounds = Mailbox(), 2000
    seen: list[int] = []
    round_over = threading.Semaphore(0)

    def take_all() -> None:
        # Looking all the time, as a lane does between its steps, hits the moments that count more often than waiting.
        while not mailbox.closed:
            taken = mailbox.take(0)
            if taken is not None:
                seen.append(taken.version)
                if taken.version % 2 == 0:
                    round_over.release()

    with ThreadPoolExecutor(1) as executor:
        taking = executor.submit(take_all)
        try:
            for number in range(rounds):
                mailbox.post(plan(2 * number + 1))
                mailbox.post(plan(2 * number + 2))
                assert round_over.acquire(timeout=TIMEOUT), f"plan {2 * number + 2} was lost"
        finally:
            mailbox.close()
        taking.result(TIMEOUT)
    assert seen == sorted(set(seen)), "a plan was taken twice, or after a newer one"


@pytest.mark.usefixtures("eager_threads")
def test_many_takers_share_the_plans_without_a_double() -> None:
    mailbox = Mailbox()

    def take_some() -> list[int]:
        taken: list[int] = []
        while (found := mailbox.take(None)) is not None:
            taken.append(found.version)
        return taken

    with ThreadPoolExecutor(4) as executor:
        takers = [executor.submit(take_some) for _ in range(4)]
        for number in range(2000):
            mailbox.post(plan(number))
        mailbox.close()
        for _ in takers:
            mailbox.close()  # each call wakes one
        taken = [version for taker in takers for version in taker.result(TIMEOUT)]
    assert len(taken) == len(set(taken))

"""What a viewer is told: all of it at first, then what has changed; of other tenants only numbers; never any text."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from llamalane.api.dashboard import feed as feed_module
from llamalane.scheduler import recorder as recorder_module
from llamalane.streams import Parking
from tests.api.dashboard.lookout import feed_of, lane_of, states_of
from tests.scheduler.harness import Harness, Start

CANARY = "Rumpelstiltskin"


@pytest.fixture
def start() -> Iterator[Start]:
    harnesses: list[Harness] = []

    def begin(places: tuple[int, ...] = (2,), **options: object) -> Harness:
        harnesses.append(Harness(places, **options))  # type: ignore[arg-type]
        return harnesses[-1]

    yield begin
    for harness in harnesses:
        harness.close()


def test_a_snapshot_tells_who_waits_who_runs_and_who_has_ended(start: Start) -> None:
    harness = start((1,))
    harness.submit(2, prompt="abc", max_tokens=2)
    harness.run()
    harness.submit(1, prompt="wxyz", max_tokens=30)
    harness.tick()
    harness.step(3)
    harness.submit(5, prompt="xy")
    harness.tick()
    snapshot = feed_of(harness).snapshot()
    assert states_of(snapshot) == {"request-1": "length", "request-2": "running", "request-3": "waiting"}
    assert (snapshot["object"], snapshot["state"], snapshot["model"]) == ("dashboard.snapshot", "ready", "scripted")
    assert snapshot["levels"][0] == {"level": 1, "name": "interactive"}
    assert (snapshot["waiting"][5], snapshot["running"][1], snapshot["places"]) == (1, 1, 1)
    running = snapshot["requests"][1]
    assert (running["prompt_tokens"], running["generated_tokens"], running["max_tokens"]) == (4, 3, 30)
    assert running["lane"] == "lane-0"
    assert [name for name, _ in running["events"]] == ["accepted", "admitted", "started"]
    lane = lane_of(snapshot)
    computed = [(rows, tokens) for _, _, _, rows, tokens, abandoned in lane["new_steps"] if not abandoned]
    assert computed == [(0, 3), (1, 0), (0, 4), (1, 0), (1, 0)]
    assert ["running", 34, running["sequence"], "request-2"] in lane["holdings"]
    latency = {one["level"]: one["first_token"]["count"] for one in snapshot["latency"]}
    assert latency == {1: 1, 2: 1, 3: 0, 4: 0, 5: 0}
    assert sum(generated for _, generated, _ in snapshot["tokens"]) == 5


def test_an_update_tells_only_what_has_changed(start: Start) -> None:
    harness = start((2,))
    harness.submit(max_tokens=30)
    quiet = harness.submit(max_tokens=30)
    harness.step(3)
    feed = feed_of(harness)
    feed.snapshot()
    assert feed.update()["requests"] == []
    harness.step(2)
    new = harness.submit()
    harness.tick()
    update = feed.update()
    assert update["object"] == "dashboard.update"
    assert states_of(update) == {new.id: "waiting"}
    assert [step[0] for step in lane_of(update)["new_steps"]] == [3, 4]
    assert [quiet.id, 4, 0.0] in update["progress"]
    harness.run()
    assert set(states_of(feed.update()).values()) == {"length"}


def test_a_viewer_that_was_away_for_long_gets_a_snapshot(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "CHANGES", 10)
    harness = start((1,))
    feed = feed_of(harness)
    feed.snapshot()
    for _ in range(5):
        harness.submit(max_tokens=1)
        harness.run()
    assert feed.update()["object"] == "dashboard.snapshot"
    assert feed.update()["object"] == "dashboard.update"


def test_of_requests_that_ended_and_were_forgotten_an_update_tells_that_they_are_gone(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_module, "ENDED", 1)
    harness = start((1,))
    hers, last = harness.submit(max_tokens=1, tenant="alice"), harness.submit(max_tokens=1, tenant="bob")
    harness.tick()
    feed, other = feed_of(harness), feed_of(harness, ["bob"])
    for one in (feed, other):
        one.snapshot()
    harness.run()
    update = feed.update()
    assert (states_of(update), update["gone"]) == ({last.id: "length"}, [hers.id])
    assert other.update()["gone"] == [], "it never knew of it"


def test_a_viewer_sees_the_requests_of_its_tenant_alone(start: Start) -> None:
    harness = start((2,))
    hers = harness.submit(1, prompt="abcd", max_tokens=30, tenant="alice")
    his = harness.submit(1, prompt="wxyz", max_tokens=30, tenant="bob")
    harness.step(2)
    waiting = [harness.submit(5, tenant=tenant) for tenant in ("alice", "bob", "bob")]
    harness.tick()
    snapshot = feed_of(harness, ["alice"]).snapshot()
    assert states_of(snapshot) == {hers.id: "running", waiting[0].id: "waiting"}
    assert [one[0] for one in snapshot["progress"]] == [hers.id]
    assert his.id not in json.dumps(snapshot)
    assert "bob" not in json.dumps(snapshot)
    assert "tenant" not in snapshot["requests"][0]
    assert lane_of(snapshot)["holdings"] == [["running", 34, 0, hers.id], ["running", 34, None, None]]
    assert snapshot["waiting"][5] == 3, "numbers are told, as /metrics does"
    everything = feed_of(harness).snapshot()
    assert {entry["tenant"] for entry in everything["requests"]} == {"alice", "bob"}


def test_an_update_tells_nothing_of_other_tenants_either(start: Start) -> None:
    harness = start((2,))
    feed = feed_of(harness, ["alice"])
    feed.snapshot()
    his = harness.submit(tenant="bob")
    harness.run()
    update = feed.update()
    assert (update["requests"], update["gone"], update["progress"]) == ([], [], [])
    assert his.id not in json.dumps(update)


def test_no_text_of_a_prompt_or_an_output_is_ever_told(start: Start) -> None:
    harness = start((1,), park=Parking.SWAP, abort_after=0.0)
    feed, told = feed_of(harness), []
    told.append(feed.snapshot())
    failing = harness.submit(5, prompt=CANARY, max_tokens=20)
    told.append(feed.update())
    harness.step(3)
    harness.submit(1, prompt=CANARY + "x", max_tokens=5)
    for _ in range(4):
        harness.step(2)
        told.append(feed.update())
    harness.scheduler.cancel(failing)
    harness.run()
    told += [feed.update(), feed.snapshot()]
    words = json.dumps(told)
    assert CANARY not in words
    assert str([ord(letter) for letter in CANARY])[1:-1] not in words
    assert "cancelled" in words


def test_a_snapshot_of_a_long_queue_is_bounded(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "MOST_REQUESTS", 20)
    harness = start((2,))
    requests = [harness.submit(max_tokens=20) for _ in range(100)]
    harness.step(2)
    snapshot = feed_of(harness).snapshot()
    assert len(snapshot["requests"]) == 20
    assert [entry["id"] for entry in snapshot["requests"]][:2] == [requests[0].id, requests[1].id]
    assert snapshot["waiting"][3] == 98


def test_how_requests_ended_is_told_in_the_codes_of_the_api(start: Start) -> None:
    harness = start((1,), shed=True, max_requests=1)
    harness.submit(1, max_tokens=20)
    harness.step(2)
    shed = harness.submit(5)
    cancelled = harness.submit(4)
    harness.scheduler.cancel(cancelled)
    late = harness.submit(3, deadline=5)
    harness.clock.advance(10)
    harness.run()
    states = states_of(feed_of(harness).snapshot())
    assert (states[shed.id], states[cancelled.id], states[late.id]) == ("shed", "cancelled", "deadline_exceeded")

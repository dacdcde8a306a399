"""The dashboard's data from a real engine, over real sockets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from llamalane.api import create_app
from tests.api.dashboard.lookout import states_of
from tests.api.serving import SERVERS
from tests.api.test_keys_over_http import config_of, key_of

CANARY = "Rumpelstiltskin"


@pytest.fixture(params=SERVERS)
def url(tiny_model: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    with SERVERS[request.param](create_app(config_of(tiny_model))) as address:
        while get(address, "/v1/models", "alice").status_code == 503:
            pass
        yield address


def get(url: str, path: str, name: str) -> httpx.Response:
    return httpx.get(f"{url}{path}", headers={"x-api-key": key_of(name)}, trust_env=False)


def complete(url: str, name: str, max_tokens: int = 3) -> None:
    body = {"prompt": CANARY, "max_tokens": max_tokens, "ignore_eos": True, "priority": 5}
    headers = {"x-api-key": key_of(name)}
    httpx.post(f"{url}/v1/completions", json=body, headers=headers, trust_env=False).raise_for_status()


def messages(answer: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in answer.iter_lines():
        if line.startswith("data: "):
            yield json.loads(line[6:])


def test_each_key_is_told_of_its_tenants_requests(url: str) -> None:
    for name in ("alice", "bob"):
        complete(url, name)
    hers, all_of_them = (get(url, "/dashboard/snapshot", name).json() for name in ("alice", "root"))
    assert list(states_of(hers).values()) == ["length"]
    assert {entry["tenant"] for entry in all_of_them["requests"]} == {"alice", "bob"}
    assert states_of(hers).items() < states_of(all_of_them).items()
    assert CANARY not in json.dumps(all_of_them)
    for message in (hers, all_of_them):
        assert message["counters"]["finished"] == 2
        assert sum(len(lane["new_steps"]) for lane in message["lanes"]) >= 6
        assert sum(generated for _, generated, _ in message["tokens"]) == 6
        latency = {one["level"]: one for one in message["latency"]}
        assert (latency[5]["first_token"]["count"], latency[5]["gap"]["count"]) == (2, 4)
        assert 0 < latency[5]["gap"]["values"][0] < 10
    assert get(url, "/dashboard/snapshot", "nobody").status_code == 401
    assert get(url, "/dashboard/events", "nobody").status_code == 401


def test_the_stream_follows_the_engine_until_it_is_drained(url: str) -> None:
    headers = {"x-api-key": key_of("root")}
    with httpx.stream("GET", f"{url}/dashboard/events", headers=headers, trust_env=False, timeout=60) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        told = messages(answer)
        assert next(told)["requests"] == []
        complete(url, "alice")
        seen: dict[str, str] = {}
        while "length" not in seen.values():
            seen |= states_of(next(told))
        httpx.post(f"{url}/admin/drain", headers=headers, trust_env=False).raise_for_status()
        assert [message["state"] for message in told][-1] == "draining"

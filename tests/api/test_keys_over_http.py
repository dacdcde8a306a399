"""Keys, tenants and administration with the real client, over a real socket, on the real engine."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from llamalane.api import ApiConfig, ServerConfig, create_app
from llamalane.api.config import KeyConfig
from llamalane.scheduler import LaneConfig, ModelConfig, SchedulerConfig, StreamsConfig, TenantConfig
from tests.api.scraping import Scrape
from tests.api.serving import served
from tests.api.test_keys import sha256

NAMES = ("alice", "bob", "frugal", "batcher", "root")
LONG_PROMPT = "a prompt that is long enough to be worth keeping for the next one; " * 3


def key_of(name: str) -> str:
    return f"the key of {name}"


def config_of(model: Path, **api: Any) -> ServerConfig:
    more: dict[str, dict[str, Any]] = {
        "alice": {"level": "normal"},
        "batcher": {"level": "batch"},
        "root": {"admin": True},
    }
    keys = [KeyConfig(name=name, sha256=sha256(key_of(name)), **more.get(name, {})) for name in NAMES]
    return ServerConfig(
        models=[ModelConfig(path=model, name="tiny")],
        streams=StreamsConfig(
            lanes=[LaneConfig(name="left", places=2, threads=1), LaneConfig(name="right", places=2, threads=1)]
        ),
        scheduler=SchedulerConfig(tenants={"frugal": TenantConfig(tokens_per_minute=20)}, drain_timeout=1),
        api=ApiConfig(keys=keys, **api),
    )


@pytest.fixture(scope="module")
def url(tiny_model: Path) -> Iterator[str]:
    with served(create_app(config_of(tiny_model))) as address:
        # While the model loads the answer is 503, which the client tries again.
        with client_of(address, "alice", max_retries=20) as client:
            client.models.list()
        yield address


def client_of(url: str, name: str, max_retries: int = 0) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key=key_of(name), max_retries=max_retries)


def administer(url: str, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
    headers = {"x-api-key": key_of("root")}
    return httpx.post(f"{url}/admin/{path}", json=body, headers=headers, trust_env=False, timeout=60)


def test_a_bad_key_is_an_authentication_error(url: str) -> None:
    with client_of(url, "nobody") as client, pytest.raises(openai.AuthenticationError) as caught:
        client.completions.create(model="tiny", prompt="x")
    assert caught.value.code == "invalid_api_key"
    assert caught.value.response.headers["www-authenticate"] == "Bearer"


def test_a_level_above_the_keys_is_a_permission_error(url: str) -> None:
    with client_of(url, "alice") as client:
        for stream in (False, True):
            with pytest.raises(openai.PermissionDeniedError) as caught:
                client.completions.create(model="tiny", prompt="x", stream=stream, extra_body={"priority": 1})
            assert (caught.value.param, caught.value.code) == ("priority", "permission_denied")
        answer = client.completions.with_raw_response.create(model="tiny", prompt="x", max_tokens=1)
        assert answer.headers["x-priority"] == "3"
    with client_of(url, "batcher") as client:
        answer = client.completions.with_raw_response.create(model="tiny", prompt="x", max_tokens=1)
        assert answer.headers["x-priority"] == "5"


def test_a_level_above_the_keys_is_capped_where_that_is_wanted(tiny_model: Path) -> None:
    with served(create_app(config_of(tiny_model, above_level="cap"))) as url, client_of(url, "alice", 20) as client:
        answer = client.completions.with_raw_response.create(
            model="tiny", prompt="x", max_tokens=1, extra_body={"priority": 1}
        )
        assert answer.headers["x-priority"] == "3"


def test_tenants_by_key_do_not_share_cached_prompts(url: str) -> None:
    def cached(name: str) -> int:
        with client_of(url, name) as client:
            usage = client.completions.create(model="tiny", prompt=LONG_PROMPT, max_tokens=1).usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        return usage.prompt_tokens_details.cached_tokens or 0

    one_token = 1  # every prompt's first token is the same, and may be there
    assert cached("alice") <= one_token
    assert cached("alice") > 100
    assert cached("bob") <= one_token


def test_tenants_by_key_have_limits_of_their_own(url: str) -> None:
    with client_of(url, "frugal") as client:
        client.completions.create(model="tiny", prompt=[5] * 5, max_tokens=10, extra_body={"ignore_eos": True})
        with pytest.raises(openai.RateLimitError) as caught:
            client.completions.create(model="tiny", prompt=[5] * 5, max_tokens=10)
        assert caught.value.code == "tenant_limit"
        assert int(caught.value.response.headers["retry-after"]) >= 1
    with client_of(url, "bob") as client:
        client.completions.create(model="tiny", prompt=[5] * 5, max_tokens=20)


def test_pausing_and_resuming_lanes_under_load_loses_nothing(url: str) -> None:
    def one(number: int) -> int:
        with client_of(url, "bob") as client:
            answer = client.completions.create(
                model="tiny", prompt=f"request {number}", max_tokens=12, extra_body={"ignore_eos": True}
            )
        assert answer.usage is not None
        return answer.usage.completion_tokens

    with ThreadPoolExecutor(12) as threads:
        counts = [threads.submit(one, number) for number in range(24)]
        for lane in ("left", "right", "left"):
            paused = administer(url, f"lanes/{lane}/pause").json()
            assert (paused["name"], paused["paused"]) == (lane, True)
            assert administer(url, f"lanes/{lane}/resume").json()["paused"] is False
        assert [count.result() for count in counts] == [12] * 24


def test_a_paused_lane_is_told_of(url: str) -> None:
    administer(url, "lanes/left/pause")
    try:
        assert httpx.get(f"{url}/health", trust_env=False).json() == {"status": "ok", "lanes_paused": ["left"]}
        headers = {"x-api-key": key_of("root")}
        metrics = Scrape(httpx.get(f"{url}/metrics", headers=headers, trust_env=False).text)
        assert metrics.value("llamalane_lane_paused", lane="left") == 1
        assert metrics.value("llamalane_lane_paused", lane="right") == 0
    finally:
        administer(url, "lanes/left/resume")


def test_a_running_stream_is_found_given_another_priority_and_cancelled(url: str) -> None:
    with client_of(url, "bob") as client:
        stream = client.completions.create(
            model="tiny", prompt="x", max_tokens=1900, stream=True, extra_body={"ignore_eos": True, "priority": 5}
        )
        name = next(stream).id
        changed = administer(url, f"requests/{name}/priority", {"priority": "agent"}).json()
        assert changed == {"object": "requests", "priority": 2, "changed": [f"{name}/0"]}
        shown = client.get(f"/queue/{name}", cast_to=object)
        assert isinstance(shown, dict)
        assert shown["priority"] == 2
        with client_of(url, "alice") as other, pytest.raises(openai.NotFoundError):
            other.get(f"/queue/{name}", cast_to=object)
        assert administer(url, f"requests/{name}/cancel").json()["cancelled"] == [f"{name}/0"]
        with pytest.raises(openai.APIError, match="was cancelled"):
            list(stream)


def test_a_server_that_is_drained_takes_nothing_more(tiny_model: Path) -> None:
    with served(create_app(config_of(tiny_model))) as url, client_of(url, "bob", 20) as client:
        client.models.list()
        stream = client.completions.create(
            model="tiny", prompt="x", max_tokens=30, stream=True, extra_body={"ignore_eos": True}
        )
        next(stream)
        assert administer(url, "drain", {"patience": 60}).json() == {"object": "drain", "state": "draining"}
        assert [choice.finish_reason for event in stream for choice in event.choices][-1] == "length"
        assert httpx.get(f"{url}/health", trust_env=False).status_code == 503
        with pytest.raises(openai.InternalServerError, match="takes no new requests"):
            client.with_options(max_retries=0).completions.create(model="tiny", prompt="x")

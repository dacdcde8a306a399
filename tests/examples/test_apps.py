"""The examples that are apps, served by uvicorn on real sockets."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import pytest

from llamalane.scheduler import EngineConfig, Event, EventKind, QueueConfig
from tests.api.serving import served
from tests.cli.process import started, wait_for_line
from tests.cli.test_serve import address_in
from tests.engine.running import Gate, WatchedEngine, config_for, intercepted
from tests.examples.conftest import EXAMPLES, LoadExample

TEXT = {"text": "Llamas live in the Andes.", "words": 5}


def test_own_app_answers(load_example: LoadExample) -> None:
    with served(load_example("own_app").app) as url, httpx.Client(base_url=url, timeout=60) as client:
        with client.stream("POST", "/summaries", json=TEXT) as answer:
            assert answer.status_code == 200
            assert len(list(answer.iter_text())) >= 1
        refused = client.post("/summaries", json={"text": "Llamas. " * 5000})
        assert refused.status_code == 400
        assert "shorten the prompt" in refused.json()["error"]


class HeldEngines:
    """Makes small engines in an example's place, whose lanes are held."""

    def __init__(self, model: Path) -> None:
        self.gate = Gate()
        self.ended = threading.Event()
        self.accepted = threading.Semaphore(0)
        self.engines: list[WatchedEngine] = []
        self._config = config_for(model, places=1, part=1024, queue=QueueConfig(max_requests=1))

    def __call__(self, config: EngineConfig) -> WatchedEngine:
        opened = intercepted(self.gate.pass_through)
        self.engines.append(WatchedEngine(self._config, observer=self._observe, open_context=opened))
        return self.engines[-1]

    def _observe(self, event: Event) -> None:
        if event.kind is EventKind.ACCEPTED:
            self.accepted.release()
        elif event.kind is EventKind.ENDED:
            self.ended.set()


@pytest.fixture
def held(tiny_model: Path) -> HeldEngines:
    return HeldEngines(tiny_model)


def test_own_app_frees_the_place_of_a_client_that_leaves(
    load_example: LoadExample, held: HeldEngines, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = load_example("own_app")
    monkeypatch.setattr(module, "Engine", held)
    with served(module.app) as url, held.gate:
        with httpx.stream("POST", f"{url}/summaries", json={**TEXT, "words": 100}, timeout=60) as answer:
            assert answer.status_code == 200
            held.gate.let(20)
            assert next(answer.iter_text())
        assert held.ended.wait(60)
        held.gate.open()
    [engine] = held.engines
    assert engine.scheduler.counters.cancelled == 1
    engine.check_conserved()


def test_own_app_asks_to_come_back_when_the_queue_is_full(
    load_example: LoadExample, held: HeldEngines, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = load_example("own_app")
    monkeypatch.setattr(module, "Engine", held)
    with served(module.app) as url, held.gate, ThreadPoolExecutor(2) as threads:

        def ask() -> httpx.Response:
            return httpx.post(f"{url}/summaries", json=TEXT, timeout=60)

        others = []
        for _ in range(2):
            others.append(threads.submit(ask))
            held.accepted.acquire()
        full = ask()
        held.gate.open()
        assert [other.result().status_code for other in others] == [200, 200]
    assert full.status_code == 503
    assert int(full.headers["Retry-After"]) >= 1
    assert "full" in full.json()["error"]


def test_mounted_app_serves_its_own_pages_and_openais_api(load_example: LoadExample) -> None:
    with served(load_example("mounted_app").app) as url:
        assert httpx.get(url).json() == "Hello"
        with openai.OpenAI(base_url=f"{url}/llm/v1", api_key="unused", max_retries=20) as client:
            answer = client.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": "Hello"}], max_tokens=3
            )
    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 3


def test_user_roles_decide_the_level(load_example: LoadExample) -> None:
    with served(load_example("user_roles").app) as url, httpx.Client(base_url=url, timeout=60) as client:

        def ask(token: str) -> httpx.Response:
            return client.post("/chat", json={"text": "Hello"}, headers={"Authorization": f"Bearer {token}"})

        assert [ask(user).json()["level"] for user in ("dora", "carl", "rob")] == [1, 3, 5]
        assert ask("nobody").status_code == 401
        assert client.post("/chat", json={"text": "Hello"}).status_code in (401, 403)


def test_keys_decide_the_level(tiny_model: Path) -> None:
    keys = {"chat-app": "the-key-of-the-chat-app", "nightly": "the-key-of-the-nightly-job"}
    variables = {
        "MODEL": str(tiny_model),
        "LLAMALANE_API_KEYS": " ".join(f"{name}={key}" for name, key in keys.items()),
    }
    with started("serve", "--config", EXAMPLES / "keys.yaml", "--port", "0", **variables) as process:
        url = address_in(wait_for_line(process, "ready: "))

        def level_of(key: str) -> str:
            with openai.OpenAI(base_url=f"{url}/v1", api_key=key) as client:
                answer = client.completions.with_raw_response.create(
                    model="llm", prompt="Hello", max_tokens=2, extra_body={"priority": "interactive"}
                )
            return answer.headers["X-Priority"]

        assert level_of(keys["chat-app"]) == "1"
        assert level_of(keys["nightly"]) == "5"
        with pytest.raises(openai.AuthenticationError):
            level_of("another")

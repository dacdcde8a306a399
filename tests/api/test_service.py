"""The endpoints that tell of the engine, and what happens while there is none."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from fastapi import FastAPI
from pydantic import SecretStr

from llamalane.api import ApiConfig, create_app, drain, lifespan_of
from llamalane.errors import ModelLoadError
from llamalane.scheduler import EngineConfig, EngineState, ModelConfig, SchedulerConfig
from tests.api.asgi import client_of, exchange
from tests.api.fake_engine import ScriptedEngine, as_engine

pytestmark = pytest.mark.anyio

PATHS = ("/health", "/v1/health", "/v1/models", "/metrics")


async def test_the_model_is_listed() -> None:
    async with client_of(create_app(as_engine(ScriptedEngine()))) as client:
        listed = (await client.get("/v1/models")).json()
        assert listed["object"] == "list"
        [model] = listed["data"]
        assert isinstance(model.pop("created"), int)
        assert model == {
            "id": "scripted",
            "object": "model",
            "owned_by": "llamalane",
            "aliases": ["other"],
            "task": "generate",
            "max_model_len": 128,
            "meta": {"n_vocab": 99, "n_ctx_train": 512, "n_params": 1000, "size": 4000},
        }
        assert (await client.get("/v1/models/other")).json()["id"] == "scripted"
        unknown = await client.get("/v1/models/org/unknown")
        assert unknown.status_code == 404
        assert unknown.json()["error"]["code"] == "model_not_found"


async def test_health_tells_of_lanes_that_are_out() -> None:
    for down, status, body in (
        ((False, False), 200, {"status": "ok"}),
        ((False, True), 200, {"status": "ok", "lanes_down": ["lane1"]}),
    ):
        async with client_of(create_app(as_engine(ScriptedEngine(lanes_down=down)))) as client:
            answer = await client.get("/health")
            assert (answer.status_code, answer.json()) == (status, body)
    async with client_of(create_app(as_engine(ScriptedEngine(lanes_down=(True, True))))) as client:
        answer = await client.get("/v1/health")
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "lane_down"


async def test_health_tells_of_lanes_whose_device_hangs() -> None:
    both = (False, False)
    for down, ages, status, body in (
        (both, (59.0, 0.0), 200, {"status": "ok"}),
        (both, (61.0, 0.0), 200, {"status": "ok", "lanes_stalled": ["lane0"]}),
    ):
        async with client_of(create_app(as_engine(ScriptedEngine(lanes_down=down, step_ages=ages)))) as client:
            answer = await client.get("/health")
            assert (answer.status_code, answer.json()) == (status, body)
    for down in (both, (False, True)):
        engine = ScriptedEngine(lanes_down=down, step_ages=(61.0, 0.0 if down[1] else 61.0))
        async with client_of(create_app(as_engine(engine))) as client:
            answer = await client.get("/health")
            assert answer.status_code == 503
            assert "is a device stuck" in answer.json()["error"]["message"]
    patient = ApiConfig(stalled_after=100)
    async with client_of(create_app(as_engine(ScriptedEngine(step_ages=(61.0, 0.0))), api=patient)) as client:
        assert (await client.get("/health")).json() == {"status": "ok"}


@pytest.mark.parametrize("path", ["/health", "/v1/health"])
async def test_health_can_be_asked_without_its_body(path: str) -> None:
    async with client_of(create_app(as_engine(ScriptedEngine()), api=ApiConfig(api_key=SecretStr("sesame")))) as client:
        answer = await client.head(path)
        assert (answer.status_code, answer.content) == (200, b"")
        assert answer.headers["content-length"] == (await client.get(path)).headers["content-length"]
    async with client_of(create_app(as_engine(ScriptedEngine(state=EngineState.LOADING)))) as client:
        assert (await client.head(path)).status_code == 503


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (EngineState.NEW, "was not started"),
        (EngineState.LOADING, "is being loaded"),
        (EngineState.DRAINING, "shutting down"),
        (EngineState.CLOSED, "closed"),
    ],
)
async def test_an_engine_that_takes_no_requests_is_unavailable(state: EngineState, words: str) -> None:
    async with client_of(create_app(as_engine(ScriptedEngine(state=state)))) as client:
        answers = [await client.get(path) for path in ("/health", "/v1/health", "/v1/models")]
        answers.append(await client.post("/v1/completions", json={"prompt": "x"}))
        for answer in answers:
            assert answer.status_code == 503
            assert words in answer.json()["error"]["message"]
        assert (await client.get("/metrics")).status_code == 200


def config_of(model: Path) -> EngineConfig:
    return EngineConfig(models=[ModelConfig(path=model, name="tiny")])


async def test_an_app_starts_and_stops_its_engine(tiny_model: Path) -> None:
    app = create_app(config_of(tiny_model))
    async with client_of(app) as client:
        async with lifespan_of(app)(app):
            loading = await client.get("/health")
            assert loading.status_code == 503
            assert "is being loaded" in loading.json()["error"]["message"]
            await ready(app)
            assert (await client.get("/health")).json() == {"status": "ok"}
            answer = await client.post("/v1/completions", json={"prompt": "x", "max_tokens": 2})
            assert answer.json()["usage"]["completion_tokens"] == 2
        closed = await client.get("/health")
        assert closed.status_code == 503
        assert "closed" in closed.json()["error"]["message"]


async def ready(app: FastAPI) -> None:
    """Wait until the app's engine has loaded its model."""
    with anyio.fail_after(30):
        while app.state.llamalane.engine.state is EngineState.NEW or (
            app.state.llamalane.engine.state is EngineState.LOADING
        ):
            await anyio.lowlevel.checkpoint()


async def test_a_lifespan_that_ends_while_loading_ends_the_engine(tiny_model: Path) -> None:
    app = create_app(config_of(tiny_model))
    async with lifespan_of(app)(None):
        pass
    assert app.state.llamalane.engine.state is not EngineState.READY


async def test_a_mounted_app_works_with_the_one_line(tiny_model: Path) -> None:
    llm = create_app(config_of(tiny_model))
    host = FastAPI(lifespan=lifespan_of(llm))
    host.mount("/llm", llm)
    async with host.router.lifespan_context(host), client_of(host) as client:
        await ready(llm)
        for path in PATHS:
            assert (await client.get(f"/llm{path}")).status_code == 200
        for path, body in (
            ("/v1/completions", {"prompt": "x"}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ):
            answer = await client.post(f"/llm{path}", json={**body, "max_tokens": 2})
            assert answer.status_code == 200
            assert answer.headers["x-request-id"]
        nowhere = await client.get("/llm/nowhere")
        assert nowhere.json()["error"]["code"] == "unknown_url"
        assert (await client.get("/llm/openapi.json")).status_code == 200


async def test_a_mounted_app_says_which_line_is_missing(tiny_model: Path) -> None:
    host = FastAPI()
    host.mount("/llm", create_app(config_of(tiny_model)))
    async with host.router.lifespan_context(host), client_of(host) as client:
        answers = [await client.get(f"/llm{path}") for path in PATHS]
        answers.append(await client.post("/llm/v1/completions", json={"prompt": "x"}))
        for answer in answers:
            assert answer.status_code == 503
            assert "FastAPI(lifespan=lifespan_of(mounted_app))" in answer.json()["error"]["message"]


async def test_an_engine_that_cannot_start_ends_the_lifespan_with_its_error(tmp_path: Path) -> None:
    app = create_app(config_of(tmp_path / "missing.gguf"))
    with pytest.raises(ModelLoadError, match=r"missing\.gguf"):
        async with lifespan_of(app)(app):
            await anyio.sleep_forever()
    async with client_of(app) as client:
        answer = await client.get("/health")
    assert answer.status_code == 503
    assert "missing.gguf" in answer.json()["error"]["message"]


async def test_whoever_runs_the_server_can_be_told_instead(tmp_path: Path) -> None:
    failures: list[Exception] = []
    told = anyio.Event()

    def on_failure(error: Exception) -> None:
        failures.append(error)
        told.set()

    app = create_app(config_of(tmp_path / "missing.gguf"), on_failure=on_failure)
    async with lifespan_of(app)(app):
        await told.wait()
    [failure] = failures
    assert isinstance(failure, ModelLoadError)


async def test_draining_refuses_new_requests() -> None:
    app = create_app(as_engine(ScriptedEngine()))
    async with client_of(app) as client:
        await drain(app)
        answer = await client.post("/v1/completions", json={"prompt": "x"})
    assert answer.status_code == 503


async def test_what_has_not_ended_when_draining_does_ends_with_an_error_event(tiny_model: Path) -> None:
    config = config_of(tiny_model).model_copy(update={"scheduler": SchedulerConfig(drain_timeout=0)})
    app = create_app(config)
    body = {"prompt": "x", "ignore_eos": True, "stream": True}
    async with lifespan_of(app)(app):
        await ready(app)
        async with exchange(app, "/v1/completions", body) as request:
            assert (await request.next())["status"] == 200
            assert b'"text":' in await request.body()
            await drain(app)
            pieces = []
            while (message := await request.next())["more_body"]:
                pieces.append(message["body"])
    assert b'"code":"engine_unavailable"' in message["body"]
    assert b"[DONE]" not in b"".join([*pieces, message["body"]])


async def test_a_lifespan_runs_once_at_a_time(tiny_model: Path) -> None:
    app = create_app(config_of(tiny_model))
    async with lifespan_of(app)(app):
        with pytest.raises(RuntimeError, match="running already"):
            async with lifespan_of(app)(app):
                pass


async def test_a_host_with_a_lifespan_of_its_own_enters_ours(tiny_model: Path) -> None:
    llm = create_app(config_of(tiny_model))
    steps: list[Any] = []

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with lifespan_of(llm)(app):
            steps.append("begun")
            yield
        steps.append("ended")

    host = FastAPI(lifespan=lifespan)
    host.mount("/llm", llm)
    async with host.router.lifespan_context(host):
        await ready(llm)
    assert steps == ["begun", "ended"]


async def test_what_a_host_raises_comes_out_as_it_is(tiny_model: Path) -> None:
    llm = create_app(config_of(tiny_model))

    async def host() -> None:
        async with lifespan_of(llm)(None):
            await ready(llm)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await host()
    assert llm.state.llamalane.engine.state is EngineState.CLOSED


async def test_another_app_has_no_lifespan_of_ours() -> None:
    with pytest.raises(TypeError, match="create_app"):
        lifespan_of(FastAPI())

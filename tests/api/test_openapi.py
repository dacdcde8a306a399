"""The API's description is complete and true, and is shown without anything from elsewhere."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
from fastapi import FastAPI
from openapi_spec_validator import validate
from pydantic import SecretStr

from llamalane.api import ApiConfig, ServerConfig, create_app
from llamalane.api.config import KeyConfig
from llamalane.scheduler import Engine, EngineConfig, LaneConfig, ModelConfig, StreamsConfig
from tests.api.asgi import client_of
from tests.api.fake_engine import ScriptedEngine, as_engine
from tests.api.test_keys import sha256

pytestmark = pytest.mark.anyio

KEY = "the key of an operator"
Operation = tuple[str, str, Mapping[str, Any]]


def description(**api: Any) -> dict[str, Any]:
    return create_app(as_engine(ScriptedEngine()), api=ApiConfig(**api)).openapi()


def operations(schema: Mapping[str, Any]) -> Iterator[Operation]:
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            yield method, path, operation


OPERATIONS = list(operations(description()))


@pytest.mark.parametrize("docs", [True, False], ids=["served", "not served"])
def test_the_description_is_valid_and_every_reference_leads_somewhere(docs: bool) -> None:
    schema = description(docs=docs)
    validate(schema)
    references = set(re.findall(r"'\$ref': '([^']*)'", str(schema)))
    assert references
    assert references <= {f"#/components/schemas/{name}" for name in schema["components"]["schemas"]}


@pytest.mark.parametrize(("method", "path", "operation"), OPERATIONS, ids=[f"{m} {p}" for m, p, _ in OPERATIONS])
def test_every_endpoint_tells_what_it_takes_and_answers(method: str, path: str, operation: Mapping[str, Any]) -> None:
    assert operation["summary"]
    assert operation["description"]
    contents = operation["responses"]["200"]["content"].values()
    assert all(one["schema"] for one in contents)
    errors = [response for status, response in operation["responses"].items() if int(status) >= 400]
    assert len(errors) >= 3
    form = "MessageErrorAnswer" if path.startswith("/v1/messages") else "ErrorAnswer"
    reference = {"$ref": f"#/components/schemas/{form}"}
    assert all(error["content"]["application/json"]["schema"] == reference for error in errors)
    if method == "post" and not re.search("/(pause|resume|cancel)$", path):
        [body] = operation["requestBody"]["content"].values()
        assert body["schema"]["properties"]


def test_every_route_is_described() -> None:
    app = create_app(as_engine(ScriptedEngine()))
    described = {(method.upper(), path) for method, path, _ in operations(app.openapi())}
    assert ("POST", "/v1/completions") in described
    assert ("POST", "/admin/requests/{request_id}/priority") in described
    assert ("GET", "/metrics") in described


@pytest.fixture
async def client(tiny_model: Path, anyio_backend: object) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server on the tiny model, with a key that may do everything."""
    config = EngineConfig(
        models=[ModelConfig(path=tiny_model, name="tiny")], streams=StreamsConfig(lanes=[LaneConfig(name="main")])
    )
    api = ApiConfig(keys=[KeyConfig(name="operator", sha256=sha256(KEY), admin=True)])
    async with Engine(config) as engine:
        app = create_app(engine, api=api)
        async with client_of(app, {"x-api-key": KEY}) as connected:
            yield connected


CALLING: dict[str, Any] = {
    "messages": [{"role": "user", "content": "x"}],
    "tools": [{"type": "function", "function": {"name": "find"}}],
    "tool_choice": "required",
    "parallel_tool_calls": False,
}
CALLING_RESPONSE: dict[str, Any] = {
    "input": "x",
    "tools": [{"type": "function", "name": "find"}],
    "tool_choice": "required",
    "parallel_tool_calls": False,
}
ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 9}
USING: dict[str, Any] = {
    **ASKED,
    "max_tokens": 200,
    "tools": [{"name": "find", "input_schema": {"properties": {"what": {"enum": ["a pen"]}}, "required": ["what"]}}],
    "tool_choice": {"type": "tool", "name": "find"},
}
ANSWERED: list[tuple[str, str, dict[str, Any] | None]] = [
    ("post", "/v1/completions", {"prompt": "x", "max_tokens": 2, "service_tier": "flex"}),
    ("post", "/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2, "n": 2}),
    ("post", "/v1/completions", {"prompt": "x", "max_tokens": 9, "logprobs": 2, "echo": True, "ignore_eos": True}),
    (
        "post",
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "x"}], "max_tokens": 9, "logprobs": True, "top_logprobs": 3},
    ),
    ("post", "/v1/chat/completions", CALLING),
    (
        "post",
        "/v1/responses",
        {"input": "x", "max_output_tokens": 9, "include": ["message.output_text.logprobs"], "top_logprobs": 3},
    ),
    ("post", "/v1/responses", CALLING_RESPONSE),
    ("post", "/v1/responses/input_tokens", {"input": "x"}),
    ("post", "/v1/messages", {**ASKED, "service_tier": "auto"}),
    ("post", "/v1/messages", {**USING, "max_tokens": 56}),
    ("post", "/v1/messages/count_tokens", {"messages": ASKED["messages"]}),
    ("get", "/v1/models", None),
    ("get", "/v1/models/{model}", None),
    ("get", "/v1/queue", None),
    ("get", "/health", None),
    ("post", "/admin/lanes/{name}/pause", None),
    ("post", "/admin/lanes/{name}/resume", None),
    ("post", "/admin/drain", {"patience": 0}),
]


async def test_answers_are_as_they_are_described(client: httpx.AsyncClient) -> None:
    schema = (await client.get("/openapi.json")).json()
    for method, path, body in ANSWERED:
        url = path.format(model="tiny", name="main")
        answer = await client.request(method, url, json=body)
        assert answer.status_code == 200, (path, answer.text)
        described = schema["paths"][path][method]["responses"]["200"]["content"]["application/json"]["schema"]
        check(answer.json(), described, schema)


async def test_errors_are_as_they_are_described(client: httpx.AsyncClient) -> None:
    schema = (await client.get("/openapi.json")).json()
    for method, path, url, body, status in (
        ("post", "/v1/completions", "/v1/completions", {}, 400),
        ("post", "/v1/completions", "/v1/completions", {"prompt": "x", "model": "nobody"}, 404),
        ("post", "/v1/responses", "/v1/responses", {"input": "x", "background": True}, 400),
        ("post", "/v1/completions", "/v1/completions", {"prompt": "x", "max_tokens": 2, "deadline": 1e-9}, 504),
        ("post", "/v1/messages", "/v1/messages", {}, 400),
        ("post", "/v1/messages", "/v1/messages", {**ASKED, "model": "nobody"}, 404),
        ("post", "/v1/messages/count_tokens", "/v1/messages/count_tokens", ASKED, 400),
        ("get", "/v1/queue/{request_id}", "/v1/queue/nobody", None, 404),
        ("post", "/admin/requests/{request_id}/priority", "/admin/requests/x/priority", {"priority": 9}, 400),
    ):
        answer = await client.request(method, url, json=body)
        assert answer.status_code == status, answer.text
        described = schema["paths"][path][method]["responses"][str(status)]["content"]["application/json"]["schema"]
        check(answer.json(), described, schema)


async def test_events_are_as_they_are_described(client: httpx.AsyncClient) -> None:
    schema = (await client.get("/openapi.json")).json()
    more = {"max_tokens": 3, "stream": True, "stream_options": {"include_usage": True}}
    for path, body in (
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/completions", {"prompt": "x", "logprobs": 2, "echo": True}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "logprobs": True}),
        ("/v1/chat/completions", {**CALLING, "max_tokens": 80}),
        ("/v1/chat/completions", {**CALLING, "max_tokens": 80, "logprobs": True}),
    ):
        answer = await client.post(path, json={**more, **body})
        described = schema["paths"][path]["post"]["responses"]["200"]["content"]["text/event-stream"]["schema"]
        *events, done = answer.text.strip().split("\n\n")
        assert done == "data: [DONE]"
        for event in events:
            check(httpx.Response(200, text=event.removeprefix("data: ")).json(), described, schema)


async def test_events_of_responses_are_as_they_are_described(client: httpx.AsyncClient) -> None:
    schema = (await client.get("/openapi.json")).json()
    described = schema["paths"]["/v1/responses"]["post"]["responses"]["200"]["content"]["text/event-stream"]["schema"]
    for body in (
        {"input": "x", "max_output_tokens": 3},
        {"input": "x", "max_output_tokens": 3, "include": ["message.output_text.logprobs"]},
        CALLING_RESPONSE,
    ):
        answer = await client.post("/v1/responses", json={**body, "stream": True})
        for event in answer.text.strip().split("\n\n"):
            check(httpx.Response(200, text=event.partition("\ndata: ")[2]).json(), described, schema)


async def test_events_of_messages_are_as_they_are_described(client: httpx.AsyncClient) -> None:
    schema = (await client.get("/openapi.json")).json()
    described = schema["paths"]["/v1/messages"]["post"]["responses"]["200"]["content"]["text/event-stream"]["schema"]
    for body in (ASKED, USING):
        answer = await client.post("/v1/messages", json={**body, "stream": True})
        for event in answer.text.removesuffix("\n\n").split("\n\n"):
            name, data = event.split("\n")
            told = httpx.Response(200, text=data.removeprefix("data: ")).json()
            assert name == f"event: {told['type']}"
            check(told, described, schema)


async def test_waiting_and_running_requests_are_as_they_are_described(client: httpx.AsyncClient) -> None:
    schema = (await client.get("/openapi.json")).json()
    body = {"prompt": "x", "ignore_eos": True, "stream": True, "max_tokens": 2000}
    described = schema["paths"]["/v1/queue"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    engine = client._transport.app.state.llamalane.engine  # type: ignore[attr-defined]
    handle = await engine.submit("x", request_id="one")
    listed = (await client.get("/v1/queue")).json()
    assert listed["data"], body
    check(listed, described, schema)
    changed = await client.post("/admin/requests/one/priority", json={"priority": 1})
    operation = schema["paths"]["/admin/requests/{request_id}/priority"]["post"]
    check(changed.json(), operation["responses"]["200"]["content"]["application/json"]["schema"], schema)
    cancelled = await client.post("/admin/requests/one/cancel")
    operation = schema["paths"]["/admin/requests/{request_id}/cancel"]["post"]
    check(cancelled.json(), operation["responses"]["200"]["content"]["application/json"]["schema"], schema)
    handle.cancel()


async def test_the_page_needs_nothing_from_elsewhere() -> None:
    host = FastAPI()
    host.mount("/llm", create_app(as_engine(ScriptedEngine())))
    for app, root in ((create_app(as_engine(ScriptedEngine())), ""), (host, "/llm")):
        async with client_of(app) as client:
            page = await client.get(f"{root}/docs")
            assert page.headers["content-type"].startswith("text/html")
            assert "//" not in re.sub(r"<!--.*?-->", "", page.text), "an address of another server"
            parts = re.findall(r"(?:href|src)=\"([^\"]*)\"|url: '([^']*)'", page.text)
            assert len(parts) == 4
            for part in (first or second for first, second in parts):
                answer = await client.get(httpx.URL(f"http://server{root}/docs").join(part))
                assert answer.status_code == 200
                assert answer.content


@pytest.mark.parametrize("path", ["/docs", "/openapi.json", "/docs/swagger-ui.css"])
async def test_the_description_is_open_to_all_unless_it_is_turned_off(path: str) -> None:
    key = SecretStr("sesame")
    async with client_of(create_app(as_engine(ScriptedEngine()), api=ApiConfig(api_key=key))) as client:
        assert (await client.get(path)).status_code == 200
    app = create_app(as_engine(ScriptedEngine()), api=ApiConfig(api_key=key, docs=False))
    async with client_of(app) as client:
        assert (await client.get(path)).status_code == 401
        assert (await client.get(path, headers={"x-api-key": "sesame"})).status_code == 404


@pytest.mark.parametrize("name", ["redoc.standalone.js", "..%2Fcore.py", "swagger-ui.css%00"])
async def test_nothing_else_is_served_beside_the_page(name: str) -> None:
    async with client_of(create_app(as_engine(ScriptedEngine()))) as client:
        answer = await client.get(f"/docs/{name}")
    assert answer.status_code == 404 or answer.headers["content-type"] == "application/json"


def test_the_setting_is_read_from_yaml(tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    file.write_text("models: [{path: x.gguf}]\napi: {docs: false}\n")
    assert ServerConfig.from_yaml(file).api.docs is False


def check(value: Any, schema: Mapping[str, Any], whole: Mapping[str, Any]) -> None:
    """Check a value against a part of the description, in which no field that it has may be missing."""
    components = {name: strict(part) for name, part in whole["components"]["schemas"].items()}
    jsonschema.validate(value, {**strict(schema), "components": {"schemas": components}})


def strict(part: Any) -> Any:
    """Return a schema that allows no further properties; of those that are inherited, pydantic makes one object."""
    if isinstance(part, dict):
        closed = {"additionalProperties": False} if part.get("type") == "object" and "properties" in part else {}
        return {name: strict(value) for name, value in part.items()} | closed
    return [strict(value) for value in part] if isinstance(part, list) else part


def test_bounds_of_log_probabilities_are_described() -> None:
    paths = description()["paths"]
    for path, field, least, most in (
        ("/v1/chat/completions", "top_logprobs", 0, 20),
        ("/v1/completions", "logprobs", 0, 5),
        ("/v1/completions", "best_of", 1, 128),
    ):
        body = paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        number, nothing = body["properties"][field]["anyOf"]
        assert number == {"type": "integer", "minimum": least, "maximum": most}
        assert nothing == {"type": "null"}

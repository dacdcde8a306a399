"""Spans of requests: what they tell, what they never tell, and where they go."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from fastapi import FastAPI
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, format_span_id, format_trace_id

from llamalane.api import ApiConfig, ServerConfig, create_app, lifespan_of
from llamalane.api.config import KeyConfig, TracesConfig
from llamalane.api.tracing import EVENTS
from llamalane.errors import ConfigError, QueueFullError, RequestShedError
from llamalane.scheduler import (
    Engine,
    EngineConfig,
    Event,
    EventKind,
    FinishReason,
    LaneConfig,
    ModelConfig,
    StreamsConfig,
)
from tests.api.asgi import client_of, exchange
from tests.api.collector import collecting
from tests.api.fake_engine import Play, ScriptedEngine, as_engine
from tests.api.test_keys import sha256
from tests.api.test_service import ready
from tests.cli.process import environment

pytestmark = pytest.mark.anyio

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
SECRETS = ("a secret prompt", "a secret answer", "a secret stop", "a secret user", "a secret error")
CHAT = {"messages": [{"role": "user", "content": SECRETS[0]}], "stop": [SECRETS[2]], "user": SECRETS[3]}


class Spans:
    """Makes spans, and keeps those that have ended."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    @property
    def ended(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def one(self, kind: SpanKind) -> ReadableSpan:
        [span] = [span for span in self.ended if span.kind is kind]
        return span


@pytest.fixture
def spans() -> Spans:
    return Spans()


def traced(engine: ScriptedEngine, spans: Spans, **api: Any) -> FastAPI:
    return create_app(as_engine(engine), api=ApiConfig(**api), tracer_provider=spans.provider)


def attributes_of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


async def test_a_request_continues_its_clients_trace_and_tells_what_it_took(spans: Spans) -> None:
    engine = ScriptedEngine([Play([SECRETS[1], "."], finish=FinishReason.LENGTH, cached_tokens=2)])
    asked = {**CHAT, "model": "other", "priority": 2, "max_tokens": 9, "temperature": 0.5, "top_k": 7, "seed": 3}
    async with client_of(traced(engine, spans)) as client:
        answer = await client.post("/v1/chat/completions", json=asked, headers={**TRACEPARENT, "X-Request-Id": "mine"})
    http, generation = spans.one(SpanKind.SERVER), spans.one(SpanKind.INTERNAL)
    assert http.name == "POST /v1/chat/completions"
    assert http.parent is not None
    assert (format_trace_id(http.parent.trace_id), format_span_id(http.parent.span_id)) == (TRACE, PARENT)
    assert attributes_of(http)["http.response.status_code"] == 200
    assert generation.name == "chat other"
    assert generation.parent is not None
    assert generation.parent.span_id == http.context.span_id
    assert attributes_of(generation) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "llamalane",
        "gen_ai.request.model": "other",
        "gen_ai.request.stream": False,
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_k": 7,
        "gen_ai.request.seed": 3,
        "gen_ai.response.id": answer.json()["id"],
        "gen_ai.response.model": "scripted",
        "gen_ai.response.finish_reasons": ("length",),
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.output_tokens": 2,
        "gen_ai.usage.cache_read.input_tokens": 2,
        "llamalane.level": 2,
        "llamalane.lane": "main",
        "llamalane.queue_time": 0.25,
        "llamalane.time_to_first_token": 0.5,
        "llamalane.parks": 1,
        "llamalane.restarts": 0,
        "llamalane.request_id": "mine",
    }
    assert [event.name.removeprefix("llamalane.") for event in generation.events] == [
        *("admitted", "first_token", "parked", "resumed")
    ]
    assert generation.status.status_code is StatusCode.UNSET


async def test_no_span_holds_text_of_prompts_outputs_or_errors(spans: Spans) -> None:
    plays = [
        Play([SECRETS[1]]),
        Play([SECRETS[1]]),
        Play(error=RequestShedError(1)),
        Play(refusal=cast(Any, ValueError(SECRETS[4]))),
    ]
    async with client_of(traced(ScriptedEngine(plays), spans)) as client:
        for more in ({}, {"stream": True}, {}, {}):
            await client.post("/v1/chat/completions", json={**CHAT, **more})
        await client.post("/v1/chat/completions", json={**CHAT, "temperature": SECRETS[0]})
        await client.post("/v1/chat/completions", json={**CHAT, "model": SECRETS[0]})
    assert len(spans.ended) == 5 + 6
    told = "".join(span.to_json() for span in spans.ended)
    assert not [secret for secret in SECRETS if secret in told]


@pytest.mark.parametrize("streamed", [False, True])
async def test_several_choices_have_one_span(spans: Spans, streamed: bool) -> None:
    engine = ScriptedEngine([Play(["a"]), Play(["b"], finish=FinishReason.LENGTH)])
    async with client_of(traced(engine, spans)) as client:
        await client.post("/v1/completions", json={"prompt": "x", "n": 2, "stream": streamed})
    generation = spans.one(SpanKind.INTERNAL)
    attributes = attributes_of(generation)
    assert generation.name == "text_completion scripted"
    assert attributes["gen_ai.request.choice.count"] == 2
    assert attributes["gen_ai.request.stream"] is streamed
    assert attributes["gen_ai.response.finish_reasons"] == ("stop", "length")
    assert attributes["gen_ai.usage.input_tokens"] == 3, "a prompt counts once"
    assert attributes["gen_ai.usage.output_tokens"] == 2
    assert [dict(event.attributes or {}) for event in generation.events] == [
        {"llamalane.choice": number} for number in (0, 0, 0, 0, 1, 1, 1, 1)
    ]


@pytest.mark.parametrize(
    ("play", "body", "status", "error"),
    [
        (Play(refusal=QueueFullError(1, reason="requests", limit=1)), {}, 429, "QueueFullError"),
        (Play((), error=RequestShedError(1)), {}, 429, "RequestShedError"),
        (Play(["begun"], error=RequestShedError(1)), {"stream": True}, 200, "RequestShedError"),
    ],
)
async def test_an_error_is_told_by_its_class(
    spans: Spans, play: Play, body: dict[str, Any], status: int, error: str
) -> None:
    async with client_of(traced(ScriptedEngine([play]), spans)) as client:
        answer = await client.post("/v1/completions", json={"prompt": "x", **body})
    generation = spans.one(SpanKind.INTERNAL)
    assert answer.status_code == status
    assert generation.status.status_code is StatusCode.ERROR
    assert generation.status.description is None
    assert attributes_of(generation)["error.type"] == error
    assert "gen_ai.response.finish_reasons" not in attributes_of(generation)


async def test_a_client_that_leaves_is_told_of_with_what_it_had(spans: Spans, caplog: pytest.LogCaptureFixture) -> None:
    engine = ScriptedEngine([Play(["a", "b"], release=anyio.Event(), before_release=1)])
    with caplog.at_level(logging.INFO, "llamalane.api.access"):
        async with exchange(traced(engine, spans), "/v1/completions", {"prompt": "x", "stream": True}) as request:
            await request.next()
            await request.body()
            request.leave()
    generation = spans.one(SpanKind.INTERNAL)
    assert attributes_of(generation)["error.type"] == "client_disconnected"
    assert attributes_of(generation)["llamalane.time_to_first_token"] == 0.5
    assert "status=499 level=3 wait=0.2500 first_token=0.5000 prompt_tokens=3" in caplog.text


async def test_the_log_line_names_the_trace(spans: Spans, caplog: pytest.LogCaptureFixture) -> None:
    async with client_of(traced(ScriptedEngine(), spans)) as client:
        with caplog.at_level(logging.INFO, "llamalane.api.access"):
            await client.post("/v1/completions", json={"prompt": "x"}, headers=TRACEPARENT)
            await client.get("/v1/models", headers=TRACEPARENT)
    lines = [record for record in caplog.records if record.name == "llamalane.api.access"]
    assert all(f" trace={TRACE} " in record.getMessage() for record in lines)
    assert {vars(record)["trace_id"] for record in lines} == {TRACE}


@pytest.mark.parametrize("ours", [True, False])
async def test_unexpected_errors_do_not_reach_the_process_s_logs_with_their_words(
    ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter = InMemoryLogRecordExporter()  # type: ignore[no-untyped-call]
    provider = LoggerProvider(shutdown_on_exit=False)
    provider.add_log_record_processor(SimpleLogRecordProcessor(exporter))
    for where in ("opentelemetry._logs", "opentelemetry._logs._internal"):
        monkeypatch.setattr(f"{where}.get_logger_provider", lambda: provider)
    app = create_app(as_engine(ScriptedEngine())) if ours else FastAPI()

    @app.get("/broken")
    async def fail() -> None:
        raise ZeroDivisionError(SECRETS[4])

    async with client_of(app) as client:
        if ours:
            assert (await client.get("/broken")).status_code == 500
        else:
            with pytest.raises(ZeroDivisionError):
                await client.get("/broken")
    told = [record.to_json() for record in exporter.get_finished_logs()]
    assert any(SECRETS[4] in record for record in told) is not ours


async def test_scrapes_and_health_checks_are_not_traced(spans: Spans) -> None:
    host = FastAPI(telemetry={"tracing": False})
    host.mount("/llm", traced(ScriptedEngine(), spans))
    for app, root in ((traced(ScriptedEngine(), spans), ""), (host, "/llm")):
        async with client_of(app) as client:
            for path in ("/health", "/v1/health", "/metrics"):
                assert (await client.get(root + path)).status_code == 200
    assert spans.ended == []


async def test_in_a_host_that_traces_there_is_one_span_for_http(spans: Spans) -> None:
    host = FastAPI(telemetry={"tracer_provider": spans.provider, "operation_spans": False})
    host.mount("/llm", traced(ScriptedEngine(), spans))
    async with client_of(host) as client:
        await client.post("/llm/v1/completions", json={"prompt": "x"}, headers=TRACEPARENT)
    http, generation = spans.one(SpanKind.SERVER), spans.one(SpanKind.INTERNAL)
    assert http.name == "POST /llm/v1/completions"
    assert generation.parent is not None
    assert generation.parent.span_id == http.context.span_id
    assert format_trace_id(generation.context.trace_id) == TRACE


async def test_without_a_span_for_http_the_clients_trace_is_continued_all_the_same(spans: Spans) -> None:
    host = FastAPI(telemetry={"tracing": False})
    app = traced(ScriptedEngine(), spans)
    app._telemetry["tracing"] = False  # as under a framework whose spans nobody makes
    host.mount("/llm", app)
    async with client_of(host) as client:
        await client.post("/llm/v1/completions", json={"prompt": "x"}, headers=TRACEPARENT)
    [generation] = spans.ended
    assert generation.parent is not None
    assert format_span_id(generation.parent.span_id) == PARENT


@pytest.fixture
async def displaced(tiny_model: Path, spans: Spans, anyio_backend: object) -> AsyncIterator[None]:
    """A request on a real engine, which a more urgent one has displaced."""
    events: list[Event] = []
    config = EngineConfig(
        models=[ModelConfig(path=tiny_model, name="tiny")],
        streams=StreamsConfig(lanes=[LaneConfig(places=1, threads=1)]),
    )
    async with Engine(config, observer=events.append) as engine:
        app = create_app(engine, tracer_provider=spans.provider)
        async with client_of(app) as client, anyio.create_task_group() as tasks:
            body = {"prompt": "x", "ignore_eos": True, "max_tokens": 500, "priority": 5}
            tasks.start_soon(lambda: client.post("/v1/completions", json=body))
            while not any(event.kind is EventKind.STARTED for event in events):
                await anyio.lowlevel.checkpoint()
            await client.post("/v1/completions", json={"prompt": "y", "max_tokens": 1, "priority": 1})
        yield


@pytest.mark.usefixtures("displaced")
async def test_a_displaced_request_tells_when_it_was_parked_and_resumed(spans: Spans) -> None:
    [displaced] = [span for span in spans.ended if attributes_of(span).get("llamalane.level") == 5]
    names = [event.name.removeprefix("llamalane.") for event in displaced.events]
    assert sorted(names) == ["admitted", "first_token", "parked", "resumed"]
    assert names.index("admitted") < names.index("parked") < names.index("resumed")
    times = [event.timestamp for event in displaced.events]
    assert displaced.start_time is not None
    assert displaced.end_time is not None
    assert [displaced.start_time, *times, displaced.end_time] == sorted(
        [displaced.start_time, *times, displaced.end_time]
    )
    assert attributes_of(displaced)["llamalane.parks"] == 1


async def test_spans_are_sent_as_yaml_says_before_the_app_ends(tiny_model: Path, tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    with collecting() as collector:
        traces = f"{{export: otlp, endpoint: {collector.url}, service_name: chat}}"
        file.write_text(f"models: [{{path: {tiny_model}, name: tiny}}]\napi: {{traces: {traces}}}\n")
        app = create_app(ServerConfig.from_yaml(file))
        async with client_of(app) as client, lifespan_of(app)(app):
            await ready(app)
            await client.post("/v1/completions", json={"prompt": "x", "max_tokens": 2}, headers=TRACEPARENT)
        path, sent = collector.next()
    assert path == "/v1/traces"
    [resource] = sent.resource_spans
    named = {attribute.key: attribute.value.string_value for attribute in resource.resource.attributes}
    assert named["service.name"] == "chat"
    found = {span.name: span for scope in resource.scope_spans for span in scope.spans}
    assert found.keys() == {"POST /v1/completions", "text_completion tiny"}
    assert {span.trace_id.hex() for span in found.values()} == {TRACE}


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://collector:4318", "http://collector:4318/v1/traces"),
        ("http://collector:4318/", "http://collector:4318/v1/traces"),
        ("https://collector/otlp/v1/traces", "https://collector/otlp/v1/traces"),
    ],
)
def test_an_endpoint_without_a_path_is_a_collectors(endpoint: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sent_to: list[str | None] = []
    monkeypatch.setattr(
        "opentelemetry.exporter.otlp.proto.http.trace_exporter.OTLPSpanExporter",
        lambda *, endpoint: sent_to.append(endpoint) or InMemorySpanExporter(),  # type: ignore[func-returns-value]
    )
    traces = TracesConfig(export="otlp", endpoint=endpoint, sample=0.5)
    create_app(as_engine(ScriptedEngine()), api=ApiConfig(traces=traces))
    assert sent_to == [url]


def test_without_the_extra_sending_is_refused_with_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigError, match=r"pip install 'llamalane\[otel\]'"):
        create_app(as_engine(ScriptedEngine()), api=ApiConfig(traces=TracesConfig(export="otlp")))
    create_app(as_engine(ScriptedEngine()))


GLOBAL = """
import sys, anyio
from tests.api.asgi import client_of
from tests.api.fake_engine import ScriptedEngine, as_engine
from llamalane.api import create_app

app = create_app(as_engine(ScriptedEngine()))
assert not [name for name in sys.modules if name.startswith(("opentelemetry.sdk", "opentelemetry.exporter"))]

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

exporter, provider = InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)

async def main():
    async with client_of(app) as client:
        await client.post("/v1/completions", json={"prompt": "x"})

anyio.run(main)
print(*sorted(span.name for span in exporter.get_finished_spans()), sep=", ")
"""


def test_the_provider_that_the_process_has_set_is_used_and_nothing_is_imported_before() -> None:
    root = Path(__file__).parents[2]
    variables = environment()
    variables["PYTHONPATH"] += f":{root}"
    done = subprocess.run(
        [sys.executable, "-c", GLOBAL], capture_output=True, text=True, env=variables, cwd=root, check=False
    )
    assert done.stdout == "POST /v1/completions, text_completion scripted\n", done.stderr


async def test_the_documentation_names_all_attributes_and_events_and_no_others(spans: Spans) -> None:
    keys = [KeyConfig(name="alice", sha256=sha256("the key of alice"))]
    names = ("temperature", "top_p", "frequency_penalty", "presence_penalty")
    everything = {"prompt": "x", "n": 2, "stream": True, "seed": 1, "top_k": 5, "max_tokens": 5}
    everything |= dict.fromkeys(names, 0.5)
    plays = [Play(), Play(), Play(refusal=QueueFullError(1, reason="requests", limit=1))]
    async with client_of(traced(ScriptedEngine(plays), spans, keys=keys), {"x-api-key": "the key of alice"}) as client:
        for _ in range(2):
            await client.post("/v1/completions", json=everything)
    ours = [span for span in spans.ended if span.kind is SpanKind.INTERNAL]
    told = {name for span in ours for name in attributes_of(span)}
    choices = {name for span in ours for event in span.events for name in event.attributes or {}}
    text = (Path(__file__).parents[2] / "docs" / "observability.md").read_text()
    listed = set(re.findall(r"`((?:gen_ai|llamalane|error)\.[a-z_.]+)`", text)) - {"llamalane.api.access"}
    assert listed == told | choices | {
        *EVENTS.values(),
        "llamalane.admitted",
        "llamalane.first_token",
        "llamalane.resumed",
    }

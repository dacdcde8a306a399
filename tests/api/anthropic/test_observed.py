"""Metrics, traces and logs tell of messages as of all other requests."""

from __future__ import annotations

import logging

import pytest
from opentelemetry.trace import SpanKind

from llamalane.api import create_app
from llamalane.errors import RequestShedError
from tests.api.anthropic.asking import BODY, COUNT_PATH, MESSAGES_PATH
from tests.api.asgi import client_of
from tests.api.fake_engine import Play, ScriptedEngine, as_engine
from tests.api.scraping import Scrape
from tests.api.test_tracing import Spans, attributes_of

pytestmark = pytest.mark.anyio


async def test_answers_are_counted_by_endpoint_and_status() -> None:
    app = create_app(as_engine(ScriptedEngine([Play(), Play(refusal=RequestShedError(1))])))
    async with client_of(app) as client:
        for _ in range(2):
            await client.post(MESSAGES_PATH, json=BODY)
        await client.post(COUNT_PATH, json={})
        scrape = Scrape((await client.get("/metrics")).text)
    for path, status in ((MESSAGES_PATH, "200"), (MESSAGES_PATH, "429"), (COUNT_PATH, "400")):
        assert scrape.value("llamalane_http_requests_total", endpoint=path, status=status) == 1


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_message_is_traced_and_logged(streamed: bool, caplog: pytest.LogCaptureFixture) -> None:
    spans = Spans()
    engine = ScriptedEngine([Play(["a", "b"], prompt_tokens=10, cached_tokens=4)])
    app = create_app(as_engine(engine), tracer_provider=spans.provider)
    with caplog.at_level(logging.INFO, "llamalane.api.access"):
        async with client_of(app) as client:
            await client.post(MESSAGES_PATH, json={**BODY, "stream": streamed})
    span = spans.one(SpanKind.INTERNAL)
    told = attributes_of(span)
    assert span.name == "chat scripted"
    assert told["gen_ai.request.max_tokens"] == BODY["max_tokens"]
    assert (told["gen_ai.usage.input_tokens"], told["gen_ai.usage.output_tokens"]) == (10, 2)
    assert "POST /v1/messages status=200" in caplog.text
    assert "prompt_tokens=10 cached_tokens=4 completion_tokens=2" in caplog.text


async def test_a_stream_that_breaks_off_is_traced_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    spans = Spans()
    app = create_app(
        as_engine(ScriptedEngine([Play(["a"], error=RequestShedError(1))])), tracer_provider=spans.provider
    )
    with caplog.at_level(logging.INFO, "llamalane.api.access"):
        async with client_of(app) as client:
            await client.post(MESSAGES_PATH, json={**BODY, "stream": True})
    assert attributes_of(spans.one(SpanKind.INTERNAL))["error.type"] == "RequestShedError"
    assert "error=RequestShedError" in caplog.text

"""Spans of generation requests, by OpenTelemetry's conventions for generative AI, and where they go.

FastAPI makes a span for each HTTP request by itself, which continues the client's trace; ours is its child. Both need
nothing but OpenTelemetry's API, which does nothing while the process has set no tracer provider. What sends spans, the
extra `otel`, is imported only where that is configured. No span holds anything of a prompt or an output.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
from fastapi.telemetry import TelemetryConfig
from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, StatusCode, TracerProvider
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import Scope

from llamalane import __version__
from llamalane.api.config import TracesConfig
from llamalane.api.middleware import QUIET_PATHS, record_of
from llamalane.api.request_scope import route_path
from llamalane.api.sampling_fields import SampledBody
from llamalane.errors import ConfigError
from llamalane.ids import Level
from llamalane.scheduler import EventKind, Progress, Result

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider as SendingProvider

    from llamalane.api.orders import Order

PROVIDER = "llamalane"
"""What `gen_ai.provider.name` says."""

_FLUSH_SECONDS = 5.0
"""For so long at most, the end of an app waits for its last spans to be sent."""
EVENTS = {
    EventKind.PARKED: "llamalane.parked",
    EventKind.HANDED_OVER: "llamalane.handed_over",
    EventKind.REQUEUED: "llamalane.requeued",
    EventKind.PRIORITIZED: "llamalane.prioritized",
}
"""What becomes of a request, by the names that span events have."""
_FIRST_TOKEN = "llamalane.first_token"
_NANOSECONDS = 1_000_000_000


class Tracing:
    """The spans of one app: for `provider`, or sent as `config` says, or left to the process's tracer provider.

    Raises `ConfigError` when they are to be sent and the extra `otel` is not installed.
    """

    def __init__(self, config: TracesConfig, provider: TracerProvider | None = None) -> None:
        self._own = _make_provider(config) if provider is None and config.export == "otlp" else None
        self._provider = provider or self._own
        self._tracer = trace.get_tracer("llamalane", __version__, self._provider)

    @property
    def for_fastapi(self) -> TelemetryConfig:
        """What FastAPI goes by, which traces HTTP requests."""
        settings: TelemetryConfig = {
            "operation_spans": False,
            "logs": False,  # they would hold the words of unexpected errors; ours go to the log
            "exclude": lambda scope: route_path(scope) in QUIET_PATHS,
        }
        if self._provider is not None:
            settings["tracer_provider"] = self._provider
            settings["auto_configure"] = False
        return settings

    @contextlib.contextmanager
    def generation(
        self, scope: Scope, operation: str, body: SampledBody, level: Level, models: Sequence[str]
    ) -> Iterator[GenerationSpan]:
        """Trace a request for as long as the block lasts; an error that leaves it is told.

        `models` are the names that the served model has: any other that a client asks for is its own text.
        """
        model = body.model if body.model is not None and body.model in models else models[0]
        attributes = _request_attributes(operation, body, level, model)
        with self._tracer.start_as_current_span(
            f"{operation} {model}",
            _parent(scope),
            SpanKind.INTERNAL,
            attributes,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            traced = GenerationSpan(span)
            record = record_of(scope)
            if span.is_recording():
                span.set_attribute("llamalane.request_id", record.id)
                record.trace = trace.format_trace_id(span.get_span_context().trace_id)
                if record.key:
                    span.set_attribute("llamalane.key", record.key)
            try:
                yield traced
            except BaseException as error:
                traced.fail(error)
                raise

    async def flush(self) -> None:
        """Send what has not been sent, if it is sent from here at all."""
        if self._own is None:
            return
        with anyio.CancelScope(shield=True), anyio.move_on_after(_FLUSH_SECONDS):
            await anyio.to_thread.run_sync(self._own.force_flush, abandon_on_cancel=True)


class GenerationSpan:
    """The span of one generation request."""

    def __init__(self, span: Span) -> None:
        self._span = span

    def fail(self, error: BaseException) -> None:
        """Tell which error ended the request, but not its words, which may quote the request."""
        name = "client_disconnected" if isinstance(error, ClientDisconnect) else type(error).__name__
        self._span.set_attribute("error.type", name)
        self._span.set_status(StatusCode.ERROR)

    def tell(self, order: Order[Any], results: Sequence[Result]) -> None:
        """Tell what became of all choices; `results` are those of the finished ones."""
        if not self._span.is_recording():
            return
        progress = [handle.progress for handle in order.handles]
        self._span.set_attributes(_response_attributes(order, results, progress))
        now = time.time_ns()
        for number, one in enumerate(progress):
            choice = {"llamalane.choice": number} if len(progress) > 1 else {}
            self._add_events(one, now - round(one.age * _NANOSECONDS), choice)

    def _add_events(self, progress: Progress, begin: int, choice: dict[str, Any]) -> None:
        events = [(_FIRST_TOKEN, progress.first_token)] if progress.first_token is not None else []
        admitted = False
        for kind, seconds in progress.events:
            if kind is EventKind.ADMITTED:
                events.append(("llamalane.resumed" if admitted else "llamalane.admitted", seconds))
                admitted = True
            elif kind in EVENTS:
                events.append((EVENTS[kind], seconds))
        for name, seconds in sorted(events, key=lambda event: event[1]):
            self._span.add_event(name, choice, begin + round(seconds * _NANOSECONDS))


def _request_attributes(operation: str, body: SampledBody, level: Level, model: str) -> dict[str, Any]:
    """Return what is known of a request when it comes; a stop string is left out, since it is a client's text."""
    attributes = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": model,
        "gen_ai.request.stream": bool(body.stream),
        "gen_ai.request.choice.count": body.returned if body.choices > 1 else None,
        "gen_ai.request.max_tokens": body.sampling.max_tokens,
        "gen_ai.request.temperature": body.temperature,
        "gen_ai.request.top_p": body.top_p,
        "gen_ai.request.top_k": body.top_k,
        "gen_ai.request.frequency_penalty": body.frequency_penalty,
        "gen_ai.request.presence_penalty": body.presence_penalty,
        "gen_ai.request.seed": body.seed,
        "llamalane.level": level,
    }
    return {name: value for name, value in attributes.items() if value is not None}


def _response_attributes(order: Order[Any], results: Sequence[Result], progress: Sequence[Progress]) -> dict[str, Any]:
    prompts = progress[:: order.body.choices]
    waits = [one.wait for one in progress if one.wait is not None]
    reasons = {result.id: result.finish_reason.value for result in results}
    first_tokens = [one.first_token for one in progress if one.first_token is not None]
    attributes = {
        "gen_ai.response.id": order.id,
        "gen_ai.response.model": order.model,
        "gen_ai.response.finish_reasons": [reasons[one.id] for one in order.handles if one.id in reasons] or None,
        "gen_ai.usage.input_tokens": sum(one.prompt_tokens for one in prompts),
        "gen_ai.usage.output_tokens": sum(one.completion_tokens for one in progress),
        "gen_ai.usage.cache_read.input_tokens": sum(one.cached_tokens for one in prompts),
        "llamalane.lane": next((one.lane for one in progress if one.lane), None),
        "llamalane.queue_time": min(waits, default=None),
        "llamalane.time_to_first_token": min(first_tokens, default=None),
        "llamalane.parks": sum(one.parks for one in progress),
        "llamalane.restarts": sum(one.restarts for one in progress),
    }
    return {name: value for name, value in attributes.items() if value is not None}


def _parent(scope: Scope) -> Context | None:
    """Return what the request's span belongs to: the span that is current, or else what the client's header says."""
    if trace.get_current_span().get_span_context().is_valid:
        return None
    return propagate.extract(dict(Headers(scope=scope)))


def _make_provider(config: TracesConfig) -> SendingProvider:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415  (an extra)
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider as SendingProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
        from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio  # noqa: PLC0415
    except ModuleNotFoundError as error:
        message = f"api.traces.export: otlp needs {error.name}: pip install 'llamalane[otel]'"
        raise ConfigError(message) from error
    named = {"service.name": PROVIDER, "service.version": __version__}
    resource = Resource.create().merge(Resource(named)).merge(OTELResourceDetector().detect())
    if config.service_name is not None:
        resource = resource.merge(Resource({"service.name": config.service_name}))
    sampler = None if config.sample is None else ParentBasedTraceIdRatio(config.sample)
    provider = SendingProvider(sampler=sampler, resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=_traces_url(config.endpoint))))
    return provider


def _traces_url(endpoint: str | None) -> str | None:
    """Return where to send spans: an address without a path is a collector's, which has them under `/v1/traces`."""
    if endpoint is None or urlsplit(endpoint).path not in ("", "/"):
        return endpoint
    return f"{endpoint.rstrip('/')}/v1/traces"

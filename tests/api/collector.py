"""A collector of OpenTelemetry's protocol over HTTP, small enough for a test."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

Exported = tuple[str, ExportTraceServiceRequest]
"""Where something was sent, and what."""


class Collector:
    """What was sent to it so far."""

    def __init__(self, url: str, received: queue.SimpleQueue[Exported]) -> None:
        self.url = url
        self._received = received

    def next(self) -> Exported:
        """Wait for the next thing that is sent."""
        return self._received.get(timeout=30)

    def spans(self, count: int) -> list[Span]:
        """Wait for so many spans."""
        found: list[Span] = []
        while len(found) < count:
            found += [
                span
                for resource in self.next()[1].resource_spans
                for scope in resource.scope_spans
                for span in scope.spans
            ]
        return found


@contextlib.contextmanager
def collecting() -> Iterator[Collector]:
    """Collect for as long as the block lasts."""
    received: queue.SimpleQueue[Exported] = queue.SimpleQueue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                raise AssertionError("nothing should be compressed unless that is asked for")
            received.put((self.path, ExportTraceServiceRequest.FromString(data)))
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield Collector(f"http://127.0.0.1:{server.server_port}", received)
        finally:
            server.shutdown()
            thread.join()

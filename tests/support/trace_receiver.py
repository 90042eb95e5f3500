"""A receiver of OTLP over HTTP on a real socket, which keeps every span; needs opentelemetry-proto."""

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class TraceReceiver:
    """A running receiver.

    Attributes:
        url: its base URL.
        spans: every span so far.
        requests: head of each export: path and headers in lower case.
        resources: attributes of the resource of each export.
        status: status of its responses.
        held: set unless responses wait.
    """

    def __init__(self) -> None:
        self.url = ""
        self.spans: list[Span] = []
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.resources: list[dict[str, str]] = []
        self.status = 200
        self.held = threading.Event()
        self.held.set()

    def take(self, path: str, headers: dict[str, str], body: bytes) -> None:
        """Keep one export."""
        self.requests.append((path, headers))
        self.held.wait()
        if self.status != 200:
            return
        for group in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.resources.append({each.key: each.value.string_value for each in group.resource.attributes})
            for scope in group.scope_spans:
                self.spans += scope.spans

    def of_kind(self, kind: "Span.SpanKind.ValueType") -> list[Span]:
        """Return the spans of a kind, in the order of their start."""
        return sorted((span for span in self.spans if span.kind == kind), key=lambda span: span.start_time_unix_nano)

    @property
    def servers(self) -> list[Span]:
        """The spans of requests."""
        return self.of_kind(Span.SPAN_KIND_SERVER)

    @property
    def clients(self) -> list[Span]:
        """The spans of attempts."""
        return self.of_kind(Span.SPAN_KIND_CLIENT)


def attributes(span: Span) -> dict[str, object]:
    """Return the attributes of a span."""
    return {each.key: getattr(each.value, str(each.value.WhichOneof("value"))) for each in span.attributes}


@contextlib.contextmanager
def receiving() -> Iterator[TraceReceiver]:
    """Receive while inside."""
    receiver = TraceReceiver()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            receiver.take(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
            self.send_response(receiver.status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Be quiet."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

    server = Server(("127.0.0.1", 0), Handler)
    receiver.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield receiver
    finally:
        receiver.held.set()
        server.shutdown()
        thread.join()
        server.server_close()

"""Sends spans as OTLP over HTTP. The only importer of OpenTelemetry, of its protocol buffers.

The SDK's own exporter is not used: it builds a message for each attribute of each span, which costs four fifths of the
export. Most attributes repeat, so their messages are cached. Units: seconds, bytes.
"""

import contextlib
import http.client
import os
import socket
import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final
from urllib.parse import unquote, urlsplit, urlunsplit

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1 import trace_pb2 as messages

from gateway.config.tls import TlsFiles, tls_context
from gateway.observe.span_queue import ExportFailed
from gateway.observe.spans import Attribute, Span

_TIMEOUT_S: Final = 5.0  # of a try, from the connect to the end of the answer
_RETRY_S: Final = 1.0  # before the second and last try
_RETRIED: Final = frozenset([429, 502, 503, 504])  # as OTLP has it
_ANSWER_BYTES_MAX: Final = 65_536  # an answer to an export has some 100; http.client bounds its headers
_NAME: Final = "ttft-gateway"
_CACHED_MAX: Final = 4096  # attributes, of some 200 bytes each
_UNSET: Final = messages.Status()
_LOCAL: Final = messages.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK
_REMOTE: Final = _LOCAL | messages.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK


class OtlpExporter:
    """Sends spans to a receiver (a `gateway.observe.span_queue.Exporter`), over one connection that is reused.

    Args:
        url: URL of the receiver.
        headers: headers of each export.
        version: version of the gateway.
        instance: name of this process, unique in the service.
    """

    def __init__(self, url: str, headers: Mapping[str, str], version: str, instance: str) -> None:
        parts = urlsplit(url)
        self._path = urlunsplit(("", "", parts.path, parts.query, ""))
        self._headers = {"user-agent": f"{_NAME}/{version}", **headers, "content-type": "application/x-protobuf"}
        tls = tls_context(TlsFiles(os.environ.get("OTEL_EXPORTER_OTLP_CERTIFICATE")))
        host = parts.hostname or ""
        self._connection = (
            http.client.HTTPSConnection(host, parts.port, timeout=_TIMEOUT_S, context=tls)
            if parts.scheme == "https"
            else http.client.HTTPConnection(host, parts.port, timeout=_TIMEOUT_S)
        )
        self._is_late = False
        own = {"service.name": _NAME, "service.version": version, "service.instance.id": instance}
        self._resource = Resource(attributes=[_repeated(*each) for each in {**own, **_named(os.environ)}.items()])
        self._scope = InstrumentationScope(name=_NAME, version=version)
        self._closing = threading.Event()

    def export(self, spans: Sequence[Span]) -> None:
        """Send the spans, with one retry.

        Raises:
            ExportFailed: they are lost.
        """
        body = self.encode(spans)
        fault, is_retried = self._post(body)
        if is_retried and not self._closing.wait(_RETRY_S):
            fault, _ = self._post(body)
        if fault is not None:
            raise ExportFailed(fault)

    def encode(self, spans: Sequence[Span]) -> bytes:
        """Return the body of an export."""
        scope = messages.ScopeSpans(scope=self._scope, spans=[_message(span) for span in spans])
        group = messages.ResourceSpans(resource=self._resource, scope_spans=[scope])
        body: bytes = ExportTraceServiceRequest(resource_spans=[group]).SerializeToString()
        return body

    def close(self) -> None:
        """End the connection, and a retry that waits."""
        self._closing.set()
        self._cut()
        self._connection.close()

    def _post(self, body: bytes) -> tuple[str | None, bool]:
        """Send a body; return the fault, None for none, and True if a retry may help.

        A timer ends the connection: the time limit of a socket is for each read, and a server that sends a byte a
        second would hold the thread for ever.
        """
        self._is_late = False
        timer = threading.Timer(_TIMEOUT_S, self._on_late)
        timer.start()
        try:
            self._connection.request("POST", self._path, body, self._headers)
            response = self._connection.getresponse()
            size = len(response.read(_ANSWER_BYTES_MAX + 1))
            if self._is_late:
                raise TimeoutError
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            is_late = self._is_late or isinstance(error, TimeoutError)
            return f"no whole answer within {_TIMEOUT_S:g} s" if is_late else str(error) or type(error).__name__, True
        finally:
            timer.cancel()
        if not response.isclosed():  # more is left
            self._connection.close()
        if size > _ANSWER_BYTES_MAX:
            return f"its answer is larger than {_ANSWER_BYTES_MAX} bytes", False
        status = response.status
        return (None, False) if 200 <= status < 300 else (f"status {status}", status in _RETRIED)

    def _on_late(self) -> None:
        self._is_late = True
        self._cut()

    def _cut(self) -> None:
        opened = self._connection.sock
        if opened is not None:
            with contextlib.suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)


def _message(span: Span) -> messages.Span:
    return messages.Span(
        trace_id=bytes.fromhex(span.trace_id),
        span_id=bytes.fromhex(span.span_id),
        parent_span_id=bytes.fromhex(span.parent_id or ""),
        flags=_REMOTE if span.is_remote else _LOCAL,
        name=span.name,
        kind=messages.Span.SPAN_KIND_SERVER if span.is_server else messages.Span.SPAN_KIND_CLIENT,
        start_time_unix_nano=span.start_ns,
        end_time_unix_nano=span.end_ns,
        attributes=[
            KeyValue(key=key, value=AnyValue(double_value=value)) if type(value) is float else _repeated(key, value)
            for key, value in span.attributes.items()
        ],
        status=_UNSET
        if span.error is None
        else messages.Status(code=messages.Status.STATUS_CODE_ERROR, message=span.error),
    )


@lru_cache(_CACHED_MAX)
def _repeated(key: str, value: Attribute) -> KeyValue:
    """Return the message of an attribute; each key has values of one type."""
    return KeyValue(key=key, value=_value(value))


def _value(value: Attribute) -> AnyValue:
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, str):
        return AnyValue(string_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    return AnyValue(array_value=ArrayValue(values=[AnyValue(string_value=each) for each in value]))


def _named(env: Mapping[str, str]) -> dict[str, str]:
    """Return the attributes of the service that OpenTelemetry's environment variables have."""
    pairs = (pair.split("=", 1) for pair in env.get("OTEL_RESOURCE_ATTRIBUTES", "").split(",") if "=" in pair)
    found = {key.strip(): unquote(value.strip()) for key, value in pairs}
    name = env.get("OTEL_SERVICE_NAME")
    return {**found, "service.name": name} if name else found

"""Spans as OTLP, compared with the encoder of OpenTelemetry's SDK; over sockets: tests/wire/test_tracing_wire.py."""

import pytest

pytest.importorskip("opentelemetry.sdk")
pytest.importorskip("opentelemetry.proto")

from msgspec.structs import replace
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from gateway.observe.otlp import OtlpExporter
from gateway.observe.spans import Span, rejected_span, spans_of
from gateway.traces import Trace
from sample_events import HEDGED, RECOVERED, REJECTED
from ttft_gateway.hedging.outcomes import Denial

_TRACE = Trace("0af7651916cd43dd8448eb211c80319c", "00000000000000a0", "b7ad6b7169203331", sampled=True)
_OWN = {"service.name": "ttft-gateway", "service.version": "1.2", "service.instance.id": "host-1"}
_SPANS = [
    *spans_of(replace(HEDGED, denials=(Denial.QUOTA, Denial.BUDGET)), _TRACE, 1_000.0, lambda *_: None),
    *spans_of(RECOVERED, _TRACE, 1_000.0, lambda *_: None),
    rejected_span(REJECTED, replace(_TRACE, parent_id=None), 1_000.0),
]


def _exporter() -> OtlpExporter:
    return OtlpExporter("http://127.0.0.1:1/v1/traces", {}, "1.2", "host-1")


def _in_sdk(span: Span) -> ReadableSpan:
    """Return a span as the SDK has it."""
    flags, trace_id = TraceFlags(TraceFlags.SAMPLED), int(span.trace_id, 16)
    parent = None
    if span.parent_id is not None:
        parent = SpanContext(trace_id, int(span.parent_id, 16), span.is_remote, flags)
    return ReadableSpan(
        span.name,
        SpanContext(trace_id, int(span.span_id, 16), is_remote=False, trace_flags=flags),
        parent,
        Resource(_OWN),
        span.attributes,
        kind=SpanKind.SERVER if span.is_server else SpanKind.CLIENT,
        status=Status(StatusCode.UNSET) if span.error is None else Status(StatusCode.ERROR, span.error),
        start_time=span.start_ns,
        end_time=span.end_ns,
        instrumentation_scope=InstrumentationScope("ttft-gateway", "1.2"),
    )


def test_an_export_is_that_of_the_sdk() -> None:
    """The messages equal the messages of the SDK's encoder for the same spans, stored by its in-memory exporter."""
    memory = InMemorySpanExporter()
    processor = SimpleSpanProcessor(memory)
    for span in _SPANS:
        processor.on_end(_in_sdk(span))
    kept = memory.get_finished_spans()
    assert len(kept) == len(_SPANS)
    exporter = _exporter()
    for _ in range(2):  # attributes are kept
        assert ExportTraceServiceRequest.FromString(exporter.encode(_SPANS)) == encode_spans(kept)
    exporter.close()


def test_the_environment_names_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """`OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` have precedence, as everywhere in OpenTelemetry."""
    monkeypatch.setenv("OTEL_SERVICE_NAME", "llm-gateway")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=pr%20od, service.version=3,x")
    exporter = _exporter()
    (group,) = ExportTraceServiceRequest.FromString(exporter.encode(_SPANS)).resource_spans
    assert {each.key: each.value.string_value for each in group.resource.attributes} == {
        "deployment.environment.name": "pr od",
        "service.instance.id": "host-1",
        "service.name": "llm-gateway",
        "service.version": "3",
    }
    exporter.close()

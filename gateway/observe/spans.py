"""Builds the spans of a request from its finished record: one of the request, one of each attempt. Pure.

Names come from OpenTelemetry where it has one, the conventions for generative AI included; others begin with
`ttft_gateway.` (docs/guides/tracing.md). Tokens are in the spans of attempts only, so that a sum over spans counts each
token once. Never in a span: prompts, answers, texts of upstream errors, keys.

Units: nanoseconds of Unix time for the span; seconds, tokens and the configuration's currency in attributes.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import msgspec

from gateway.events import AttemptReport, RequestEnded, RequestRejected
from gateway.observe.recorder import OPERATIONS
from gateway.traces import Trace, attempt_id
from ttft_gateway.apis.base import Usage
from ttft_gateway.hedging.charges import Disposition
from ttft_gateway.limits.prices import money

_TEXT_CHARS_MAX = 200  # length of ids and error codes, which may come from an upstream
_PROVIDERS: Final = {  # OpenTelemetry's names; the others are the kinds themselves
    "azure": "azure.ai.openai",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "xai": "x_ai",
}

Attribute = str | bool | int | float | tuple[str, ...]


class Span(NamedTuple):
    """One span.

    Attributes:
        trace_id, span_id, parent_id: ids in hexadecimal digits; the parent is None at the root of a trace.
        is_remote: True if the parent is a span of the caller.
        is_server: True for a request, False for an attempt.
        start_ns, end_ns: Unix times in nanoseconds.
        error: label of the error that makes the span a failed one; None without an error.
    """

    name: str
    trace_id: str
    span_id: str
    parent_id: str | None
    is_remote: bool
    is_server: bool
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Attribute]
    error: str | None


class ReplicaFacts(msgspec.Struct, frozen=True):
    """The facts about a replica that the record of an attempt does not have.

    Attributes:
        kind: provider or server software.
        model: name of the model at the replica.
        address: host, or path of a unix socket.
        port: port; None with a path.
    """

    kind: str
    model: str
    address: str
    port: int | None


FindFacts = Callable[[str, str], ReplicaFacts | None]
"""Returns the facts about a replica of a model, by both names; None if it was removed."""


def spans_of(event: RequestEnded, trace: Trace, epoch_s: float, find: FindFacts) -> list[Span]:
    """Return the spans of a request that reached a replica.

    Args:
        epoch_s: Unix time at which the clock of the events was 0.
    """
    arrived_s = epoch_s + event.at_s - event.total_s
    first_s = arrived_s + event.queued_s + event.gateway_s
    name = OPERATIONS[event.api]
    facts = {attempt.replica: find(event.model, attempt.replica) for attempt in event.attempts}
    winner = None if event.winner is None else facts.get(event.winner)
    spans = [
        Span(
            f"{name} {event.model}",
            trace.trace_id,
            trace.span_id,
            trace.parent_id,
            trace.parent_id is not None,
            True,
            _ns(arrived_s),
            _ns(epoch_s + event.at_s),
            _request_attributes(event, name, winner),
            event.error[:_TEXT_CHARS_MAX] if event.error is not None and event.status >= 500 else None,
        )
    ]
    for number, attempt in enumerate(event.attempts):
        start_s, known = first_s + attempt.start_s, facts[attempt.replica]
        spans.append(
            Span(
                f"{name} {event.model if known is None else known.model}",
                trace.trace_id,
                attempt_id(trace.span_id, number),
                trace.span_id,
                False,
                False,
                _ns(start_s),
                _ns(start_s + attempt.end_s),
                _attempt_attributes(event, attempt, name, known),
                attempt.error if attempt.charge.disposition is Disposition.FAILED else None,
            )
        )
    return spans


def rejected_span(event: RequestRejected, trace: Trace, epoch_s: float) -> Span:
    """Return the span of a request that reached no replica; its method and path are not recorded."""
    attributes = _known(
        ("http.response.status_code", event.status),
        ("ttft_gateway.request_id", event.request_id),
        ("ttft_gateway.queue_time", event.queued_s),
        ("error.type", _truncated(event.code)),
        ("ttft_gateway.key", event.key_name),
        ("gen_ai.request.model", event.model),
    )
    return Span(
        "HTTP",
        trace.trace_id,
        trace.span_id,
        trace.parent_id,
        trace.parent_id is not None,
        True,
        _ns(epoch_s + event.at_s - event.queued_s),
        _ns(epoch_s + event.at_s),
        attributes,
        (event.code or "error")[:_TEXT_CHARS_MAX] if event.status >= 500 else None,
    )


def _request_attributes(event: RequestEnded, operation: str, winner: ReplicaFacts | None) -> dict[str, Attribute]:
    costs = [attempt.charge.cost for attempt in event.attempts if attempt.charge.cost is not None]
    return _known(
        ("gen_ai.operation.name", operation),
        ("gen_ai.request.model", event.model),
        ("gen_ai.request.stream", event.streaming),
        ("http.request.method", "POST"),
        ("http.route", f"/v1/{event.api.value}"),
        ("http.response.status_code", event.status),
        ("ttft_gateway.request_id", event.request_id),
        ("ttft_gateway.key", event.key_name),
        ("ttft_gateway.result", event.result.value),
        ("ttft_gateway.attempts", len(event.attempts)),
        ("ttft_gateway.gateway_time", event.gateway_s),
        ("gen_ai.response.model", None if winner is None else winner.model),
        ("gen_ai.response.time_to_first_chunk", event.ttft_s),
        ("error.type", _truncated(event.error)),
        ("ttft_gateway.winner", event.winner),
        ("ttft_gateway.queue_time", event.queued_s or None),
        ("ttft_gateway.denials", tuple(denial.value for denial in event.denials) or None),
        ("ttft_gateway.never_hedged", None if event.never_hedged is None else event.never_hedged.value),
        ("ttft_gateway.cost", money(sum(costs)) if costs else None),
    )


def _attempt_attributes(
    event: RequestEnded, attempt: AttemptReport, operation: str, facts: ReplicaFacts | None
) -> dict[str, Attribute]:
    usage, charge = attempt.usage or Usage(), attempt.charge
    kind = None if facts is None else facts.kind
    return _known(
        ("gen_ai.operation.name", operation),
        ("ttft_gateway.replica", attempt.replica),
        ("ttft_gateway.role", attempt.role.value),
        ("ttft_gateway.reason", attempt.reason),
        ("ttft_gateway.outcome", attempt.outcome.value),
        ("ttft_gateway.disposition", charge.disposition.value),
        ("gen_ai.request.stream", event.streaming or None),
        ("gen_ai.provider.name", None if kind is None else _PROVIDERS.get(kind, kind)),
        ("gen_ai.request.model", None if facts is None else facts.model),
        ("server.address", None if facts is None else facts.address),
        ("server.port", None if facts is None else facts.port),
        ("http.response.status_code", attempt.status),
        ("gen_ai.response.time_to_first_chunk", attempt.content_s),
        ("ttft_gateway.time_to_headers", attempt.headers_s),
        ("ttft_gateway.time_to_work", attempt.work_s),
        ("ttft_gateway.predicted_ttft", attempt.predicted_s),
        ("ttft_gateway.hedge_delay", attempt.hedge_after_s),
        ("error.type", _truncated(attempt.error)),
        ("ttft_gateway.upstream_request_id", _truncated(attempt.upstream_request_id)),
        ("gen_ai.usage.input_tokens", usage.prompt_tokens),
        ("gen_ai.usage.output_tokens", usage.completion_tokens),
        ("gen_ai.usage.cache_read.input_tokens", usage.cached_tokens),
        ("gen_ai.usage.reasoning.output_tokens", usage.reasoning_tokens),
        ("ttft_gateway.cost", charge.cost),
        # tokens that the replica has not reported
        ("ttft_gateway.billed.input_tokens", charge.prompt_tokens if charge.estimated else None),
        ("ttft_gateway.billed.output_tokens", charge.completion_tokens if charge.estimated else None),
    )


def _known(*attributes: tuple[str, Attribute | None]) -> dict[str, Attribute]:
    """Return the attributes that are not None."""
    return {name: value for name, value in attributes if value is not None}


def _truncated(text: str | None) -> str | None:
    return None if text is None else text[:_TEXT_CHARS_MAX]


def _ns(unix_s: float) -> int:
    return int(unix_s * 1e9)

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
from ttft_gateway.hedging.charges import Charge, Disposition
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
    attributes: dict[str, Attribute] = {
        "http.response.status_code": event.status,
        "ttft_gateway.request_id": event.request_id,
        "ttft_gateway.queue_time": event.queued_s,
    }
    if event.code is not None:
        attributes["error.type"] = event.code[:_TEXT_CHARS_MAX]
    if event.key_name is not None:
        attributes["ttft_gateway.key"] = event.key_name
    if event.model is not None:
        attributes["gen_ai.request.model"] = event.model
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
    found: dict[str, Attribute] = {
        "gen_ai.operation.name": operation,
        "gen_ai.request.model": event.model,
        "gen_ai.request.stream": event.streaming,
        "http.request.method": "POST",
        "http.route": f"/v1/{event.api.value}",
        "http.response.status_code": event.status,
        "ttft_gateway.request_id": event.request_id,
        "ttft_gateway.key": event.key_name,
        "ttft_gateway.result": event.result.value,
        "ttft_gateway.attempts": len(event.attempts),
        "ttft_gateway.gateway_time": event.gateway_s,
    }
    if winner is not None:
        found["gen_ai.response.model"] = winner.model
    if event.ttft_s is not None:
        found["gen_ai.response.time_to_first_chunk"] = event.ttft_s
    if event.error is not None:
        found["error.type"] = event.error[:_TEXT_CHARS_MAX]
    if event.winner is not None:
        found["ttft_gateway.winner"] = event.winner
    if event.queued_s:
        found["ttft_gateway.queue_time"] = event.queued_s
    if event.denials:
        found["ttft_gateway.denials"] = tuple(denial.value for denial in event.denials)
    if event.never_hedged is not None:
        found["ttft_gateway.never_hedged"] = event.never_hedged.value
    costs = [attempt.charge.cost for attempt in event.attempts if attempt.charge.cost is not None]
    if costs:
        found["ttft_gateway.cost"] = money(sum(costs))
    return found


def _attempt_attributes(
    event: RequestEnded, attempt: AttemptReport, operation: str, known: ReplicaFacts | None
) -> dict[str, Attribute]:
    found: dict[str, Attribute] = {
        "gen_ai.operation.name": operation,
        "ttft_gateway.replica": attempt.replica,
        "ttft_gateway.role": attempt.role.value,
        "ttft_gateway.reason": attempt.reason,
        "ttft_gateway.outcome": attempt.outcome.value,
        "ttft_gateway.disposition": attempt.charge.disposition.value,
    }
    if event.streaming:
        found["gen_ai.request.stream"] = True
    if known is not None:
        found["gen_ai.provider.name"] = _PROVIDERS.get(known.kind, known.kind)
        found["gen_ai.request.model"] = known.model
        found["server.address"] = known.address
        if known.port is not None:
            found["server.port"] = known.port
    numbers = (
        ("http.response.status_code", attempt.status),
        ("gen_ai.response.time_to_first_chunk", attempt.content_s),
        ("ttft_gateway.time_to_headers", attempt.headers_s),
        ("ttft_gateway.time_to_work", attempt.work_s),
        ("ttft_gateway.predicted_ttft", attempt.predicted_s),
        ("ttft_gateway.hedge_delay", attempt.hedge_after_s),
    )
    found.update((name, number) for name, number in numbers if number is not None)
    if attempt.error is not None:
        found["error.type"] = attempt.error[:_TEXT_CHARS_MAX]
    if attempt.upstream_request_id is not None:
        found["ttft_gateway.upstream_request_id"] = attempt.upstream_request_id[:_TEXT_CHARS_MAX]
    if attempt.usage is not None:
        _add_usage(found, attempt.usage)
    _add_charge(found, attempt.charge)
    return found


def _add_usage(found: dict[str, Attribute], usage: Usage) -> None:
    counts = (
        ("gen_ai.usage.input_tokens", usage.prompt_tokens),
        ("gen_ai.usage.output_tokens", usage.completion_tokens),
        ("gen_ai.usage.cache_read.input_tokens", usage.cached_tokens),
        ("gen_ai.usage.reasoning.output_tokens", usage.reasoning_tokens),
    )
    found.update((name, count) for name, count in counts if count is not None)


def _add_charge(found: dict[str, Attribute], charge: Charge) -> None:
    """Add the bill of an attempt: its cost, and tokens that the replica has not reported."""
    if charge.cost is not None:
        found["ttft_gateway.cost"] = charge.cost
    if charge.estimated:
        found["ttft_gateway.billed.input_tokens"] = charge.prompt_tokens
        found["ttft_gateway.billed.output_tokens"] = charge.completion_tokens


def _ns(unix_s: float) -> int:
    return int(unix_s * 1e9)

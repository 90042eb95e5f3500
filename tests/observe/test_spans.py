"""The spans of a finished request: ids, times, names, and the facts about every attempt."""

import json

import pytest
from msgspec.structs import replace

from gateway.events import RequestEnded
from gateway.observe.spans import ReplicaFacts, Span, rejected_span, spans_of
from gateway.traces import Trace
from sample_events import BACKUP, HEDGED, LOSER, PRIMARY, REJECTED, REQUEST
from ttft_gateway.apis.base import Api
from ttft_gateway.hedging.charges import Billed, Charge, Disposition
from ttft_gateway.hedging.outcomes import Denial, Outcome

TRACE = Trace("0af7651916cd43dd8448eb211c80319c", "00000000000000a0", "b7ad6b7169203331", sampled=True)
FACTS = {
    "a": ReplicaFacts("vllm", "llama-3", "10.0.0.1", 8000),
    "b": ReplicaFacts("azure", "gpt-4o", "/run/b.sock", None),
}
EPOCH_S = 1_000.0


def built(event: RequestEnded, trace: Trace = TRACE) -> list[Span]:
    """Return the spans of a request."""
    return spans_of(event, trace, EPOCH_S, lambda _, replica: FACTS.get(replica))


def test_a_race_has_a_span_for_each_attempt() -> None:
    """The spans of attempts are children of the request's span, which is a child of the caller's."""
    request, loser, winner = built(HEDGED)
    assert {span.trace_id for span in (request, loser, winner)} == {TRACE.trace_id}
    assert (request.span_id, request.parent_id, request.is_remote) == (TRACE.span_id, TRACE.parent_id, True)
    assert [span.span_id for span in (loser, winner)] == ["00000000000000a1", "00000000000000a2"]
    assert {(span.parent_id, span.is_remote) for span in (loser, winner)} == {(TRACE.span_id, False)}
    assert [span.is_server for span in (request, loser, winner)] == [True, False, False]
    assert [span.name for span in (request, loser, winner)] == ["chat llama", "chat llama-3", "chat gpt-4o"]


def test_times_are_those_of_the_record() -> None:
    """A span begins and ends when its request or attempt did; the time in a queue is part of the request's span."""
    request, loser, winner = built(replace(HEDGED, queued_s=0.4))
    arrived_s = EPOCH_S + HEDGED.at_s - HEDGED.total_s
    first_s = arrived_s + 0.4 + HEDGED.gateway_s
    spans = [(arrived_s, EPOCH_S + HEDGED.at_s), (first_s, first_s + 0.3), (first_s + 0.25, first_s + 1.45)]
    found = [(span.start_ns / 1e9, span.end_ns / 1e9) for span in (request, loser, winner)]
    assert found == [pytest.approx(each, abs=1e-6) for each in spans]


def test_the_span_of_a_request() -> None:
    """A request has OpenTelemetry's attributes where they exist, no tokens, and the result of its race."""
    priced = [replace(each, charge=replace(each.charge, cost=cost)) for each, cost in ((LOSER, 0.01), (BACKUP, 0.02))]
    event = replace(HEDGED, attempts=tuple(priced), queued_s=0.4, denials=(Denial.BUDGET,), never_hedged=Denial.OFF)
    assert built(event)[0].attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "llama",
        "gen_ai.request.stream": True,
        "gen_ai.response.model": "gpt-4o",
        "gen_ai.response.time_to_first_chunk": 0.3,
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
        "ttft_gateway.attempts": 2,
        "ttft_gateway.cost": 0.03,
        "ttft_gateway.denials": ("budget",),
        "ttft_gateway.gateway_time": 0.0002,
        "ttft_gateway.key": "team-a",
        "ttft_gateway.never_hedged": "off",
        "ttft_gateway.queue_time": 0.4,
        "ttft_gateway.request_id": "r-1",
        "ttft_gateway.result": "backup_won",
        "ttft_gateway.winner": "b",
    }


def test_the_spans_of_attempts() -> None:
    """An attempt has its provider, server, reported tokens, and the reason for and result of its race."""
    _, loser, winner = built(HEDGED)
    assert winner.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "azure.ai.openai",
        "gen_ai.request.model": "gpt-4o",
        "gen_ai.request.stream": True,
        "gen_ai.response.time_to_first_chunk": 0.05,
        "gen_ai.usage.cache_read.input_tokens": 40,
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 11,
        "gen_ai.usage.reasoning.output_tokens": 5,
        "http.response.status_code": 200,
        "server.address": "/run/b.sock",
        "ttft_gateway.disposition": "winner",
        "ttft_gateway.outcome": "finished",
        "ttft_gateway.predicted_ttft": 0.18,
        "ttft_gateway.reason": "a had no token after 250 ms",
        "ttft_gateway.replica": "b",
        "ttft_gateway.role": "backup",
        "ttft_gateway.time_to_headers": 0.01,
        "ttft_gateway.upstream_request_id": "req-1",
    }
    assert (loser.attributes["server.address"], loser.attributes["server.port"]) == ("10.0.0.1", 8000)
    assert loser.attributes["gen_ai.provider.name"] == "vllm"
    assert loser.attributes["ttft_gateway.disposition"] == "loser"
    assert loser.attributes["ttft_gateway.hedge_delay"] == 0.25
    assert loser.attributes["ttft_gateway.billed.input_tokens"] == 90
    assert "gen_ai.usage.input_tokens" not in loser.attributes
    assert loser.error is None


def test_a_failed_attempt_of_a_request_that_succeeds() -> None:
    """A failure marks the span of its attempt as failed, and not the span of the request."""
    failed = replace(
        LOSER,
        outcome=Outcome.FAILED,
        status=None,
        error="connect",
        charge=Charge(Disposition.FAILED, Billed.NOTHING),
    )
    request, first, second = built(replace(HEDGED, attempts=(failed, BACKUP)))
    assert [span.error for span in (request, first, second)] == [None, "connect", None]
    assert first.attributes["error.type"] == "connect"
    assert "error.type" not in request.attributes


@pytest.mark.parametrize(
    ("status", "error", "failed"),
    [(502, "upstream_cut", True), (429, "rate_limited", False), (499, "client_gone", False)],
)
def test_a_failed_request(status: int, error: str, *, failed: bool) -> None:
    """A status of 500 or more makes the span a failed one; other errors are attributes of it."""
    (request, *_) = built(replace(REQUEST, status=status, error=error, winner=None, ttft_s=None))
    assert request.error == (error if failed else None)
    assert request.attributes["error.type"] == error
    assert request.attributes["http.response.status_code"] == status


def test_a_removed_replica_and_a_request_without_attempts() -> None:
    """A replica that was removed since has no facts; a request that no replica could take has a span of its own."""
    request, attempt = built(replace(REQUEST, attempts=(replace(PRIMARY, replica="gone"),), winner="gone"))
    assert "gen_ai.response.model" not in request.attributes
    assert attempt.name == "chat llama"
    assert "server.address" not in attempt.attributes
    assert len(built(replace(REQUEST, attempts=(), winner=None))) == 1


@pytest.mark.parametrize("api", list(Api))
def test_every_api_has_a_name(api: Api) -> None:
    """The spans of every API have a name, and its path."""
    (request, _) = built(replace(REQUEST, api=api))
    assert request.name.endswith(" llama")
    assert request.attributes["http.route"] == f"/v1/{api.value}"


def test_a_rejected_request_has_one_span() -> None:
    """A request that the gateway rejects has a span that begins with its time in the queue."""
    span = rejected_span(replace(REJECTED, at_s=10.0), replace(TRACE, parent_id=None), EPOCH_S)
    assert (span.name, span.parent_id, span.is_remote, span.error) == ("HTTP", None, False, "overloaded")
    assert (span.start_ns / 1e9, span.end_ns / 1e9) == pytest.approx((1009.3, 1010.0), abs=1e-6)
    assert span.attributes == {
        "error.type": "overloaded",
        "gen_ai.request.model": "llama",
        "http.response.status_code": 503,
        "ttft_gateway.key": "team-a",
        "ttft_gateway.queue_time": 0.7,
        "ttft_gateway.request_id": "r-2",
    }
    early = replace(REJECTED, status=401, code=None, model=None, key_name=None, queued_s=0.0)
    assert rejected_span(early, TRACE, EPOCH_S).error is None


def test_texts_of_upstreams_are_bounded() -> None:
    """Ids and codes that an upstream chose are cut at 200 characters."""
    long = "x" * 5_000
    attempt = replace(PRIMARY, error=long, upstream_request_id=long)
    spans = built(replace(REQUEST, status=502, error=long, attempts=(attempt,)))
    assert len(json.dumps([dict(span.attributes) for span in spans])) < 3_000

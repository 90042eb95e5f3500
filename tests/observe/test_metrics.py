"""Effect of events on metrics, with closed labels."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from prometheus_client import Histogram as ForeignHistogram

from gateway.events import (
    ComponentFailed,
    Event,
    HedgeFired,
    RecoveryKind,
    RecoveryReport,
    RecoveryResult,
    RequestRejected,
    Result,
)
from gateway.observe.instruments import Histogram, Instruments
from gateway.observe.recorder import Recorder
from gateway.observe.usage import UsageTable
from gateway.process_events import AcceptingChanged, ConfigReloaded
from sample_events import (
    BACKUP,
    EVENTS,
    HEDGED,
    LOSER,
    PRIMARY,
    RECOVERED,
    REJECTED,
    REQUEST,
    USAGE,
)
from scrapes import Scrape
from ttft_gateway.apis.base import Api, Usage
from ttft_gateway.hedging.outcomes import Denial, GuardCause, Outcome

CALL = {"gen_ai_operation_name": "chat", "gen_ai_request_model": "llama"}
REPLICA_A = {"gen_ai_request_model": "llama", "replica": "a"}


def test_request_is_tallied() -> None:
    """One request adds its times, its status and its attempt to the series of its model and replica."""
    scrape = Scrape(REQUEST)
    ended = {**CALL, "result": "primary"}
    assert scrape["gen_ai_server_time_to_first_token_seconds_sum", ended] == 0.2
    assert scrape["gen_ai_server_time_to_first_token_seconds_bucket", {**ended, "le": "0.1"}] == 0
    assert scrape["gen_ai_server_time_to_first_token_seconds_bucket", {**ended, "le": "0.25"}] == 1
    assert scrape["gen_ai_server_request_duration_seconds_sum", {**CALL, "error_type": ""}] == 1.2
    assert scrape["gen_ai_server_time_per_output_token_seconds_sum", CALL] == pytest.approx(0.1)
    assert scrape["ttft_gateway_overhead_seconds_sum", {}] == 0.0002
    labels = {**ended, "status_class": "2xx", "error_type": ""}
    assert scrape["ttft_gateway_requests_total", labels] == 1
    assert scrape["ttft_gateway_attempts_total", {**REPLICA_A, "role": "primary", "outcome": "finished"}] == 1
    assert scrape["ttft_gateway_attempt_headers_seconds_sum", REPLICA_A] == 0.01
    assert scrape["ttft_gateway_attempt_content_seconds_sum", REPLICA_A] == 0.2


def test_tokens_are_counted_for_the_replica_that_made_them() -> None:
    """Every attempt's reported usage is counted, a loser's too."""
    scrape = Scrape(REQUEST, replace(HEDGED, attempts=(replace(LOSER, usage=USAGE), BACKUP)))
    usage = "gen_ai_client_inference_usage"
    assert scrape[f"{usage}_input_tokens_total", {**CALL, "replica": "a"}] == 200
    assert scrape[f"{usage}_cache_read_input_tokens_total", {**CALL, "replica": "a"}] == 80
    assert scrape[f"{usage}_output_tokens_total", {**CALL, "replica": "b"}] == 11
    assert scrape[f"{usage}_reasoning_output_tokens_total", {**CALL, "replica": "b"}] == 5


def test_apis_are_apart() -> None:
    """Chat and text completions of one model have their own times, under OpenTelemetry's names for them."""
    scrape = Scrape(REQUEST, replace(REQUEST, api=Api.COMPLETIONS))
    counts = [value for (name, _), value in scrape.samples.items() if name == "ttft_gateway_requests_total"]
    assert counts == [1, 1]
    assert 'gen_ai_operation_name="text_completion"' in scrape.text
    assert scrape["ttft_gateway_attempts_total", {**REPLICA_A, "role": "primary", "outcome": "finished"}] == 2


def test_won_hedge() -> None:
    """A backup that wins counts as fired and won; the loser's attempt and time are wasted."""
    scrape = Scrape(HedgeFired(0.0, "r-1", "llama", "a", "b", 0.25), HEDGED)
    assert scrape["ttft_gateway_hedges_fired_total", {"gen_ai_request_model": "llama", "replica": "a"}] == 1
    assert scrape.named("ttft_gateway_hedges_total") == {"won": 1}
    assert scrape["ttft_gateway_wasted_attempts_total", REPLICA_A] == 1
    assert scrape["ttft_gateway_wasted_seconds_total", REPLICA_A] == 0.3
    assert not scrape.named("ttft_gateway_wasted_completions_total")  # it was cancelled
    assert scrape["gen_ai_server_time_to_first_token_seconds_count", {**CALL, "result": "backup_won"}] == 1


def test_a_loser_that_had_ended() -> None:
    """A complete answer without content that lost is a wasted completion."""
    scrape = Scrape(replace(HEDGED, attempts=(replace(LOSER, empty=True), BACKUP)))
    assert scrape["ttft_gateway_wasted_completions_total", REPLICA_A] == 1
    assert scrape["ttft_gateway_wasted_attempts_total", REPLICA_A] == 1


@pytest.mark.parametrize(
    ("outcome", "winner", "result"),
    [
        (Outcome.FINISHED, "b", "won"),
        (Outcome.CUT, "b", "won"),
        (Outcome.CUT, "a", "won"),
        (Outcome.CUT, None, "won"),
        (Outcome.CLIENT_GONE, "b", "won"),
        (Outcome.LOST, "a", "lost"),
        (Outcome.RATE_LIMITED, "a", "failed"),
        (Outcome.FAILED, None, "failed"),
        (Outcome.CLIENT_GONE, None, "abandoned"),
        (Outcome.DRAINED, None, "abandoned"),
    ],
)
def test_hedge_results(outcome: Outcome, winner: str | None, result: str) -> None:
    """Each backup ends as exactly one of won, lost, failed and abandoned."""
    scrape = Scrape(replace(HEDGED, winner=winner, attempts=(LOSER, replace(BACKUP, outcome=outcome))))
    assert scrape.named("ttft_gateway_hedges_total") == {result: 1}


def test_recoveries() -> None:
    """Each attempt to carry a stream on counts once, by its kind and what came of it."""
    recoveries = (
        RecoveryReport(RecoveryKind.CONTINUE, RecoveryResult.FAILED, "b", 12, 0.1, 40),
        RecoveryReport(RecoveryKind.REPLAY, RecoveryResult.RECOVERED, "b", 12, 0.3, 40),
    )
    scrape = Scrape(replace(REQUEST, recoveries=recoveries))
    labels = {"gen_ai_request_model": "llama"}
    for kind, result in (("continue", "failed"), ("replay", "recovered")):
        assert scrape["ttft_gateway_recoveries_total", {**labels, "kind": kind, "result": result}] == 1


def test_guards() -> None:
    """An attempt beside an open stream counts by its cause and result, and is no recovery of a broken stream."""
    report = RecoveryReport(RecoveryKind.CONTINUE, RecoveryResult.LOST, "b", 12, 0.1, 40, GuardCause.SLOW)
    scrape = Scrape(replace(REQUEST, recoveries=(report,)))
    labels = {"gen_ai_request_model": "llama", "result": "lost"}
    assert scrape["ttft_gateway_guards_total", {**labels, "cause": "slow"}] == 1
    assert scrape.named("ttft_gateway_recoveries_total") == {}


def test_denials_and_malformed_events() -> None:
    """Each reason for which a request was denied a hedge counts once, and so does each malformed event."""
    scrape = Scrape(replace(REQUEST, denials=(Denial.BUDGET, Denial.LOW_GAIN), malformed=3, result=Result.DENIED))
    assert scrape.named("ttft_gateway_hedges_denied_total") == {"budget": 1, "low_gain": 1}
    assert scrape["ttft_gateway_malformed_events_total", {"gen_ai_request_model": "llama"}] == 3


@pytest.mark.parametrize(
    "event",
    [
        replace(REQUEST, ttft_s=None),
        replace(REQUEST, usage=None),
        replace(REQUEST, usage=Usage(completion_tokens=1)),
        replace(REQUEST, error="cut", status=502),
    ],
)
def test_no_time_per_token_without_an_answer_to_divide(event: Event) -> None:
    """Time per token needs a complete answer of two tokens or more."""
    assert Scrape(event)["gen_ai_server_time_per_output_token_seconds_count", CALL] == 0


def test_failed_request() -> None:
    """A failure is counted by its final status and its label."""
    failed = replace(PRIMARY, headers_s=None, content_s=None, outcome=Outcome.FAILED, error="connect", usage=None)
    event = replace(REQUEST, status=502, error="connect", winner=None, ttft_s=None, usage=None, attempts=(failed,))
    scrape = Scrape(event)
    labels = {**CALL, "status_class": "5xx", "error_type": "connect", "result": "primary"}
    assert scrape["ttft_gateway_requests_total", labels] == 1
    assert scrape["gen_ai_server_request_duration_seconds_count", {**CALL, "error_type": "connect"}] == 1
    assert scrape["ttft_gateway_attempt_headers_seconds_count", REPLICA_A] == 0


def test_errors_of_upstreams_do_not_make_labels() -> None:
    """However many codes upstreams invent, there is one series for all that are not in the closed set."""
    events = [replace(REQUEST, status=400, error=f"code-{number}") for number in range(100)]
    scrape = Scrape(*events, replace(REQUEST, status=429, error="rate_limit_exceeded"))
    errors = {dict(labels).get("error_type") for _, labels in scrape.samples} - {None}
    assert errors == {"_OTHER", "rate_limit_exceeded"}


def test_refusals_are_counted_by_code() -> None:
    """A refusal counts under its code, or under the empty code if it has none; codes are bounded."""
    events = [RequestRejected(0.0, "r", None, 404, code) for code in ("model_not_found", "model_not_found", None)]
    assert Scrape(*events).named("ttft_gateway_rejected_requests_total") == {"model_not_found": 2, "": 1}
    flood = [RequestRejected(0.0, "r", None, 400, f"code-{number}") for number in range(1000)]
    counted = Scrape(*flood).named("ttft_gateway_rejected_requests_total")
    assert len(counted) == 65
    assert counted["_OTHER"] == 1000 - 64


def test_every_instrument_is_fed() -> None:
    """Each counter and histogram changes with a sample event; gateway/server/sharing.py counts asks."""
    instruments = Instruments()
    instruments.share_asks.at("ok").value += 1
    instruments.share_ask.at().observe(0.001)
    Recorder(instruments, UsageTable()).on_events(EVENTS)
    unfed = [
        family.name
        for family in instruments.families()
        if not any(value for _, _, value in filter(None, family.lines()))
    ]
    assert not unfed, (
        f"{unfed} never change: feed them in gateway/observe/recorder.py, "
        "or add an event with their fact to EVENTS in tests/support/sample_events.py"
    )


def test_events_counted_together_equal_events_counted_apart() -> None:
    """A reader finds the same numbers in the metrics and in the usage table, however many events waited for it."""
    alike = [replace(REQUEST, ttft_s=ttft_s) for ttft_s in (0.1, None, 0.3)]
    together, apart = Instruments(), Instruments()
    usage, usage_apart = UsageTable(), UsageTable()
    Recorder(together, usage).on_events((*EVENTS, *alike, *EVENTS))
    recorder = Recorder(apart, usage_apart)
    for event in (*EVENTS, *alike, *EVENTS):
        recorder.on_events([event])
        apart.before_read()
    assert _rounded(together) == _rounded(apart)
    assert usage.report().rows == usage_apart.report().rows


def _rounded(instruments: Instruments) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (name, frozenset(labels.items())): round(value, 9)
        for family in instruments.families()
        for name, labels, value in filter(None, family.lines())
    }


@pytest.mark.parametrize(("event", "queued_s"), [(RECOVERED, 0.4), (REJECTED, 0.7)])
def test_time_in_the_queue(event: Event, queued_s: float) -> None:
    """The time in the queue is counted for served and for rejected requests, and only for queued ones."""
    scrape = Scrape(event, REQUEST, RequestRejected(0.0, "r", None, 503, "overloaded", "llama"))
    labels = {"gen_ai_request_model": "llama"}
    assert scrape["ttft_gateway_queue_seconds_sum", labels] == queued_s
    assert scrape["ttft_gateway_queue_seconds_count", labels] == 1


def test_component_failures() -> None:
    """A part that raised is counted under its name."""
    assert Scrape(ComponentFailed(0.0, "plan", "ValueError")).named("ttft_gateway_component_failures_total") == {
        "plan": 1
    }


def test_reloads_and_stops_of_accepting() -> None:
    """A rejected reload, of which SIGHUP shows nothing, is counted, as is the start of a failure to accept."""
    stopped = AcceptingChanged(0.0, "127.0.0.1:8080", accepting=False, error="Too many open files")
    works = AcceptingChanged(9.0, "127.0.0.1:8080", accepting=True)
    good, bad = ConfigReloaded(0.0, 1, 2, 0), ConfigReloaded(0.0, 1, 2, 0, "no")
    scrape = Scrape(good, bad, stopped, works)
    assert scrape.named("ttft_gateway_config_reloads_total") == {"applied": 1, "rejected": 1}
    results = [
        Scrape(*events)["ttft_gateway_config_last_reload_successful", {}] for events in ((), (bad,), (bad, good))
    ]
    assert results == [1, 0, 1]
    assert scrape["ttft_gateway_accept_stops_total", {}] == 1


def test_requests_by_key_are_bounded() -> None:
    """Requests count by key and class of status, rejected ones too; keys above the bound share one name."""
    refused = [RequestRejected(0.0, "r", f"key-{number}", 429, "rate_limit_exceeded") for number in range(1_100)]
    scrape = Scrape(REQUEST, RequestRejected(0.0, "r", None, 401, "invalid_api_key"), *refused)
    counts = {labels: value for (name, labels), value in scrape.samples.items() if "key_requests_total" in name}
    assert counts[frozenset({("key", REQUEST.key_name), ("status_class", "2xx")})] == 1
    assert counts[frozenset({("key", "_OTHER"), ("status_class", "4xx")})] == 101
    assert len(counts) == 1_001


@given(st.lists(st.floats(0, 1e6) | st.sampled_from([0.1, 0.5, 2.5])))
def test_histogram_equals_prometheus_own(values: list[float]) -> None:
    """For any values the lines equal the lines of prometheus_client's histogram."""
    bounds = (0.1, 0.5, 2.5)
    ours, theirs = Histogram(bounds), ForeignHistogram("h", "h", registry=None, buckets=bounds)
    for value in values:
        ours.observe(value)
        theirs.observe(value)
    expected = {(s.name, *s.labels.items()): s.value for metric in theirs.collect() for s in metric.samples}
    expected = {key: value for key, value in expected.items() if key[0] != "h_created"}
    assert {(name, *labels.items()): value for name, labels, value in ours.lines("h", {})} == expected


def test_observed_values_are_not_kept() -> None:
    """Without scrapes, too, a bounded number of events and of a histogram's values is buffered; none is lost."""
    instruments = Instruments()
    recorder = Recorder(instruments, UsageTable())
    for _ in range(2_000):
        recorder.on_events([REQUEST, REJECTED])
        assert len(recorder._waiting) < 256
    (duration,), (queue,) = instruments.duration.all(), instruments.queue.all()
    assert max(len(duration._values), len(queue._values)) < 256
    instruments.before_read()
    assert [value for name, _, value in duration.lines("h", {}) if name == "h_count"] == [2_000]

"""Effect of events on metrics, and the scrape: complete, in slices, with closed labels."""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from prometheus_client import Histogram as ForeignHistogram
from prometheus_client import Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from checkout import DOCS
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
from gateway.hedging.outcomes import Denial, Outcome
from gateway.observe import metrics as metrics_module
from gateway.observe.instruments import Histogram, Instruments
from gateway.observe.metrics import Metrics
from gateway.observe.process import ProcessValues
from gateway.observe.proof import Goal, ProofCounts
from gateway.observe.recorder import Recorder
from gateway.observe.state import DiscoveryState, PoolState, ReplicaState
from gateway.process_events import AcceptingChanged, ConfigReloaded
from gateway.share.asker import AskCounts
from gateway.sharing import share_values
from gateway.workers.group_view import worker_values
from providers.base import Api, Usage
from running import run_virtual
from sample_events import (
    ADMISSION,
    BACKUP,
    EVENTS,
    HEDGED,
    LOSER,
    PRIMARY,
    RECOVERED,
    REJECTED,
    REQUEST,
    USAGE,
    pool,
)

CALL = {"gen_ai_operation_name": "chat", "gen_ai_request_model": "llama"}
REPLICA_A = {"gen_ai_request_model": "llama", "replica": "a"}
DRAINING = PoolState("llama", "llama", "off", True, 0.0, 0.0, (ReplicaState("d", 1, "closed", draining=True),))
FOUND = [DiscoveryState("llama", "llama", "dns vllm:8000", 2, 0.5, "the answer is empty")]


class Scrape:
    """The parsed scrape after these events."""

    def __init__(self, *events: Event, models: Sequence[str] = ()) -> None:
        metrics = Metrics(lambda: map(pool, models))
        for event in events:
            metrics.on_event(event)
        self.text = run_virtual(metrics.render()).decode()
        families = text_string_to_metric_families(self.text)
        self.samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in families
            for sample in family.samples
        }

    def __getitem__(self, key: tuple[str, dict[str, str]]) -> float | None:
        name, labels = key
        return self.samples.get((name, frozenset(labels.items())))

    def named(self, name: str) -> dict[str, float]:
        """The samples of one name, by their last label in alphabetical order."""
        return {max(labels)[1]: value for (found, labels), value in self.samples.items() if found == name}


@dataclass
class Registry:
    families: list[Metric]

    def collect(self) -> list[Metric]:
        return self.families


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
    assert scrape["ttft_gateway_hedges_fired_total", {"gen_ai_request_model": "llama"}] == 1
    assert scrape.named("ttft_gateway_hedges_total") == {"won": 1}
    assert scrape["ttft_gateway_wasted_attempts_total", REPLICA_A] == 1
    assert scrape["ttft_gateway_wasted_seconds_total", REPLICA_A] == 0.3
    assert scrape["gen_ai_server_time_to_first_token_seconds_count", {**CALL, "result": "backup_won"}] == 1


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
    """A refusal counts under its code; without one under the empty code; codes are bounded."""
    events = [RequestRejected(0.0, "r", None, 404, code) for code in ("model_not_found", "model_not_found", None)]
    assert Scrape(*events).named("ttft_gateway_rejected_requests_total") == {"model_not_found": 2, "": 1}
    flood = [RequestRejected(0.0, "r", None, 400, f"code-{number}") for number in range(1000)]
    counted = Scrape(*flood).named("ttft_gateway_rejected_requests_total")
    assert len(counted) == 65
    assert counted["_OTHER"] == 1000 - 64


def test_every_instrument_is_fed() -> None:
    """Each counter and histogram changes with at least one of the sample events."""
    instruments = Instruments()
    recorder = Recorder(instruments)
    for event in EVENTS:
        recorder.on_event(event)
    unfed = [family.name for family in instruments.families() if not any(value for _, _, value in family.lines())]
    assert not unfed, (
        f"{unfed} never change: feed them in gateway/observe/recorder.py, "
        "or add an event with their fact to EVENTS in tests/support/sample_events.py"
    )


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
    scrape = Scrape(ConfigReloaded(0.0, 1, 2, 0), ConfigReloaded(0.0, 1, 2, 0, "no"), stopped, works)
    assert scrape.named("ttft_gateway_config_reloads_total") == {"applied": 1, "rejected": 1}
    assert scrape["ttft_gateway_accept_stops_total", {}] == 1


def test_a_removed_replica_and_its_source() -> None:
    """It is shown as draining, cannot be hedged, and after that its series end; others stay."""
    text = run_virtual(Metrics(lambda: [DRAINING], discovery=lambda: FOUND).render()).decode()
    labels = 'gen_ai_request_model="llama",replica="d"'
    assert f"ttft_gateway_replica_draining{{{labels}}} 1.0" in text
    assert f"ttft_gateway_hedging_possible{{{labels}" not in text
    assert 'ttft_gateway_discovery_up{gen_ai_request_model="llama",pool="llama"} 0.0' in text
    metrics = Metrics(list)
    metrics.on_event(REQUEST)
    metrics.on_event(replace(REQUEST, model="other"))
    metrics.forget("llama", REQUEST.attempts[0].replica)
    assert [metrics_of(metrics, model) for model in ("llama", "other")] == [False, True]
    metrics.on_event(REQUEST)
    assert metrics_of(metrics, "llama")


def metrics_of(metrics: Metrics, model: str) -> bool:
    """Return True if there are attempts of the first replica of a request."""
    lines = (line for line in run_virtual(metrics.render()).decode().splitlines() if "attempts_total{" in line)
    labels = (f'gen_ai_request_model="{model}"', f'replica="{REQUEST.attempts[0].replica}"')
    return any(all(each in line for each in labels) for line in lines)


def test_requests_by_key_are_bounded() -> None:
    """Requests count by key and class of status, rejected ones too; keys above the bound share one name."""
    refused = [RequestRejected(0.0, "r", f"key-{number}", 429, "rate_limit_exceeded") for number in range(1_100)]
    scrape = Scrape(REQUEST, RequestRejected(0.0, "r", None, 401, "invalid_api_key"), *refused)
    counts = {labels: value for (name, labels), value in scrape.samples.items() if "key_requests_total" in name}
    assert counts[frozenset({("key", REQUEST.key_name), ("status_class", "2xx")})] == 1
    assert counts[frozenset({("key", "_OTHER"), ("status_class", "4xx")})] == 101
    assert len(counts) == 1_001


def test_values_of_the_process() -> None:
    """The version, the lost lines and the usual values of a process are in the scrape."""
    values = ProcessValues("1.2.3", lambda: 7)
    text = run_virtual(Metrics(list, process=values).render()).decode()
    assert re.search(r'^ttft_gateway_build_info\{.*version="1.2.3".*\} 1.0$', text, re.MULTILINE)
    assert "\nttft_gateway_log_lines_lost_total 7.0\n" in text
    assert re.search(r"^process_cpu_seconds_total [0-9.]+$", text, re.MULTILINE)
    assert re.search(r"^process_max_fds [0-9.e+]+$", text, re.MULTILINE)


def test_gauges_show_the_current_state() -> None:
    """Gauges are read from the state at scrape time; unknown values of a replica are omitted."""
    scrape = Scrape(models=["llama"])
    assert scrape["ttft_gateway_budget_credits", {"gen_ai_request_model": "llama", "pool": "llama"}] == 2.5
    assert scrape["ttft_gateway_budget_credits_max", {"gen_ai_request_model": "llama", "pool": "llama"}] == 4
    assert scrape["ttft_gateway_hedging_on", {"gen_ai_request_model": "llama", "pool": "llama"}] == 1
    assert scrape.named("ttft_gateway_in_flight") == {"a": 3, "b": 0, "c": 1}
    assert scrape.named("ttft_gateway_breaker_state") == {"a": 0, "b": 1, "c": 2}
    assert scrape.named("ttft_gateway_replica_out") == {"a": 0, "b": 0, "c": 1}
    assert scrape.named("ttft_gateway_suspect") == {"a": 0, "b": 1, "c": 0}
    assert scrape.named("ttft_gateway_hedge_delay_seconds") == {"a": 0.25}
    possible = [line for line in scrape.text.splitlines() if line.startswith("ttft_gateway_hedging_possible{")]
    assert possible == [
        f'ttft_gateway_hedging_possible{{gen_ai_request_model="llama",reason="{reason}",replica="{name}"}} {value}'
        for name, reason, value in (("a", "", 1.0), ("b", "billed", 0.0), ("c", "", 1.0))
    ]


def test_a_shared_quota_is_shown_once() -> None:
    """A quota shared by pools has one series per resource, of the limit with the least left, and a cool-down."""
    text = Scrape(models=["llama", "other"]).text
    assert [line for line in text.splitlines() if line.startswith("ttft_gateway_quota")] == [
        'ttft_gateway_quota_left_share{quota="main",resource="tokens"} 0.1',
        'ttft_gateway_quota_left_share{quota="main",resource="requests"} 0.0',
        'ttft_gateway_quota_cooling_seconds{quota="main"} 1.5',
    ]


@given(st.lists(st.floats(0, 1e6) | st.sampled_from([0.1, 0.5, 2.5])))
def test_histogram_equals_prometheus_own(values: list[float]) -> None:
    """For any values the lines are those of prometheus_client's histogram."""
    bounds = (0.1, 0.5, 2.5)
    ours, theirs = Histogram(bounds), ForeignHistogram("h", "h", registry=None, buckets=bounds)
    for value in values:
        ours.observe(value)
        theirs.observe(value)
    expected = {(s.name, *s.labels.items()): s.value for metric in theirs.collect() for s in metric.samples}
    expected = {key: value for key, value in expected.items() if key[0] != "h_created"}
    assert {(name, *labels.items()): value for name, labels, value in ours.lines("h", {})} == expected


def test_observed_values_are_not_kept() -> None:
    """Without scrapes, too, a histogram keeps a bounded number of values; none is lost."""
    instruments = Instruments()
    recorder = Recorder(instruments)
    for _ in range(2_000):
        recorder.on_event(REQUEST)
        recorder.on_event(REJECTED)
    (duration,), (queue,) = instruments.duration.all(), instruments.queue.all()
    assert max(len(duration._values), len(queue._values)) < 512
    assert [value for name, _, value in duration.lines("h", {}) if name == "h_count"] == [2_000]


def busy_metrics() -> Metrics:
    """50 models with three replicas each, all of them used."""
    models = [f"model-{number}" for number in range(50)]
    metrics = Metrics(lambda: map(pool, models))
    for model in models:
        for replica in "abc":
            metrics.on_event(replace(REQUEST, model=model, attempts=(replace(PRIMARY, replica=replica),)))
    return metrics


def test_slices_make_the_whole() -> None:
    """The text made in slices is byte for byte what generate_latest writes of the same families at once."""
    metrics = busy_metrics()
    families: dict[str, Metric] = {}
    for piece in metrics_module._slices(run_virtual(metrics.scrape())):
        whole = families.setdefault(piece.name, Metric(piece.name, piece.documentation, piece.type))
        whole.samples += piece.samples
    text = run_virtual(metrics.render())
    assert text == generate_latest(Registry(list(families.values())))
    assert text.count(b"\n") > 5000


def test_every_slice_is_short() -> None:
    """No more than a slice is written between two turns of the loop."""
    metrics = busy_metrics()
    pieces = list(metrics_module._slices(run_virtual(metrics.scrape())))
    assert max(len(piece.samples) for piece in pieces) == metrics_module._SLICE_LINES

    async def turns_of_a_scrape() -> int:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as tasks:
            counting = tasks.create_task(count())
            await metrics.render()
            counting.cancel()
        return turns

    assert run_virtual(turns_of_a_scrape()) >= len(pieces)


def test_series_made_during_a_scrape_wait_for_the_next() -> None:
    """Traffic on new models while a scrape is being written neither breaks it nor splits a family."""
    metrics = busy_metrics()

    async def scrape_under_traffic() -> str:
        async def traffic() -> None:
            for number in range(100):
                metrics.on_event(replace(REQUEST, model=f"new-{number}"))
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(traffic())
            return (await metrics.render()).decode()

    text = run_virtual(scrape_under_traffic())
    assert len(re.findall("^# TYPE ", text, re.MULTILINE)) == len(list(text_string_to_metric_families(text)))


def test_every_metric_is_documented() -> None:
    """docs/metrics.md has a heading for each metric, with its type and labels, and none for what does not exist."""
    docs = (DOCS / "metrics.md").read_text(encoding="utf-8")
    documented = {
        name: (kind.lower(), set(re.findall(r"`(\w+)`", labels)))
        for name, kind, labels in re.findall(r"^### `(\w+)`\n\n(\w+)\. (.*)$", docs, re.MULTILINE)
    }
    exported = {
        family.name + ("_total" if family.kind == "counter" else ""): (family.kind, set(family._labels))
        for family in Instruments().families()
    }
    proof = ProofCounts(lambda _: None)
    proof.goals = {REQUEST.model: Goal(2.0, 10.0)}
    proof.on_event(REQUEST)
    shared = share_values(AskCounts(), is_up=True, heads=2)
    values = [*ProcessValues("1.2.3", lambda: 7)(), *worker_values({1: 12}, 1), *shared, *proof.values()]
    metrics = Metrics(lambda: [pool("llama"), DRAINING], lambda: ADMISSION, lambda: values, lambda: FOUND)
    for piece in metrics_module._slices(run_virtual(metrics.scrape())):
        if piece.samples:
            name = piece.name + ("_total" if piece.type == "counter" else "")
            exported.setdefault(name, (piece.type, set(piece.samples[0].labels)))
    assert documented == exported

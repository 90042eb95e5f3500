"""The text of a scrape: complete, in slices, with the state of the moment."""

import asyncio
import re
from dataclasses import dataclass

from msgspec.structs import replace
from prometheus_client import Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from checkout import DOCS
from gateway.health.finding import HealthState, Severity, Trouble, Verdict
from gateway.health.verdict import values as verdict_values
from gateway.observe import exposition
from gateway.observe.dropped import DroppedState
from gateway.observe.instruments import Instruments
from gateway.observe.metrics import Metrics
from gateway.observe.process import ProcessValues
from gateway.observe.proof import Goal, ProofCounts
from gateway.observe.span_queue import SpanCounts
from gateway.observe.state import DiscoveryState, PoolState, ReplicaState
from gateway.server.credentials.keepers import token_values
from gateway.server.key_watch import key_values
from gateway.server.learned_file import file_values
from gateway.server.sharing import share_values
from gateway.workers.group_view import worker_values
from running import run_virtual
from sample_events import ADMISSION, PRIMARY, REQUEST, pool
from scrapes import Scrape, rendered, text_of

DRAINING = PoolState("llama", "llama", "off", True, 0.0, 0.0, (ReplicaState("d", 1, "closed", draining=True),))
FOUND = [DiscoveryState("llama", "llama", "dns vllm:8000", 2, 0.5, "the answer is empty")]
LABELS = ("gen_ai_request_model", "replica", "pool", "quota", "resource", "key", "component", "source")
TROUBLE = Trouble("TtftReplicaSlow", Severity.TICKET, "slow", 15.0, 0.0, dict.fromkeys(LABELS, "a"), "docs", "")


@dataclass
class Registry:
    families: list[Metric]

    def collect(self) -> list[Metric]:
        return self.families


def test_a_removed_replica_and_its_source() -> None:
    """It is shown as draining, cannot be hedged, and after that its series end; others stay."""
    text = text_of(Metrics(lambda: [DRAINING], discovery=lambda: FOUND))
    labels = 'gen_ai_request_model="llama",replica="d"'
    assert f"ttft_gateway_replica_draining{{{labels}}} 1.0" in text
    assert f"ttft_gateway_hedging_possible{{{labels}" not in text
    assert 'ttft_gateway_discovery_up{gen_ai_request_model="llama",pool="llama"} 0.0' in text
    metrics = Metrics(list)
    metrics.on_events([REQUEST])
    metrics.on_events([replace(REQUEST, model="other")])
    metrics.forget("llama", REQUEST.attempts[0].replica)
    assert [metrics_of(metrics, model) for model in ("llama", "other")] == [False, True]
    metrics.on_events([REQUEST])
    assert metrics_of(metrics, "llama")


def metrics_of(metrics: Metrics, model: str) -> bool:
    """Return True if there are attempts of the first replica of a request."""
    lines = (line for line in text_of(metrics).splitlines() if "attempts_total{" in line)
    labels = (f'gen_ai_request_model="{model}"', f'replica="{REQUEST.attempts[0].replica}"')
    return any(all(each in line for each in labels) for line in lines)


def test_values_of_the_process() -> None:
    """The version, the lost lines and the usual values of a process are in the scrape."""
    values = ProcessValues("1.2.3", lambda: 7)
    text = text_of(Metrics(list, process=values))
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
    assert scrape.named("ttft_gateway_replica_level") == {"a": 1, "b": 7.5, "c": 1}
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
        'ttft_gateway_quota_others_seconds{quota="main",resource="tokens"} 4.5',
        'ttft_gateway_quota_cooling_seconds{quota="main"} 1.5',
    ]


def busy_metrics() -> Metrics:
    """50 models with three replicas each, all of them used."""
    models = [f"model-{number}" for number in range(50)]
    metrics = Metrics(lambda: map(pool, models))
    for model in models:
        for replica in "abc":
            metrics.on_events([replace(REQUEST, model=model, attempts=(replace(PRIMARY, replica=replica),))])
    return metrics


def test_slices_make_the_whole() -> None:
    """The text made in slices is byte for byte what generate_latest writes of the same families in one piece."""
    metrics = busy_metrics()
    families: dict[str, Metric] = {}
    for piece in exposition._slices(run_virtual(metrics.scrape())):
        whole = families.setdefault(piece.name, Metric(piece.name, piece.documentation, piece.type))
        whole.samples += piece.samples
    text = run_virtual(rendered(run_virtual(metrics.scrape())))
    assert text == generate_latest(Registry(list(families.values())))
    assert text.count(b"\n") > 5000


def test_every_slice_is_short() -> None:
    """No more than a slice is written between two turns of the loop."""
    metrics = busy_metrics()
    pieces = list(exposition._slices(run_virtual(metrics.scrape())))
    assert max(len(piece.samples) for piece in pieces) == exposition._SLICE_LINES

    async def turns_of_a_scrape() -> int:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as tasks:
            counting = tasks.create_task(count())
            await rendered(await metrics.scrape())
            counting.cancel()
        return turns

    assert run_virtual(turns_of_a_scrape()) >= len(pieces)


def test_series_made_during_a_scrape_wait_for_the_next() -> None:
    """Traffic on new models while a scrape is being written neither breaks it nor splits a family."""
    metrics = busy_metrics()

    async def scrape_under_traffic() -> str:
        async def traffic() -> None:
            for number in range(100):
                metrics.on_events([replace(REQUEST, model=f"new-{number}")])
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(traffic())
            return (await rendered(await metrics.scrape())).decode()

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
        family.name + ("_total" if family.kind == "counter" else ""): (family.kind, set(family.labels))
        for family in Instruments().families()
    }
    proof = ProofCounts(lambda _: None)
    proof.goals = {REQUEST.model: Goal(2.0, 10.0)}
    proof.on_event(REQUEST)
    shared = share_values(is_up=True, processes=2, owed=0.25)
    values = [
        *ProcessValues("1.2.3", lambda: 7)(),
        *worker_values({1: 12}, 1),
        *shared,
        *proof.values(),
        *file_values(None),
        *token_values("google", 1800.0, None),
        *SpanCounts().values(),
        *DroppedState(lambda _: None, lambda: 0.0).values(),
        *key_values(up=True, count=1),
        *verdict_values(Verdict(HealthState.DEGRADED, 0.0, 0.0, "slow", [TROUBLE])),
    ]
    metrics = Metrics(lambda: [pool("llama"), DRAINING], lambda: ADMISSION, lambda: values, lambda: FOUND)
    for piece in exposition._slices(run_virtual(metrics.scrape())):
        if piece.samples:
            name = piece.name + ("_total" if piece.type == "counter" else "")
            exported.setdefault(name, (piece.type, set(piece.samples[0].labels)))
    assert documented == exported


def test_states_and_series_without_a_sample_are_read_in_slices_too() -> None:
    """A gauge that no replica has, or a counter at 0, is read in slices of the replicas."""
    states = tuple(ReplicaState(f"r{number}", 0, "closed") for number in range(1000))
    metrics = Metrics(lambda: [PoolState("llama", "llama", "off", True, 0.0, 0.0, states)])
    for state in states:
        metrics.instruments.hedges_fired.at("llama", state.replica)
    pieces = [piece.name for piece in exposition._slices(run_virtual(metrics.scrape()))]
    assert pieces.count("ttft_gateway_replica_draining") >= 5
    assert pieces.count("ttft_gateway_hedges_fired") >= 5

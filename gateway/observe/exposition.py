"""Renders the values of a scrape as Prometheus text.

The only importer of prometheus_client, which formats the text. Formatting takes 7 us a line, so it is done in slices
with an iteration of the event loop between them; a slice is too short to delay a stream visibly.

Units: seconds; the help text of a gauge names its unit.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import TypeAlias, TypeVar

import msgspec
from prometheus_client import Metric, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from gateway.observe.instruments import MODEL, REPLICA, Line
from gateway.observe.metrics import Scrape
from gateway.observe.state import (
    DiscoveryState,
    ModelAdmission,
    PoolState,
    ReplicaState,
    distinct_quotas,
    shares_left,
    usage_by_others,
)

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

_SLICE_LINES = 48  # about 1 ms
_PART_SLICES = 8  # 40 kB
_SLICE_SERIES = 192  # without a line, the same

_IN_FLIGHT = "ttft_gateway_in_flight"
_POSSIBLE = "ttft_gateway_hedging_possible"
_LEFT = "ttft_gateway_quota_left_share"
_COOLING = "ttft_gateway_quota_cooling_seconds"
_OTHERS = "ttft_gateway_quota_others_seconds"
_BREAKER_LEVELS = {"closed": 0.0, "half_open": 1.0, "open": 2.0}

_T = TypeVar("_T")

Gauge: TypeAlias = tuple[str, str, Callable[[_T], float | None]]
"""Name, help text, and a function that returns the value of a state; None for no sample."""

_POOL_GAUGES: tuple[Gauge[PoolState], ...] = (
    ("ttft_gateway_hedging_on", "1 if the switches allow hedging", lambda pool: float(pool.hedging_on)),
    ("ttft_gateway_budget_credits", "Hedges that the budget allows now", lambda pool: pool.budget_level),
    ("ttft_gateway_budget_credits_max", "Maximum credits of the budget", lambda pool: pool.budget_cap),
)
_REPLICA_GAUGES: tuple[Gauge[ReplicaState], ...] = (
    (
        "ttft_gateway_breaker_state",
        "Breaker: 0 closed, 1 half open, 2 open",
        lambda replica: _BREAKER_LEVELS[replica.breaker],
    ),
    ("ttft_gateway_replica_out", "1 while the replica is taken out", lambda replica: float(replica.out)),
    (
        "ttft_gateway_replica_draining",
        "1 while a removed replica completes its requests, and for 5 minutes",
        lambda replica: 1.0 if replica.draining else None,
    ),
    (
        "ttft_gateway_suspect",
        "1 if the replica has stopped answering or is very slow",
        lambda replica: float(replica.suspect),
    ),
    (
        "ttft_gateway_replica_level",
        "Slowness of the replica, as a factor of the predicted TTFT",
        lambda replica: None if replica.draining else replica.level,
    ),
    (
        "ttft_gateway_replica_token_gap_seconds",
        "Usual time between two tokens of an answer",
        lambda replica: replica.token_gap_s,
    ),
    (
        "ttft_gateway_replica_answer_slowness",
        "Slowness of the replica's answers after their first token, as a factor of the pool's",
        lambda replica: None if replica.draining else replica.answer_slowness,
    ),
    (
        "ttft_gateway_hedge_delay_seconds",
        "Time without content before a hedge is considered",
        lambda replica: replica.hedge_delay_s,
    ),
)
_DISCOVERY_GAUGES: tuple[Gauge[DiscoveryState], ...] = (
    (
        "ttft_gateway_discovery_up",
        "1 if the last answer of the source is in use",
        lambda source: float(source.fault is None),
    ),
    ("ttft_gateway_discovered_replicas", "Replicas in use from the source", lambda source: source.replicas),
)
_MODEL_GAUGES: tuple[Gauge[ModelAdmission], ...] = (
    ("ttft_gateway_admitted", "Requests under way, for models with a concurrency limit", lambda model: model.in_flight),
    ("ttft_gateway_queue_length", "Requests in the model's queue", lambda model: model.waiting),
)


async def parts(scrape: Scrape) -> AsyncIterator[bytes]:
    """Yield all metrics as text of content type `CONTENT_TYPE`, in parts that are short enough to be sent at once.

    The scrape is discarded at the end.
    """
    name, header_bytes = "", 0
    chunks: list[bytes] = []
    for metric in _slices(scrape):
        text = generate_latest(_SingleMetric(metric))
        if metric.name == name:  # another slice of the same metric: its header is already written
            text = text[header_bytes:]
        else:
            name = metric.name
            header_bytes = len(generate_latest(_SingleMetric(Metric(name, metric.documentation, metric.type))))
        chunks.append(text)
        if len(chunks) >= _PART_SLICES:
            yield b"".join(chunks)
            chunks.clear()
        await asyncio.sleep(0)
    yield b"".join(chunks)
    await scrape.discard()


def _slices(scrape: Scrape) -> Iterator[Metric]:
    """Yield every metric in slices; the slices of one metric follow each other."""
    pools, admission = scrape.pools, scrape.admission
    for family in scrape.instruments.families():
        yield from _sliced(family.name, family.text, family.kind, family.lines())
    yield from _gauges(_POOL_GAUGES, lambda: (({MODEL: pool.model, "pool": pool.pool}, pool) for pool in pools))
    yield from _sliced(_IN_FLIGHT, "Attempts under way", "gauge", _in_flight_lines(scrape))
    yield from _gauges(_REPLICA_GAUGES, lambda: _by_replica(pools))
    yield from _sliced(_POSSIBLE, "1 if requests sent to the replica can be hedged", "gauge", _possible_lines(pools))
    yield from _sliced(_LEFT, "Remaining share of a rate limit", "gauge", _resource_lines(_LEFT, shares_left(pools)))
    others = _resource_lines(_OTHERS, usage_by_others(pools))
    yield from _sliced(_OTHERS, "Usage by others, in seconds of the limit's refill", "gauge", others)
    yield from _sliced(_COOLING, "Time until a quota may be used again", "gauge", _cooling_lines(pools))
    sources = [({MODEL: each.model, "pool": each.pool}, each) for each in scrape.discovery]
    yield from _gauges(_DISCOVERY_GAUGES, lambda: sources)
    yield from _gauges(_MODEL_GAUGES, lambda: (({MODEL: each.model}, each) for each in admission.models))
    name = "ttft_gateway_request_body_bytes"
    yield from _sliced(
        name, "Bytes of buffered request bodies", "gauge", iter([(name, {}, float(admission.body_bytes))])
    )
    for name, text, kind, value, labels in scrape.process:
        sample = f"{name}_total" if kind == "counter" else name
        yield from _sliced(name, text, kind, iter([(sample, dict(labels), float(value))]))


def _gauges(gauges: Sequence[Gauge[_T]], states: Callable[[], Iterable[tuple[dict[str, str], _T]]]) -> Iterator[Metric]:
    """Yield gauges; `states` returns the states with their labels, and is called for each gauge."""
    for name, text, read in gauges:
        values = ((labels, read(state)) for labels, state in states())
        lines = (None if value is None else (name, labels, value) for labels, value in values)
        yield from _sliced(name, text, "gauge", lines)


def _by_replica(pools: Iterable[PoolState]) -> Iterator[tuple[dict[str, str], ReplicaState]]:
    """Yield every replica with its labels; a list of them would take milliseconds."""
    return (({MODEL: pool.model, REPLICA: each.replica}, each) for pool in pools for each in pool.replicas)


def _in_flight_lines(scrape: Scrape) -> Iterator[Line]:
    for labels, each in _by_replica(scrape.pools):
        yield _IN_FLIGHT, labels, float(each.in_flight)
    for (model, name), count in scrape.others_in_flight.items():
        yield _IN_FLIGHT, {MODEL: model, REPLICA: name}, count


def _possible_lines(pools: Sequence[PoolState]) -> Iterator[Line]:
    for pool in pools:
        for replica in (each for each in pool.replicas if not each.draining):
            labels = {MODEL: pool.model, REPLICA: replica.replica, "reason": replica.never_hedged or ""}
            yield _POSSIBLE, labels, float(replica.never_hedged is None)


def _sliced(name: str, text: str, kind: str, lines: Iterator[Line | None]) -> Iterator[Metric]:
    """Yield the lines in slices; at least one, so that a metric without series shows its name and help text."""
    metric, series = Metric(name, text, kind), 0
    for line in lines:
        if line is None:
            series += 1
        else:
            metric.add_sample(*line)
        if len(metric.samples) >= _SLICE_LINES or series >= _SLICE_SERIES:
            yield metric
            metric, series = Metric(name, text, kind), 0
    yield metric


class _SingleMetric(msgspec.Struct, frozen=True):
    """One metric, with the interface of a registry that prometheus_client expects."""

    metric: Metric

    def collect(self) -> list[Metric]:
        return [self.metric]


def _resource_lines(name: str, values: Iterable[tuple[str, str, float]]) -> Iterator[Line]:
    """Yield a value of each quota's resource."""
    for quota, resource, value in values:
        yield name, {"quota": quota, "resource": resource}, value


def _cooling_lines(pools: Iterable[PoolState]) -> Iterator[Line]:
    """Yield the remaining cool-down of each quota."""
    for quota in distinct_quotas(pools):
        yield _COOLING, {"quota": quota.quota}, quota.cooling_s

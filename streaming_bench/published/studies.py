"""The tables of races that the documents publish, run again in virtual time: microservice, streaming, three servers.

Every row is a policy on a workload's own draws, with the gateway's own race; `adaptive, as published` is the reference
library by its published rules (policies.py). Units: milliseconds in figures, seconds inside.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gateway.routing.strategies import Routing
from streaming_bench.progress import Progress
from streaming_bench.published import sources
from streaming_bench.published.side_by_side import ReproducedRow
from streaming_bench.published.sources import PublishedFigures
from streaming_bench.simulation.comparison import ComparisonPlan, SeedSamples
from streaming_bench.simulation.policies import UNLIMITED_BUDGET
from streaming_bench.simulation.runner import SimulatedRun
from streaming_bench.simulation.sampled_replicas import TtftDraws
from streaming_bench.simulation.scenario import Scenario, load, with_requests

Values = NDArray[np.float64]

_QUANTILES: Final = {"p50": 0.5, "p80": 0.8, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999, "p100": 1.0}
_MICRO: Final = ("p50", "p90", "p95", "p99", "p999")
_STREAM: Final = ("p50", "p80", "p90", "p95", "p99")
_STUDY: Final = ("mean", "p95", "p99", "p100")
_FAN_OUT_S: Final = 0.020


@dataclass(frozen=True, slots=True)
class StudyRow:
    """A row that is run.

    Attributes:
        name: as in `published`, or of a row that is only here.
        policy: in `policies.POLICY_NAMES`.
        plan: on what terms.
        read: the latencies that the row is about, in seconds.
    """

    name: str
    policy: str
    plan: ComparisonPlan
    read: Callable[[SimulatedRun], Values]


@dataclass(frozen=True, slots=True)
class Study:
    """A published table and how it is run again."""

    workload: str
    keys: Sequence[str]
    rows: Sequence[StudyRow]
    published: Mapping[str, Mapping[str, PublishedFigures]]


def ttfts_s(run: SimulatedRun) -> Values:
    """Time to first token of every request."""
    return np.array([record.ttft_s for record in run.records])


def without_delay_s(run: SimulatedRun) -> Values:
    """The same with the delay left out where a request was hedged: how the study must have counted."""
    return np.array([record.ttft_s - (_FAN_OUT_S if record.hedges else 0.0) for record in run.records])


_FREE: Final = ComparisonPlan((), (), budget=UNLIMITED_BUDGET)  # nothing binds static delays, as in the documents
_TENTH: Final = replace(_FREE, budget=0.10)
_FIFTH: Final = replace(_FREE, budget=0.20)
_FREE_HELD: Final = replace(_FREE, held=True)
_FIFTH_HELD: Final = replace(_FIFTH, held=True)
_FREE_IN_TURN: Final = replace(_FREE, routing=Routing.ROUND_ROBIN)

MICROSERVICE: Final = Study(
    "W1",
    _MICRO,
    (
        StudyRow("no hedging", "off", _FREE, ttfts_s),
        StudyRow("static 10 ms", "static", replace(_FREE, static_delay_s=0.010), ttfts_s),
        StudyRow("static 50 ms", "static", replace(_FREE, static_delay_s=0.050), ttfts_s),
        StudyRow("adaptive, as published", "library", _TENTH, ttfts_s),
        StudyRow("adaptive, this gateway's", "adaptive", _TENTH, ttfts_s),
        StudyRow("adaptive, this gateway's, 2 hedges", "adaptive", replace(_TENTH, max_hedges=2), ttfts_s),
    ),
    sources.MICROSERVICE,
)
HELD: Final = Study(
    "W2",
    _STREAM,
    (
        StudyRow("no hedging", "off", _FREE_HELD, ttfts_s),
        StudyRow("learned from headers: 1 ms", "static", replace(_FREE_HELD, static_delay_s=0.001), ttfts_s),
        StudyRow("learned from TTFT: p80, 47 ms", "static", replace(_FREE_HELD, static_delay_s=0.047), ttfts_s),
        StudyRow(
            "p80, as the library learns it", "library", replace(_FIFTH_HELD, quantile=0.8, library_rps=500), ttfts_s
        ),
        StudyRow("adaptive, this gateway's", "adaptive", _FIFTH_HELD, ttfts_s),
    ),
    sources.STREAMING_HELD,
)
FLUSHED: Final = Study(
    "W2",
    _STREAM,
    (
        StudyRow("time to first token", "off", _FREE, ttfts_s),
        StudyRow("learned from headers, raced on tokens", "ttfb", _FREE, ttfts_s),
        StudyRow("library: raced at headers", "library", replace(_FIFTH, quantile=0.8), ttfts_s),
        StudyRow("adaptive, this gateway's", "adaptive", _FIFTH, ttfts_s),
    ),
    sources.STREAMING_FLUSHED,
)
THREE_SERVERS: Final = Study(
    "W3",
    _STUDY,
    (
        StudyRow("round robin", "off", _FREE_IN_TURN, ttfts_s),
        StudyRow("20 ms to all others", "fan_out", _FREE_IN_TURN, ttfts_s),
        StudyRow("the same, the delay left out", "fan_out", _FREE_IN_TURN, without_delay_s),
        StudyRow("adaptive, this gateway's", "adaptive", replace(_FREE_IN_TURN, budget=0.10), ttfts_s),
    ),
    sources.THREE_SERVERS,
)


def reproduce(study: Study, seeds: Sequence[int], requests: int | None, tell: Progress) -> list[ReproducedRow]:
    """Run a study's rows.

    Args:
        study: what is published.
        seeds: one run of each row for each; figures are their means.
        requests: instead of the workload's number.
        tell: hears how far it is.
    """
    scenario = load(study.workload)
    if requests is not None:
        scenario = with_requests(scenario, requests)
    found: list[ReproducedRow] = []
    for number, row in enumerate(study.rows):
        figures = []
        for turn, seed in enumerate(seeds):
            begun = number * len(seeds) + turn
            figures.append(
                _figures(study, scenario, row, seed, _progress(tell, row.name, begun, study, seeds, scenario))
            )
        keys = figures[0].keys()
        here = {key: float(np.mean([one[key] for one in figures])) for key in keys}
        by = {key: (min(one[key] for one in figures), max(one[key] for one in figures)) for key in keys}
        by = {key: span for key, span in by.items() if key != "extra" and span[1] > 1.05 * span[0]}
        found.append(ReproducedRow(row.name, here, _published(study, row.name), by))
    tell("done", 1.0)
    return found


def header_times(seeds: Sequence[int]) -> ReproducedRow:
    """When the streaming workload's headers come if they are flushed: the signal that means nothing."""
    scenario = load("W2")
    figures = []
    for seed in seeds:
        draws = SeedSamples(with_requests(scenario, 10_000), _FREE, seed).draws
        assert isinstance(draws, TtftDraws)
        headers = draws.headers_s
        assert headers is not None
        figures.append({key: 1000 * float(np.quantile(headers, _QUANTILES[key])) for key in _STREAM})
    here = {key: float(np.mean([one[key] for one in figures])) for key in _STREAM}
    return ReproducedRow("time to headers", here, sources.STREAMING_FLUSHED["time to headers"], {})


def _published(study: Study, name: str) -> Mapping[str, PublishedFigures]:
    """What is published for a row; one with the delay left out is held against the row that it explains."""
    if name == "the same, the delay left out":
        name = "20 ms to all others"
    return study.published.get(name, {})


def _figures(
    study: Study, scenario: Scenario, row: StudyRow, seed: int, tell: Callable[[int], None]
) -> dict[str, float]:
    run = SeedSamples(scenario, row.plan, seed).run(row.policy, tell)
    times_ms = 1000 * row.read(run)
    figures = {key: float(np.quantile(times_ms, _QUANTILES[key])) for key in study.keys if key in _QUANTILES}
    if "mean" in study.keys:
        figures["mean"] = float(times_ms.mean())
    figures["extra"] = sum(record.hedges for record in run.records) / len(run.records)
    return figures


def _progress(
    tell: Progress, what: str, begun: int, study: Study, seeds: Sequence[int], scenario: Scenario
) -> Callable[[int], None]:
    runs = len(study.rows) * len(seeds)
    return lambda done: tell(what, min(0.999, (begun + done / scenario.requests) / runs))

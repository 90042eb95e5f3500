"""Published tables of races, run again in virtual time: microservice, streaming, three servers.

Every row is a policy on a workload's own draws, through the gateway's own race; `adaptive, as published` is the
reference library by its published rules (policies.py). Units: milliseconds in figures, seconds inside.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from gateway.routing.strategies import Routing
from streaming_bench.progress import Progress, of_run
from streaming_bench.published import sources
from streaming_bench.published.side_by_side import ReproducedRow
from streaming_bench.published.sources import PublishedFigures
from streaming_bench.simulation.bounds import Values
from streaming_bench.simulation.comparison import ComparisonPlan, SeedSamples
from streaming_bench.simulation.policies import UNLIMITED_BUDGET
from streaming_bench.simulation.runner import SimulatedRun
from streaming_bench.simulation.sampled_replicas import TtftDraws
from streaming_bench.simulation.scenario import load, with_requests

_QUANTILES: Final = {"p50": 0.5, "p80": 0.8, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999, "p100": 1.0}
_MICRO: Final = ("p50", "p90", "p95", "p99", "p999")
_STREAM: Final = ("p50", "p80", "p90", "p95", "p99")
_STUDY: Final = ("mean", "p95", "p99", "p100")
_FAN_OUT_S: Final = 0.020


@dataclass(frozen=True, slots=True)
class StudyRow:
    """One row to run.

    Attributes:
        name: name of the published row, or of a row that exists only here.
        policy: one of `policies.POLICY_NAMES`.
        plan: settings of the policy.
        read: reads the row's latencies in seconds from a run.
    """

    name: str
    policy: str
    plan: ComparisonPlan
    read: Callable[[SimulatedRun], Values]


@dataclass(frozen=True, slots=True)
class Study:
    """A published table and the runs that reproduce it."""

    workload: str
    keys: Sequence[str]
    rows: Sequence[StudyRow]
    published: Mapping[str, Mapping[str, PublishedFigures]]


def ttfts_s(run: SimulatedRun) -> Values:
    """Return the time to the first token of every request."""
    return run.columns["ttft_s"]


def without_delay_s(run: SimulatedRun) -> Values:
    """Return the same times without the delay of hedged requests, as the study must have counted."""
    return run.columns["ttft_s"] - _FAN_OUT_S * (run.columns["hedges"] > 0)


_REQUESTS_PER_MINUTE: Final = 300_000  # simulated on one core at about 3 GHz
_FREE: Final = ComparisonPlan((), (), budget=UNLIMITED_BUDGET)  # no budget, as in the publications
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
        StudyRow("the same, without the delay", "fan_out", _FREE_IN_TURN, without_delay_s),
        StudyRow("adaptive, this gateway's", "adaptive", replace(_FREE_IN_TURN, budget=0.10), ttfts_s),
    ),
    sources.THREE_SERVERS,
)


def duration(study: Study, seeds: int, requests: int | None) -> str:
    """Return the number of runs and their duration."""
    each, runs = requests or load(study.workload).requests, len(study.rows) * seeds
    minutes = runs * each / _REQUESTS_PER_MINUTE
    about = f"about {math.ceil(minutes)} minutes" if minutes > 1 else "less than a minute"
    return f"{runs} runs of {each:,} requests, {about} on an idle core"


def reproduce(study: Study, seeds: Sequence[int], requests: int | None, progress: Progress) -> list[ReproducedRow]:
    """Run the rows of a study.

    Args:
        seeds: one run of each row for each seed; the figures are means over them.
        requests: number of requests; None for the workload's.
        progress: called with the current row and the share done.
    """
    scenario = load(study.workload)
    if requests is not None:
        scenario = with_requests(scenario, requests)
    runs = len(study.rows) * len(seeds)
    found: list[ReproducedRow] = []
    for number, row in enumerate(study.rows):
        figures = []
        for turn, seed in enumerate(seeds):
            index = number * len(seeds) + turn
            run = SeedSamples(scenario, row.plan, seed).run(
                row.policy, of_run(progress, row.name, index, runs, scenario.requests)
            )
            figures.append(_figures(run, row, study.keys))
        spans = {key: (min(one[key] for one in figures), max(one[key] for one in figures)) for key in figures[0]}
        spans = {key: (low, high) for key, (low, high) in spans.items() if key != "extra" and high > 1.05 * low}
        found.append(ReproducedRow(row.name, _means(figures), _published(study, row.name), spans))
    progress("done", 1.0)
    return found


def header_times(seeds: Sequence[int]) -> ReproducedRow:
    """Return the times of the streaming workload's flushed headers, which carry no information on the first token."""
    scenario = with_requests(load("W2"), 10_000)
    figures = []
    for seed in seeds:
        draws = SeedSamples(scenario, _FREE, seed).draws
        assert isinstance(draws, TtftDraws)
        headers = draws.headers_s
        assert headers is not None
        figures.append({key: 1000 * float(np.quantile(headers, _QUANTILES[key])) for key in _STREAM})
    return ReproducedRow("time to headers", _means(figures), sources.STREAMING_FLUSHED["time to headers"], {})


def _published(study: Study, name: str) -> Mapping[str, PublishedFigures]:
    """Return the published figures of a row; a row without the delay is compared with the row that it explains."""
    if name == "the same, without the delay":
        name = "20 ms to all others"
    return study.published.get(name, {})


def _figures(run: SimulatedRun, row: StudyRow, keys: Sequence[str]) -> dict[str, float]:
    times_ms = 1000 * row.read(run)
    figures = {key: float(np.quantile(times_ms, _QUANTILES[key])) for key in keys if key in _QUANTILES}
    if "mean" in keys:
        figures["mean"] = float(times_ms.mean())
    figures["extra"] = float(run.columns["hedges"].mean())
    return figures


def _means(figures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {key: float(np.mean([one[key] for one in figures])) for key in figures[0]}

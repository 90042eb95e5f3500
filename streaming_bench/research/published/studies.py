"""Published tables of races, run again in virtual time: microservice, streaming, three servers.

Every row is a policy on a workload's own draws, through the gateway's own race; `adaptive, as published` is the
reference library by its published rules (policies.py). Units: milliseconds in figures, seconds inside.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from streaming_bench.progress import Progress, of_run
from streaming_bench.research.bounds import Values
from streaming_bench.research.published import sources
from streaming_bench.research.published.side_by_side import ReproducedRow
from streaming_bench.research.published.sources import PublishedFigures
from streaming_bench.simulation.comparison import ComparisonPlan, SeedSamples
from streaming_bench.simulation.policies import UNLIMITED_BUDGET
from streaming_bench.simulation.runner import SimulatedRun
from streaming_bench.simulation.sampled_replicas import TtftDraws
from streaming_bench.simulation.scenario import load
from ttft_gateway.routing.strategies import Routing


@dataclass(frozen=True, slots=True)
class RetryRule:
    """When an attempt is given up.

    Attributes:
        timeout_s: time after which an attempt is cancelled; the last one is not.
        backoff_s: wait before the first retry; doubled before each further one.
        retries_max: maximum number of retries.
    """

    timeout_s: float
    backoff_s: float
    retries_max: int = 2


def retried_s(attempts_s: Sequence[float], rule: RetryRule) -> tuple[float, int]:
    """Return the time of a request, and its retries.

    Args:
        attempts_s: time of each attempt, without a timeout; at least one.
    """
    passed_s, backoff_s = 0.0, rule.backoff_s
    last = min(rule.retries_max, len(attempts_s) - 1)
    for number, attempt_s in enumerate(attempts_s[:last]):
        if attempt_s <= rule.timeout_s:
            return passed_s + attempt_s, number
        passed_s += rule.timeout_s + backoff_s
        backoff_s *= 2
    return passed_s + attempts_s[last], last


_QUANTILES: Final = {"p50": 0.5, "p80": 0.8, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999, "p100": 1.0}
_MICRO: Final = ("p50", "p90", "p95", "p99", "p999")
_STREAM: Final = ("p50", "p80", "p90", "p95", "p99")
_STUDY: Final = ("mean", "p95", "p99", "p100")

RETRIES: Final = {
    "retry after 10 ms, backoff 10 ms": RetryRule(0.010, 0.010),
    "retry after 50 ms, backoff 10 ms": RetryRule(0.050, 0.010),
}
"""Retries with a doubling backoff, by the name of the row."""

Seen = Callable[[str, SimulatedRun], None]


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


def without_delay_s(delay_s: float, run: SimulatedRun) -> Values:
    """Return the same times without the delay of hedged requests, as the study must have counted."""
    return run.columns["ttft_s"] - delay_s * (run.columns["hedges"] > 0)


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


def three_servers(after_s: float = 0.020, *, to_all: bool = True) -> Study:
    """Return the study of three servers.

    Args:
        after_s: time after which a request is hedged; 20 ms is the published one.
        to_all: True for a backup to each other server, as published; False for one backup.
    """
    plan, policy = replace(_FREE_IN_TURN, static_delay_s=after_s), "fan_out" if to_all else "static"
    name, without = f"{1000 * after_s:g} ms to {'all others' if to_all else 'one other'}", "the same, without the delay"
    rows = (
        StudyRow("round robin", "off", plan, ttfts_s),
        StudyRow(name, policy, plan, ttfts_s),
        StudyRow(without, policy, plan, partial(without_delay_s, after_s)),
        StudyRow("adaptive, this gateway's", "adaptive", replace(plan, budget=0.10), ttfts_s),
    )
    published = sources.THREE_SERVERS  # the row without the delay is compared with the row that it explains
    return Study("W3", _STUDY, rows, {**published, without: published.get(name, {})})


def duration(study: Study, seeds: int, requests: int | None) -> str:
    """Return the number of runs and their duration."""
    each, runs = requests or load(study.workload).requests, len(study.rows) * seeds
    minutes = runs * each / _REQUESTS_PER_MINUTE
    about = f"about {math.ceil(minutes)} minutes" if minutes > 1 else "less than a minute"
    return f"{runs} runs of {each:,} requests, {about} on an idle core"


def reproduce(
    study: Study, seeds: Sequence[int], requests: int | None, progress: Progress, seen: Seen = lambda _name, _run: None
) -> list[ReproducedRow]:
    """Run the rows of a study.

    Args:
        seeds: one run of each row for each seed; the figures are means over them.
        requests: number of requests; None for the workload's.
        progress: called with the current row and the share done.
        seen: called with the name and the run of each row on the first seed.
    """
    scenario = load(study.workload, requests)
    runs = len(study.rows) * len(seeds)
    found: list[ReproducedRow] = []
    for number, row in enumerate(study.rows):
        figures = []
        for turn, seed in enumerate(seeds):
            index = number * len(seeds) + turn
            run = SeedSamples(scenario, row.plan, seed).run(
                row.policy, of_run(progress, row.name, index, runs, scenario.requests)
            )
            if turn == 0:
                seen(row.name, run)
            figures.append(_figures(row.read(run), run.columns["hedges"], study.keys))
        found.append(ReproducedRow(row.name, _means(figures), study.published.get(row.name, {}), _spans(figures)))
    progress("done", 1.0)
    return found


def retry_rows(study: Study, seeds: Sequence[int], requests: int | None) -> list[ReproducedRow]:
    """Return rows of retries instead of hedges, on the same draws as the study."""
    scenario = load(study.workload, requests)
    overhead_s = 0.0 if scenario.drawn is None else scenario.drawn.overhead_s
    figures: dict[str, list[dict[str, float]]] = {name: [] for name in RETRIES}
    for seed in seeds:
        draws = SeedSamples(scenario, _FREE, seed).draws
        assert isinstance(draws, TtftDraws)
        for name, rule in RETRIES.items():
            times_s, retries = np.transpose(
                [retried_s([overhead_s + time_s for time_s in attempts], rule) for attempts in draws.ttft_s]
            )
            figures[name].append(_figures(times_s, retries, study.keys))
    return [ReproducedRow(name, _means(found), {}, _spans(found)) for name, found in figures.items()]


def header_times(seeds: Sequence[int]) -> ReproducedRow:
    """Return the times of the streaming workload's flushed headers, which carry no information on the first token."""
    scenario = load("W2", 10_000)
    figures = []
    for seed in seeds:
        draws = SeedSamples(scenario, _FREE, seed).draws
        assert isinstance(draws, TtftDraws)
        headers = draws.headers_s
        assert headers is not None
        figures.append({key: 1000 * float(np.quantile(headers, _QUANTILES[key])) for key in _STREAM})
    return ReproducedRow("time to headers", _means(figures), sources.STREAMING_FLUSHED["time to headers"], {})


def _spans(figures: Sequence[Mapping[str, float]]) -> dict[str, tuple[float, float]]:
    """Return the lowest and the highest value of each figure that varies."""
    spans = {key: (min(one[key] for one in figures), max(one[key] for one in figures)) for key in figures[0]}
    return {key: (low, high) for key, (low, high) in spans.items() if key != "extra" and high > 1.05 * low}


def _figures(times_s: Values, extra: Values, keys: Sequence[str]) -> dict[str, float]:
    times_ms = 1000 * times_s
    figures = {key: float(np.quantile(times_ms, _QUANTILES[key])) for key in keys if key in _QUANTILES}
    if "mean" in keys:
        figures["mean"] = float(times_ms.mean())
    figures["extra"] = float(extra.mean())
    return figures


def _means(figures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {key: float(np.mean([one[key] for one in figures])) for key in figures[0]}

"""The result of a replay as a text for a terminal, and as data. Pure. Units: milliseconds, per cent and tokens."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import numpy as np

from gateway.config.settings import HedgeSettings
from streaming_bench.replay.donors import LogColumns
from streaming_bench.replay.estimates import HALF_WIDTH, Compared, half_width, needed
from streaming_bench.replay.frontier import REQUESTS_MIN, BudgetRow, ReplayFrontier
from streaming_bench.replay.logged import Contents, LoggedRequest
from streaming_bench.replay.reader import GATEWAY
from streaming_bench.replay.stripped import revealed
from streaming_bench.report.grid import Grid, percent, short
from streaming_bench.report.results import rounded
from streaming_bench.report.stats import Estimate

_EPOCH_MIN_S: Final = 1e8  # smaller times of arrival are not since 1970
_REQUESTS_WISHED: Final = 20_000  # the p99 of most traffic is then known to +-25 %
_MILLION: Final = 1e6


@dataclass(frozen=True, slots=True)
class Replayed:
    """A replay of one model's requests.

    Attributes:
        contents: contents of the log.
        model: name of the model.
        requests: requests that were replayed.
        log: the same as columns.
        frontier: results; None with too little data.
        price: price of a million prompt tokens; None if unknown.
    """

    contents: Contents
    model: str
    requests: Sequence[LoggedRequest]
    log: LogColumns
    frontier: ReplayFrontier | None
    price: float | None = None


def page(found: Replayed) -> list[str]:
    """Return the lines for a terminal."""
    lines = head(found)
    if found.frontier is None:
        return [*lines, "", *_too_little(len(found.requests))]
    frontier = found.frontier
    return [
        *lines,
        "",
        f"TTFT in ms if waits are independent, with 95 % intervals; slow: over {_ms(frontier.bounds.slo_s)} (--slo)",
        *_table(frontier).lines(),
        "",
        "The same if waits are fully correlated: a request that is slow is slow everywhere. The truth is in between",
        *_band(frontier).lines(),
        "",
        *_recommendation(found, frontier),
        "",
        *_unknown(found, frontier),
    ]


def head(found: Replayed) -> list[str]:
    """Return the lines about the log."""
    return [*_contents(found), *_replayed(found), *_revealed(found.contents)]


def _contents(found: Replayed) -> list[str]:
    contents = found.contents
    usable = sum(contents.models.values())
    lines = [f"{contents.kind}: {contents.lines:,} lines, {usable:,} requests with a first token"]
    if contents.unused:
        lines.append("not used: " + "; ".join(f"{count:,} {reason}" for reason, count in contents.unused.most_common()))
    if contents.unreadable:
        lines.append(f"not readable: {contents.unreadable:,} lines; {contents.first_unreadable}")
    if len(contents.models) > 1:
        shown = ", ".join(f"{name or '(unnamed)'} {count:,}" for name, count in contents.models.most_common(10))
        lines.append(f"models: {shown}; another one than the first with --model NAME")
    return lines


def _replayed(found: Replayed) -> list[str]:
    log, requests = found.log, found.requests
    total = found.contents.models[found.model]
    part = f"{len(requests):,} requests" if len(requests) == total else (
        f"{len(requests):,} of {total:,} requests, in stretches from the whole log (--requests N for more),"
    )  # fmt: skip
    first_s, last_s = requests[0].arrived_s, requests[-1].arrived_s
    span = f"{_moment(first_s)} to {_moment(last_s)}" if first_s > _EPOCH_MIN_S else f"over {last_s - first_s:,.0f} s"
    names = f"{len(log.names)} replicas that the log does not name, assumed alike" if log.alike else (
        f"{len(log.names)} replicas ({', '.join(log.names[:4])}{', ...' if len(log.names) > 4 else ''})"
    )  # fmt: skip
    tokens = (
        f"prompts of {short(float(np.median(log.tokens)))} tokens (median)" if log.tokens.any() else "no prompt lengths"
    )
    return [f"replayed: {found.model or 'the only model'}, {part} {span}; {names}; {tokens}"]


def _revealed(contents: Contents) -> list[str]:
    beyond = revealed(contents)
    if not beyond:
        return ["the file contains little more than a replay needs; --strip FILE also removes the names"]
    return [f"the file also contains {', '.join(beyond)}: before you share it, write what is needed with --strip FILE"]


def _too_little(count: int) -> list[str]:
    return [
        f"Too little data: {count:,} requests with a first token. A p95 needs {REQUESTS_MIN:,}, a p99 1,000: ten",
        f"requests beyond it; about {_REQUESTS_WISHED:,} give useful intervals. Replay a longer log.",
    ]


def _table(frontier: ReplayFrontier) -> Grid:
    heads = ["budget", "hedges", "tokens", "p95", "p99", "p99 saved", "slow", "mean"]
    off = frontier.off
    rows = [["off", "", "", *(_figure(frontier, name, off[name]) for name in ("p95", "p99"))]]
    rows[0] += ["", *(_figure(frontier, name, off[name]) for name in ("misses", "mean"))]
    for row in frontier.rows:
        shares = percent(row.budget, 0), percent(row.hedges), percent(row.tokens)
        rows.append([*shares, *_figures(frontier, row.independent)])
    return Grid(heads, rows)


def _band(frontier: ReplayFrontier) -> Grid:
    heads = ["budget", "hedges", "p95", "p99", "p99 saved", "slow", "mean"]
    rows = [
        [percent(row.budget, 0), percent(row.correlated_hedges), *_figures(frontier, row.correlated)]
        for row in frontier.rows
    ]
    return Grid(heads, rows)


def _figures(frontier: ReplayFrontier, found: Mapping[str, Compared]) -> list[str]:
    p95, p99, misses, mean = (_figure(frontier, name, found[name].value) for name in ("p95", "p99", "misses", "mean"))
    return [p95, p99, _figure(frontier, "p99", found["p99"].saved), misses, mean]


def _figure(frontier: ReplayFrontier, name: str, estimate: Estimate) -> str:
    """Return a value with its interval, or n/a if there are too few requests for it."""
    if name not in frontier.shown:
        return "n/a"

    def form(value: float) -> str:
        return percent(value) if name == "misses" else short(1e3 * value)

    if not estimate.known:
        return f"{form(estimate.value)} [?]"
    return f"{form(estimate.value)} [{form(estimate.low)}, {form(estimate.high)}]"


def _recommendation(found: Replayed, frontier: ReplayFrontier) -> list[str]:
    best, goal = frontier.recommended, frontier.goal
    if best is None or goal is None:
        return ["No budget saves more than noise: leave hedging off (policy: off), or replay a longer log."]
    change, bound = best.independent[goal], best.correlated[goal]
    budget = percent(best.budget, 0)
    title = {"misses": f"share over {_ms(frontier.bounds.slo_s)}", "mean": "restricted mean"}.get(goal, goal)
    before = _value(goal, change.value.value + change.saved.value)
    gain = f"{title} {before} to {_value(goal, change.value.value)}, saved {_interval(goal, change.saved)}"
    cost = f"{percent(best.hedges)} more requests"
    cost += "" if math.isnan(best.tokens) else f", {percent(best.tokens)} more prompt tokens"
    worst = f"{title} {_value(goal, bound.value.value)}, and the gateway sends {percent(best.correlated_hedges)} hedges"
    return [
        f"Recommended budget: {budget}, the smallest with 80 % of the greatest saving of the {title}",
        f"  gain    {gain}",
        f"  cost    {cost}{_money(found, best)}",
        f"  if fully correlated: {worst}",
        *([f"  slower  {_slower(frontier, best)}"] if _slower(frontier, best) else []),
        "  set     hedge:",
        f"            budget: {budget}",
        *_delay_line(frontier),
    ]


def _slower(frontier: ReplayFrontier, row: BudgetRow) -> str:
    worse = [name for name in frontier.shown if row.independent[name].saved.high < 0.0]
    return ", ".join(f"{name} by {_value(name, -row.independent[name].saved.value)}" for name in worse)


def _delay_line(frontier: ReplayFrontier) -> list[str]:
    if frontier.delay_min_s == HedgeSettings().hedge_delay_min_s:
        return []
    return [f"            hedge_delay_min: {frontier.delay_min_s * 1e3:g}ms"]


def _money(found: Replayed, row: BudgetRow) -> str:
    if found.price is None or math.isnan(row.tokens):
        return ""
    spent = row.tokens * float(found.log.tokens.mean()) * found.price / _MILLION  # of a request
    avoided = row.independent["misses"].saved.value
    each = f", {spent / avoided:.3g} for each avoided slow request" if avoided > 0.0 else ""
    return f"; {1000 * spent:.3g} for 1,000 requests{each}"


def _value(name: str, value: float) -> str:
    return percent(value, 2) if name == "misses" else _ms(value)


def _interval(name: str, estimate: Estimate) -> str:
    if not estimate.known:
        return _value(name, estimate.value)
    return f"{_value(name, estimate.value)} [{_value(name, estimate.low)}, {_value(name, estimate.high)}]"


def _ms(value_s: float) -> str:
    return f"{short(1e3 * value_s)} ms"


def _unknown(found: Replayed, frontier: ReplayFrontier) -> list[str]:
    """Return what the log leaves open, with the action."""
    log = found.log
    lines = [
        "Not in this log:",
        "- two answers to one request: the two tables bound that. Slow minutes of a replica or of all are in it.",
        "- the load of backups, rate limits and caches: a fleet near its limit gets slower with each hedge.",
    ]
    if found.contents.kind == GATEWAY:
        lines.append("- the effect of hedges on routing: half of the draws keep the logged replicas, half route again.")
    else:
        lines.append("- better routing: requests go first to their logged replicas. The gateway routes by prediction.")
    if log.alike:
        lines.append(f"- replicas: {len(log.names)} alike are assumed (--replicas N); log them to see differences.")
    if not log.tokens.any():
        lines.append("- prompt lengths: a long prompt counts as slow, and tokens of hedges are unknown.")
    if log.cancelled.any():
        share = percent(float(log.cancelled.mean()))
        lines.append(
            f"- {share} of the first attempts were cancelled before a token: their times are drawn beyond that."
        )
    if not log.hedgeable.all():
        lines.append(f"- {percent(1.0 - float(log.hedgeable.mean()))} of the requests may not be hedged, and are not.")
    wide = [
        name for name in ("p95", "p99") if name in frontier.shown and half_width(_final(frontier, name)) > HALF_WIDTH
    ]
    for name in wide:
        estimate = _final(frontier, name)
        width = half_width(estimate)
        count = needed(estimate, len(found.requests))
        enough = f"about {float(f'{count:.2g}'):,.0f} requests" if count else "more requests"
        shown = f"+-{percent(width, 0)}" if math.isfinite(width) else "unknown"
        lines.append(f"- a certain {name}: its interval is {shown}; for +-{HALF_WIDTH:.0%} replay {enough}.")
    if "p99" not in frontier.shown:
        lines.append(f"- the p99: it needs 1,000 requests, the log has {len(found.requests):,}.")
    return lines


def _final(frontier: ReplayFrontier, name: str) -> Estimate:
    """Return a figure of the recommended budget, else of hedging off."""
    row = frontier.recommended
    return frontier.off[name] if row is None else row.independent[name].value


def _moment(at_s: float) -> str:
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%M:%S}"


def data(found: Replayed) -> object:
    """Return the result as JSON values: seconds and fractions of 1; None for what is unknown."""
    frontier = found.frontier
    result = log_data(found) | {"enough": frontier is not None}
    if frontier is not None:
        best = frontier.recommended
        result |= {
            "slo_s": frontier.bounds.slo_s,
            "mean_restricted_at_s": frontier.bounds.restricted_s,
            "hedge_delay_min_s": frontier.delay_min_s,
            "shown": list(frontier.shown),
            "off": {name: estimate._asdict() for name, estimate in frontier.off.items()},
            "budgets": [_row_data(row) for row in frontier.rows],
            "recommended": None if best is None else {"budget": best.budget, "goal": frontier.goal},
        }
    return rounded(result)


def log_data(found: Replayed) -> dict[str, object]:
    """Return the log as JSON values."""
    contents = found.contents
    return {
        "log": {
            "kind": contents.kind,
            "lines": contents.lines,
            "unused": dict(contents.unused),
            "unreadable": contents.unreadable,
            "models": dict(contents.models),
            "also_contains": revealed(contents),
        },
        "model": found.model,
        "requests": len(found.requests),
        "replicas": list(found.log.names),
        "replicas_assumed": found.log.alike,
    }


def _row_data(row: BudgetRow) -> dict[str, object]:
    return {
        "budget": row.budget,
        "hedges": row.hedges,
        "tokens": row.tokens,
        "independent": _compared(row.independent),
        "correlated": _compared(row.correlated),
        "correlated_hedges": row.correlated_hedges,
        "band": {name: list(row.band(name)) for name in row.independent},
    }


def _compared(figures: Mapping[str, Compared]) -> dict[str, object]:
    return {name: {"value": each.value._asdict(), "saved": each.saved._asdict()} for name, each in figures.items()}

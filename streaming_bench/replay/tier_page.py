"""The result of a replay with tiers as a text for a terminal, and as data. Pure. Units: milliseconds and per cent."""

from collections.abc import Callable
from typing import Final

from streaming_bench.replay.page import Replayed, head, log_data
from streaming_bench.replay.reader import GATEWAY
from streaming_bench.replay.tiers import ATTEMPTS_MIN, TargetRow, TierFigures, TierPlan, TierReplay, Way
from streaming_bench.report.grid import Grid, percent, short
from streaming_bench.report.results import rounded
from streaming_bench.report.stats import Estimate

_GIVEN_UP: Final = 0.05  # of the attempts at a way, from which on the page has a line about it
_WIDE: Final = 0.1  # half width of the bill from which on a longer log is recommended


def tier_page(found: Replayed, result: TierReplay, plan: TierPlan) -> list[str]:
    """Return the lines for a terminal."""
    return [
        *head(found),
        "ways: " + "; ".join(map(_way, result.ways)),
        *(f"left out: {way.name}, {way.attempts} attempts of the {ATTEMPTS_MIN} needed" for way in result.left_out),
        "",
        "`prefer: cost`, if waits are independent. Bill: against the same answers on the usual tier; 95 % intervals",
        *_table(result, lambda row: row.independent).lines(),
        "",
        "The same if waits are fully correlated: a request that is slow is slow on every tier. The truth is in between",
        *_table(result, lambda row: row.correlated).lines(),
        "",
        *_verdict(result, plan),
        "",
        *_unknown(found, result),
    ]


def _way(way: Way) -> str:
    refused = f", {percent(way.refused)} refused" if way.refused else ""
    return f"{way.name} (price {way.factor:g}) {way.attempts:,} attempts{refused}"


def _table(result: TierReplay, of: Callable[[TargetRow], TierFigures]) -> Grid:
    heads = ["target", "bill", "over target", "p50", "p99", "cheap first", "hedges", "over target on usual"]
    rows = []
    for row in result.rows:
        case = of(row)
        cells = [_ms(row.target_s), _interval(case.bill), _interval(case.over, 2), _ms(case.p50_s), _ms(case.p99_s)]
        rows.append([*cells, percent(case.cheap), percent(case.hedges), percent(row.usual_over, 2)])
    usual = ["usual tier", percent(1.0), "", _ms(result.usual_p50_s), _ms(result.usual_p99_s), "0.0%", "0.0%", ""]
    return Grid(heads, [usual, *rows])


def _verdict(result: TierReplay, plan: TierPlan) -> list[str]:
    best = min(result.rows, key=lambda row: row.independent.bill.value)
    bill = best.independent.bill
    if bill.high >= 1.0:
        return ["No target lowers the bill for certain: stay on the usual tier, or replay a longer log."]
    saved = Estimate(1.0 - bill.value, 1.0 - bill.high, 1.0 - bill.low)
    cost = 1_000 * result.usual_cost
    prices = f"{plan.prompt_price:g} and {plan.answer_price:g} for a million tokens of prompts and answers (--price)"
    return [
        f"With a target of {best.target_s:g} s the bill falls by {_interval(saved)}:",
        f"  1,000 requests cost {short(bill.value * cost)} instead of {short(cost)}, at {prices}",
        "  set     hedge:",
        "            prefer: cost",
        f"            ttft_target: {best.target_s:g}s",
    ]


def _unknown(found: Replayed, result: TierReplay) -> list[str]:
    lines = [
        "Not in this log:",
        "- two answers to one request: the two tables bound that.",
        "- the load of the requests themselves: a cheap tier that gets all of them may be slower than in a trial.",
        "- cached prompts, and providers that bill cancelled requests: a loser is billed for its prompt here.",
    ]
    lines += [
        f"- the end of {percent(way.given_up)} of the waits on {way.name}, given up: a longer target is uncertain."
        for way in result.ways
        if way.given_up >= _GIVEN_UP
    ]
    if found.contents.kind != GATEWAY:
        lines.append("- refusals: only the gateway's log has them.")
    bill = min((row.independent.bill for row in result.rows), key=lambda each: each.value)
    if bill.high - bill.low > 2 * _WIDE:
        scarce = min(result.ways, key=lambda way: way.attempts)
        lines.append(
            f"- a certain bill: {scarce.name} has {scarce.attempts:,} attempts; replay a log with more of them."
        )
    return lines


def _interval(estimate: Estimate, digits: int = 1) -> str:
    return f"{percent(estimate.value, digits)} [{percent(estimate.low, digits)}, {percent(estimate.high, digits)}]"


def _ms(value_s: float) -> str:
    return f"{short(1e3 * value_s)} ms"


def tier_data(found: Replayed, result: TierReplay) -> object:
    """Return the result as JSON values: seconds and fractions of 1."""
    rows = [
        {
            "ttft_target_s": row.target_s,
            "independent": _case(row.independent),
            "correlated": _case(row.correlated),
            "usual_over_target": row.usual_over,
        }
        for row in result.rows
    ]
    return rounded(
        log_data(found)
        | {
            "ways": [_way_data(way) for way in result.ways],
            "left_out": [_way_data(way) for way in result.left_out],
            "usual": {"p50_s": result.usual_p50_s, "p99_s": result.usual_p99_s, "cost": result.usual_cost},
            "targets": rows,
        }
    )


def _way_data(way: Way) -> dict[str, object]:
    return {
        "replica": way.name,
        "price": way.factor,
        "attempts": way.attempts,
        "refused": way.refused,
        "given_up": way.given_up,
    }


def _case(case: TierFigures) -> dict[str, object]:
    return {**case._asdict(), "bill": case.bill._asdict(), "over": case.over._asdict()}

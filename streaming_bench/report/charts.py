"""The plots of measured runs: their series and titles. plots.py draws them.

Units: milliseconds and seconds, as on the axes.
"""

from collections.abc import Mapping, Sequence

from streaming_bench.report.figures import ALWAYS, NEVER, answered, extra_load, figures
from streaming_bench.report.plots import bars, cdf, log_ms, over_time, picture, rate_over_time, scatter, shaded
from streaming_bench.report.records import MODES, Run
from streaming_bench.report.results import Results
from streaming_bench.report.stats import Estimate


def of_load(results: Results, runs: Sequence[Run], below: str) -> None:
    """Draw the plots of `load`: distribution, TTFB next to TTFT, and TTFT over time."""
    with picture(results, "ttft_cdf", "Time to first token", below=below) as (axes,):
        cdf(axes, {run.name: [1000 * record.ttft_s for record in run.records] for run in runs})
        axes.set_xlabel("time to first token, from when the request was due")
        axes.set_ylabel("requests answered")
        axes.legend(loc="lower right")
    ttfb_beside_ttft(results, runs, below)
    timeline(results, runs, "Time to first token over time", below)


def of_compare(results: Results, runs: Sequence[Run], below: str) -> None:
    """Draw the plots of `compare`: distributions and costs by header mode, TTFB next to TTFT, and the episode."""
    headers = [run for run in runs if run.facts["part"] == "headers"]
    by_mode = {mode: [run for run in headers if run.facts["mode"] == mode] for mode in MODES}
    full = {MODES[mode]: members for mode, members in by_mode.items() if len(members) > 2}
    if full:
        distributions(results, full, below)
        costs(results, next(iter(full.values())), below)
    plain = [run for members in by_mode.values() for run in members if run.facts["policy"] == "direct"]
    if plain:
        ttfb_beside_ttft(results, [_named(run, MODES[str(run.facts["mode"])]) for run in plain], below)
    slow = [run for run in runs if run.facts["part"] == "episode"]
    if slow:
        episode(results, [_named(run, str(run.facts["policy"])) for run in slow], below)


def ttfb_beside_ttft(results: Results, runs: Sequence[Run], below: str) -> None:
    """Draw a point for each request: headers across, first token up."""
    points = {}
    for run in runs:
        seen = answered(run.records)
        points[run.name] = ([1000 * each.ttfb_s for each in seen], [1000 * each.ttft_s for each in seen])
    with picture(results, "ttfb_ttft", "Headers and first token of the same requests", below=below) as (axes,):
        scatter(axes, points)
        axes.legend(loc="lower right", markerscale=2)


def timeline(
    results: Results,
    runs: Sequence[Run],
    title: str,
    below: str,
    name: str = "timeline",
    *,
    share: float = 0.5,
    slow_s: tuple[float, float] | None = None,
) -> None:
    """Draw each request's TTFT at its planned time, above the load at that time.

    Args:
        runs: a series each.
        below: small print.
        share: quantile drawn as a line.
        slow_s: span in which replicas were slow; None for no such span.
    """
    with picture(results, name, title, below=below, heights=(3, 1)) as (upper, lower):
        for number, run in enumerate(runs):
            due_s = [record.due_s for record in run.records]
            over_time(upper, due_s, [1000 * each.ttft_s for each in run.records], run.name, number, share=share)
            upstream_s = [record.due_s for record in run.records for _ in range(record.attempts)]
            rate_over_time(lower, upstream_s, run.name, number)
        if slow_s is not None:
            shaded(upper, *slow_s, "slow replicas")
            shaded(lower, *slow_s, "slow replicas")
        log_ms(upper, vertical=True)
        upper.set_ylabel("time to first token")
        upper.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=3, borderaxespad=0.2)
        lower.set_ylabel("upstream\nrequests/s")
        lower.set_ylim(bottom=0)
        lower.set_xlabel("seconds since the beginning")


def distributions(results: Results, groups: Mapping[str, Sequence[Run]], below: str) -> None:
    """Draw the distribution of TTFT by policy, a panel for each header mode."""
    title, count = "Time to first token, by policy", len(groups)
    with picture(results, "ttft_cdf", title, panels=count, below=below, share_x=True) as panels:
        for axes, (title, runs) in zip(panels, groups.items(), strict=True):
            cdf(axes, {str(run.facts["policy"]): [1000 * each.ttft_s for each in run.records] for run in runs})
            axes.set_title(title)
            axes.set_xlabel("time to first token")
        panels[0].set_ylabel("requests answered")
        panels[-1].legend(loc="lower right")


def costs(results: Results, runs: Sequence[Run], below: str) -> None:
    """Draw gain and cost of each policy as bars, with 95 % intervals."""
    rows = {str(run.facts["policy"]): figures(run) for run in runs}
    loads = {str(run.facts["policy"]): extra_load(run) for run in runs}
    seen = "headers" in loads and loads["headers"].value < NEVER and "ttfb" in loads and loads["ttfb"].value > ALWAYS
    title = "Time the response headers, and hedge never or always" if seen else "What each policy buys and costs"
    with picture(results, "hedge_costs", title, panels=2, below=below, share_y=False) as (left, right):
        bars(left, {policy: row.waits["ttft"]["p95"] for policy, row in rows.items()}, "{:,.0f} ms")
        left.set_title("p95 time to first token")
        shares = {policy: Estimate(*(100 * end for end in load)) for policy, load in loads.items()}
        bars(right, shares, "{:.1f}%", named=False)
        right.set_title("extra upstream requests")


def episode(results: Results, runs: Sequence[Run], below: str) -> None:
    """Draw TTFT over time while some of the replicas are slow."""
    begin_s, end_s = (float(str(runs[0].facts[name])) for name in ("slow_from_s", "slow_to_s"))
    title = "Half of the replicas are eight times slower for a while"
    timeline(results, runs, title, below, "episode", share=0.9, slow_s=(begin_s, end_s))


def _named(run: Run, name: str) -> Run:
    return Run(name, run.facts, run.records)

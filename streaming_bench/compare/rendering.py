"""Tables, sentences and plots of compared runs, for `compare` and `report`.

Owns the grouping of runs into tables. It must not depend on how the runs were measured. Units: as in tables.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from streaming_bench.report import tables
from streaming_bench.report.figures import ALWAYS, NEVER, WAITS, Figures, compare_runs, figures
from streaming_bench.report.grid import Grid, percent
from streaming_bench.report.optional_plots import draw
from streaming_bench.report.records import MODES, Run
from streaming_bench.report.results import Results


def render(results: Results, runs: Sequence[Run], small_print: str) -> list[str]:
    """Write tables and plots; return the lines to print."""
    groups = _groups(runs)
    parts: list[str | Grid] = [small_print]
    for title, members in groups.items():
        parts += [f"## {title}", *_tables(members)]
    warnings = tables.warnings([figures(run) for run in runs])
    sentences = [] if warnings else [sentence for members in groups.values() for sentence in _sentences(members)]
    parts += ["## In short", *(f"- {sentence}" for sentence in (*sentences, *warnings))]
    results.json("figures.json", {"runs": [{**run.facts, **figures(run).json()} for run in runs]})
    results.markdown("tables.md", "Policies over real sockets", *parts)
    warnings += draw("of_compare", results, runs, small_print)
    return _printed(groups, [*sentences, *warnings])


def _groups(runs: Sequence[Run]) -> dict[str, list[Run]]:
    groups: dict[str, list[Run]] = {}
    for run in runs:
        mode = MODES[str(run.facts["mode"])]
        headers = run.facts["part"] == "headers"
        title = mode[0].upper() + mode[1:] if headers else "Half of the replicas eight times slower for a while"
        groups.setdefault(title, []).append(run)
    return groups


def figures_by_policy(runs: Sequence[Run]) -> list[Figures]:
    """Return the figures of runs of one mode, named by their policies."""
    return [replace(figures(run), name=str(run.facts["policy"])) for run in runs]


def _tables(runs: Sequence[Run]) -> list[Grid]:
    rows = figures_by_policy(runs)
    failed = tables.errors(rows)
    grids = [tables.overview(rows), *(tables.waits(rows, key) for key in WAITS), tables.throughput(rows)]
    return grids if failed is None else [*grids, failed]


def _printed(groups: Mapping[str, Sequence[Run]], sentences: Sequence[str]) -> list[str]:
    lines = []
    for title, members in groups.items():
        rows = figures_by_policy(members)
        lines += ["", f"{title}; times in ms", *tables.overview(rows).lines()]
        failed = tables.errors(rows)
        lines += failed.lines() if failed is not None else []
    first = next(iter(groups.values()), [])
    lines += [
        "",
        *tables.waits(figures_by_policy(first), "ttft").lines(),
        "",
        *tables.throughput(figures_by_policy(first)).lines(),
        "",
    ]
    return lines + [f"- {sentence}" for sentence in sentences]


def _sentences(runs: Sequence[Run]) -> list[str]:
    """Return the findings that the runs show."""
    found = {str(run.facts["policy"]): run for run in runs}
    if not found or runs[0].facts["part"] != "headers":
        return []
    mode, findings = MODES[str(runs[0].facts["mode"])], []
    loads = {policy: figures(run).extra_load for policy, run in found.items()}
    if "headers" in loads and loads["headers"] < NEVER:
        findings.append(f"{mode}: a race ended by headers never hedges ({percent(loads['headers'])} extra load)")
    if "ttfb" in loads and loads["ttfb"] > ALWAYS:
        findings.append(f"{mode}: a delay learned from TTFB hedges everything ({percent(loads['ttfb'])} extra load)")
    if "adaptive" in found and "off" in found:
        times = tables.with_interval(compare_runs(found["adaptive"], found["off"], "ttft", 0.95), "x")
        findings.append(f"{mode}: adaptive has {times} the p95 TTFT of off at {percent(loads['adaptive'])} extra load")
    return findings
